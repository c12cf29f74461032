// What the interposer finds in this library.
#include <clan/detail/clock.h>
#include <clan/face/socket_face.h>
#include <pthread.h>
#include <time.h>

#include <mutex>
#include <string>
#include <utility>

#include "net/node.h"
#include "net/sockets.h"
#include "state/face.h"
#include "state/remote.h"

namespace clan::preload {
namespace {

using reasons::Why;

/// the other end makes a call, if it has CLAN
constexpr std::uint64_t kMeetNs = 10'000'000'000;
constexpr std::uint32_t kMeetCalls = 1024;
constexpr std::uint64_t kLeaveNs = 2'000'000'000;  ///< the other host does its part
constexpr std::uint32_t kLastBytesMs = 2000;

struct Holder {
  std::mutex mutex;
  Node* node = nullptr;
  std::string why;  ///< there is none
};

// Never deleted: threads of the program may outlive static destructors.
Holder* holder = new Holder;

const char* start(const Settings& settings, const Interposer& program) {
  const std::lock_guard lock(holder->mutex);
  the_program = &program;
  if (holder->node != nullptr) return nullptr;
  if (!holder->why.empty()) return holder->why.c_str();
  ContextOptions options = settings.context_options();
  options.network.enabled = true;
  // The program's threads spin, as far as that is worth while.
  options.wait.mode = WaitOptions::Mode::kSleep;
  auto node = Node::start(options, kProgramCalls);
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

RemoteConnection* of(const Socket& s) { return s.remote.load(std::memory_order_relaxed); }

void meet(int fd, Socket& s, const Route& route) {
  Node& node = *holder->node;
  s.remote.store(s.client ? node.dial(route, &s) : node.await(route, &s),
                 std::memory_order_relaxed);
  if (!is_remote(s)) return the_program->stay(fd, s, Why::kNoNetwork, 0);
  s.offered_ns = monotonic_ns();
  s.offer_calls.store(0, std::memory_order_relaxed);
  s.become(Socket::State::kOffered);
}

void wake(int, Socket& s) {
  const NotCancelled here;
  of(s)->pump();
  holder->node->look_now_and_then();
}

bool has_waited_long(const Socket& s) {
  // relaxed: a count by itself
  return s.offer_calls.load(std::memory_order_relaxed) >= kMeetCalls &&
         monotonic_ns() - s.offered_ns >= kMeetNs;
}

void move(int fd, Socket& s, const Route* route) {
  const NotCancelled here;
  if (route != nullptr) return meet(fd, s, *route);
  switch (holder->node->stage(*of(s))) {
    case CarrierStage::kMeeting:
      if (has_waited_long(s)) the_program->stay(fd, s, Why::kNoPeer, 0);
      return;
    case CarrierStage::kMet:
    case CarrierStage::kCarried: break;
    default: return the_program->stay(fd, s, Why::kNoPeer, 0);
  }
  enter(fd, s, of(s)->names(),
        [](Socket& one, Pipe&& end) { return of(one)->attach(std::move(end)); });
  if (s.shared()) wake(fd, s);  // else at a later call
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

bool is_all_there(Socket& s) {
  const NotCancelled here;
  if (of(s)->stage() == CarrierStage::kOver) return true;
  of(s)->tcp_ended();
  return false;
}

void let_go(Socket& s) {
  const NotCancelled here;
  if (RemoteConnection* carried = s.remote.exchange(nullptr, std::memory_order_relaxed);
      carried != nullptr)
    holder->node->release(*carried);
}

void leave(int fd, Socket& s) {
  const NotCancelled here;
  const timespec nap{0, 50'000};
  for (const std::uint64_t until = monotonic_ns() + kLeaveNs;
       is_remote(s) && of(s)->stage() != CarrierStage::kOver; ::nanosleep(&nap, nullptr)) {
    (void)the_program->go(fd, s);
    wake(fd, s);
    if (monotonic_ns() < until) continue;
    return the_program->break_off(fd, s,
                                  "the other host does not do its part in going back to TCP");
  }
}

void end() {
  const NotCancelled here;
  the_program->for_each(
      [](int fd, Socket& s, void*) {
        if (!is_remote(s)) return;
        if (s.shared() && (state_of(s.mine()) & socket_face::kClosed) == 0) {
          add_state(s.mine(), socket_face::kClosed);
          (void)s.pipe.end_sending();
          return wake(fd, s);
        }
        const std::lock_guard lock(s.moving);
        if (s.state_now() == Socket::State::kOffered) the_program->stay(fd, s, Why::kOfferLost, 0);
      },
      nullptr);
  if (holder->node != nullptr) holder->node->finish(kLastBytesMs);
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

constexpr RemoteConnections kTable{.version = kRemoteVersion,
                                   .start = start,
                                   .move = move,
                                   .let_go = let_go,
                                   .wake = wake,
                                   .look = look,
                                   .begin_sleep = begin_sleep,
                                   .end_sleep = end_sleep,
                                   .is_all_there = is_all_there,
                                   .leave = leave,
                                   .end = end,
                                   .before_fork = before_fork,
                                   .after_fork = after_fork};

}  // namespace
}  // namespace clan::preload

extern "C" __attribute__((visibility("default"))) const clan::preload::RemoteConnections*
clan_remote_connections() {
  return &clan::preload::kTable;
}
