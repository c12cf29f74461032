// What the interposer finds in this library.
#include <clan/log.h>
#include <pthread.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "carrier/node.h"

namespace clan::preload {
namespace {

struct Holder {
  std::mutex mutex;
  Node* node = nullptr;
  std::string why;  ///< there is none
};

// Never deleted: threads of the program may outlive static destructors.
Holder* holder = new Holder;

const char* start(const Settings& settings, std::string_view key, const CarrierCalls& calls) {
  const std::lock_guard lock(holder->mutex);
  if (holder->node != nullptr) return nullptr;
  if (!holder->why.empty()) return holder->why.c_str();
  ContextOptions options = settings.context_options();
  options.network.enabled = true;
  options.network.key = key;
  // The program's threads spin, as far as that is worth while.
  options.wait.mode = WaitOptions::Mode::kSleep;
  auto node = Node::start(options, calls);
  if (node) {
    holder->node = *node;
    return nullptr;
  }
  holder->why = node.error().message();
  return holder->why.c_str();
}

// Bytes go on to the network in the program's threads, by calls of the C library that end a thread
// which has been cancelled: not here.
class NotCancelled {
 public:
  NotCancelled() { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = 0;
};

Carried* dial(const CarrierNames& names, void* socket) {
  const NotCancelled here;
  return holder->node->dial(names, socket);
}

Carried* await(const CarrierNames& names, void* socket) {
  const NotCancelled here;
  return holder->node->await(names, socket);
}

CarrierStage stage(Carried* carried) {
  const NotCancelled here;
  return holder->node->stage(*carried);
}

bool attach(Carried* carried, Pipe* end) {
  const NotCancelled here;
  return carried->attach(std::move(*end));
}

void pump(Carried* carried) {
  const NotCancelled here;
  carried->pump();
  holder->node->look_now_and_then();
}

bool look() {
  const NotCancelled here;
  return holder->node->look();
}

bool begin_sleep(pid_t thread, bool may_fetch, PacketFds* watched) {
  const NotCancelled here;
  return holder->node->begin_sleep(thread, may_fetch, watched);
}

bool end_sleep(pid_t thread, bool fetches) {
  const NotCancelled here;
  return holder->node->end_sleep(thread, fetches);
}

void tcp_ended(Carried* carried) {
  const NotCancelled here;
  carried->tcp_ended();
}

void release(Carried* carried) {
  const NotCancelled here;
  holder->node->release(*carried);
}

void offer_name(const char* name, std::size_t size, OpenName* open) {
  const NotCancelled here;
  if (Relays* relays = holder->node->relays()) relays->offer(std::string(name, size), open);
}

Dialled* dial_name(const char* name, std::size_t size, int* error) {
  const NotCancelled here;
  auto stream = holder->node->dial_name(std::string(name, size));
  if (stream) return reinterpret_cast<Dialled*>(new Stream(std::move(*stream)));
  *error = stream.error().err;
  CLAN_INFO("\"%.*s\": %s", static_cast<int>(size), name, stream.error().message().c_str());
  return nullptr;
}

void carry_name(Dialled* dialled, int fd) {
  const NotCancelled here;
  const std::unique_ptr<Stream> stream(reinterpret_cast<Stream*>(dialled));
  if (fd >= 0) holder->node->relays()->add(std::move(*stream), fd);
}

void finish(std::uint32_t ms) {
  const NotCancelled here;
  if (holder->node != nullptr) holder->node->finish(ms);
}

void before_fork() {
  holder->mutex.lock();
  if (holder->node != nullptr) holder->node->lock();
}

void after_fork(bool in_child) {
  if (in_child) {
    if (holder->node != nullptr) holder->node->close_copies();
    holder = new Holder;  // the node is the parent's
    return;
  }
  if (holder->node != nullptr) holder->node->unlock();
  holder->mutex.unlock();
}

constexpr CarrierTable kTable{.version = kCarrierVersion,
                              .start = start,
                              .dial = dial,
                              .await = await,
                              .stage = stage,
                              .attach = attach,
                              .wake = pump,
                              .look = look,
                              .begin_sleep = begin_sleep,
                              .end_sleep = end_sleep,
                              .tcp_ended = tcp_ended,
                              .release = release,
                              .offer_name = offer_name,
                              .dial_name = dial_name,
                              .carry_name = carry_name,
                              .finish = finish,
                              .before_fork = before_fork,
                              .after_fork = after_fork};

}  // namespace
}  // namespace clan::preload

extern "C" __attribute__((visibility("default"))) const clan::preload::CarrierTable*
clan_carrier_table() {
  return &clan::preload::kTable;
}
