#include "node.h"

#include <pthread.h>

#include <cstdlib>
#include <mutex>

#include <clan/log.h>

#include "active.h"

namespace clan::orb {
namespace {

struct Holder {
  std::mutex mutex;
  std::shared_ptr<Node> node;
};

// Never deleted: threads of the ORB may outlive static destructors.
Holder* holder = new Holder;

/// CLAN_UIDS, CLAN_DISABLE, CLAN_KEY and CLAN_NETWORK_MODE, as everywhere: what cannot be understood keeps all calls off CLAN.
const Settings& settings() {
  static const Settings read = [] {
    Settings settings;
    for (const char* name : {"CLAN_DISABLE", "CLAN_UIDS", "CLAN_KEY", "CLAN_NETWORK_MODE"}) {
      const char* value = std::getenv(name);
      SettingFault fault;
      if (value == nullptr || *value == '\0' || take_setting(name, value, &settings, &fault)) continue;
      CLAN_LOG_AT(LogLevel::kError, "%s=%s %s; CORBA calls go without CLAN", name, value, fault.text);
    }
    return settings;
  }();
  return read;
}

Result<Context> make_context() {
  ContextOptions made;
  made.wait.max_spin_us = options().spin_us;
  if (options().spin_us == 0) made.wait.mode = WaitOptions::Mode::kSleep;
  made.ring_bytes = options().ring_bytes;
  made.allow_uids.assign(settings().uids, settings().uids + settings().uid_count);
  made.network = network_options();
  auto context = Context::create(made);
  if (context.ok() || !made.network.enabled) return context;
  CLAN_WARN("CORBA calls to other hosts go without CLAN: %s", context.error().message().c_str());
  made.network.enabled = false;
  return Context::create(made);
}

}  // namespace

std::atomic<std::uint32_t> Node::generation_{0};

Options& options() {
  static Options options;
  return options;
}

NetworkOptions network_options() {
  NetworkOptions network = settings().network_options();
  const NetworkOptions asked = options().link.network_options();
  if (!asked.enabled) return network;
  // References name the port of the link: an ORB needs no directory, and does not take its port from others.
  if (!network.enabled) network.directory_port = 0;
  network.enabled = true;
  if (!asked.key_file.empty()) network.key_file = asked.key_file;
  if (options().link.names_network_mode) network.mode = asked.mode;
  return network;
}

bool disabled() { return settings().disable; }

Node::Node(Context made) : context_(std::move(made)), active_(new ActiveCollection) {}
Node::~Node() = default;

// The mutex may be held by a thread that does not exist here, and the context belongs to the parent.
void Node::after_fork_in_child() {
  generation_.fetch_add(1, std::memory_order_relaxed);  // relaxed: see generation()
  holder = new Holder;
}

Result<std::shared_ptr<Node>> Node::get() {
  static const int watched = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)watched;
  std::lock_guard lock(holder->mutex);
  if (holder->node) return holder->node;
  auto context = make_context();
  if (!context) {
    CLAN_WARN("CORBA calls go without CLAN: %s", context.error().message().c_str());
    return context.error();
  }
  holder->node = std::make_shared<Node>(std::move(*context));
  return holder->node;
}

void Node::release() {
  std::shared_ptr<Node> last;  // ends outside the lock
  std::lock_guard lock(holder->mutex);
  last.swap(holder->node);
}

}  // namespace clan::orb
