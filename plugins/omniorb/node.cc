#include "node.h"

#include <clan/detail/log.h>
#include <pthread.h>

#include <mutex>

#include "watcher.h"

namespace clan::orb {
namespace {

struct Holder {
  std::mutex mutex;
  std::shared_ptr<Node> node;
};

// Never deleted: threads of the ORB may outlive static destructors.
Holder* holder = new Holder;

/// As everywhere: what cannot be understood keeps all calls off CLAN.
const Settings& settings() {
  static const Settings read = settings_of_environment("CORBA calls go without CLAN");
  return read;
}

Result<Context> make_context() {
  ContextOptions made = settings().context_options();
  made.wait.max_spin_us = options().spin_us;
  if (options().spin_us == 0) made.wait.mode = WaitOptions::Mode::kSleep;
  made.ring_bytes = options().ring_bytes;
  made.network = network_options();
  return create_context(std::move(made), "CORBA calls");
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
  // References name the port of the link: an ORB needs no directory, and does not take its port
  // from others.
  if (!network.enabled) network.directory_port = 0;
  network.enabled = true;
  if (!asked.key_file.empty()) network.key_file = asked.key_file;
  if (options().link.names_network_mode) network.mode = asked.mode;
  return network;
}

bool disabled() { return settings().disable; }

Node::Node(Context made) : context_(std::move(made)), active_(new ActiveCollection) {}
Node::~Node() { active_->end(); }  // its queue would keep the context

// The mutex may be held by a thread that does not exist here, and the context belongs to the
// parent.
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
