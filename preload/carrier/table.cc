// What the interposer finds in this library.
#include <pthread.h>

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
                              .finish = finish,
                              .before_fork = before_fork,
                              .after_fork = after_fork};

}  // namespace
}  // namespace clan::preload

extern "C" __attribute__((visibility("default"))) const clan::preload::CarrierTable*
clan_carrier_table() {
  return &clan::preload::kTable;
}
