// The table of descriptors, and the pool of Sockets.
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>

#include <new>

#include "clan/log.h"
#include "os/config.h"
#include "wait/epoll.h"
#include "state/own_descriptors.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "state/socket.h"
#include "state/testing.h"
#include "share/uring.h"

namespace clan::preload {
namespace {

constexpr unsigned kChunk = 1024;
constexpr unsigned kChunks = 1024;  // a million descriptors

using Entry = std::atomic<Socket*>;
std::atomic<Entry*> chunks[kChunks];

Entry* entry(int fd, bool make) {
  const auto n = static_cast<unsigned>(fd);
  if (fd < 0 || n >= kChunk * kChunks) return nullptr;
  auto& slot = chunks[n / kChunk];
  Entry* chunk = slot.load(std::memory_order_acquire);  // PAIR preload.chunk
  if (chunk == nullptr) {
    if (!make) return nullptr;
    void* memory = sys::mmap(nullptr, kChunk * sizeof(Entry), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    chunk = static_cast<Entry*>(memory);
    Entry* expected = nullptr;
    // PAIR preload.chunk: publishes zeroed entries
    if (!slot.compare_exchange_strong(expected, chunk, std::memory_order_acq_rel)) {
      sys::munmap(memory, kChunk * sizeof(Entry));
      chunk = expected;
    }
  }
  return chunk + n % kChunk;
}

// Free Sockets, as a stack under a spin lock: taken at connect and accept, not per byte.
struct Pool {
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  Socket* free = nullptr;
  void put(Socket* s) {
    s->next_free = free;
    free = s;
  }
  void enter() {
    enter_section();
    while (lock.test_and_set(std::memory_order_acquire)) sched_yield();
  }
  void leave() {
    lock.clear(std::memory_order_release);
    leave_section();
  }
};
Pool pool;

Socket* take() {
  pool.enter();
  if (pool.free == nullptr) {
    constexpr std::size_t kBatch = 64;
    void* memory = sys::mmap(nullptr, kBatch * sizeof(Socket), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      auto* sockets = static_cast<Socket*>(memory);
      for (std::size_t i = 0; i < kBatch; ++i) pool.put(new (sockets + i) Socket);
    }
  }
  Socket* s = pool.free;
  if (s != nullptr) pool.free = s->next_free;
  pool.leave();
  return s;
}

void release(Socket* s) {
  if (s->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  KeepErrno keep;
  if (s->offer_fd.load(std::memory_order_relaxed) >= 0 || s->window_fd.load(std::memory_order_relaxed) >= 0 ||
      s->offer_name.load(std::memory_order_relaxed) != 0) {
    withdraw_offer(*s);
  }
  discount_pipe(*s);
  count_for_test(*s);
  s->pipe = Pipe();
  s->receive_wait.reset();
  s->send_wait.reset();
  s->interests = nullptr;
  s->in_sets.store(false, std::memory_order_relaxed);
  // Plain stores: whoever gets it next gets it by the pool's lock.
  auto set = [](auto& field, auto value) { field.store(value, std::memory_order_relaxed); };
  s->client = false;
  s->place = Socket::Place::kNotAsked;
  s->window_looks = 0;
  set(s->inherited, false);
  set(s->followed, false);
  set(s->nonblocking, -1);
  for (auto* count : {&s->sends, &s->receives, &s->offer_calls, &s->full}) set(*count, 0);
  for (auto* flag : {&s->drained, &s->kernel_end, &s->kernel_error, &s->error_taken, &s->kernel_says,
                     &s->reset_told, &s->shut_read, &s->back_in, &s->anew, &s->resending, &s->fin_counted,
                     &s->left_at_exit, &s->left_slot, &s->not_to_follow, &s->owes_memory}) {
    set(*flag, false);
  }
  set(s->data_sleepers, 0);
  set(s->room_sleepers, 0);
  set(s->checked_ns, 0);
  set(s->released_ns, 0);
  set(s->release_looks, 0);
  for (auto* counter : {&s->told_sent, &s->told_acked, &s->told_received}) set(counter->told, 0);
  set(s->low_water, 1);
  set(s->own_slot.sends, 0);
  set(s->own_slot.receives, 0);
  set(s->own_slot.pipe_pid, 0);
  set(s->own_slot.pipe_fd, -1);
  set(s->own_slot.pinned, 0);
  set(s->own_slot.resender, 0);
  set(s->own_slot.held, 1);
  set(s->own_slot.to_follow, 1);
  set(s->slot, &s->own_slot);
  set(s->state, Socket::State::kTcp);
  pool.enter();
  pool.put(s);
  pool.leave();
}

void drop(Socket* s, int fd) {
  if (s == nullptr) return;
  const Undisturbed undisturbed;
  left_descriptor(*s, fd);
  if (s->fds.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    const bool others = leave_slot(*s);
    if (s->shared()) shared_close(fd, *s, others);
  }
  release(s);
}

}  // namespace

Held::~Held() {
  if (s_ != nullptr) release(s_);
}

Held hold(int fd) {
  Entry* e = entry(fd, false);
  if (e == nullptr) return Held();
  for (;;) {
    Socket* s = e->load(std::memory_order_acquire);  // PAIR preload.entry
    if (s == nullptr) return Held();
    int refs = s->refs.load(std::memory_order_relaxed);
    while (refs > 0 && !s->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel)) {
    }
    if (refs <= 0) continue;  // on its way out: the entry is about to change
    if (e->load(std::memory_order_acquire) == s) return Held(s);  // PAIR preload.entry
    release(s);
  }
}

bool known(int fd) {
  const Entry* e = entry(fd, false);
  return e != nullptr && e->load(std::memory_order_relaxed) != nullptr;
}

void lock_sockets() { pool.enter(); }
void unlock_sockets() { pool.leave(); }

bool no_set_need_know(int fd) {
  const Entry* e = entry(fd, false);
  const Socket* s = e != nullptr ? e->load(std::memory_order_acquire) : nullptr;  // PAIR preload.entry
  return s != nullptr && s->stays_on_tcp() && !s->inherited.load(std::memory_order_relaxed);
}

bool is_the_kernels(int fd) {
  const Entry* e = entry(fd, false);
  // Not held: a Socket's memory stays one's, and what is read here of another one is no worse than old.
  const Socket* s = e != nullptr ? e->load(std::memory_order_acquire) : nullptr;  // PAIR preload.entry
  return s == nullptr || (s->state.load(std::memory_order_relaxed) == Socket::State::kKernel &&
                          !s->inherited.load(std::memory_order_relaxed));
}

void adopt(int fd, bool client, int nonblocking, bool always) {
  KeepErrno keep;
  if (!always && (config().disabled || rings_alive() || !permits_moving())) return;
  keep_away_from(fd);
  Entry* e = entry(fd, true);
  Socket* s = e != nullptr ? take() : nullptr;
  if (s == nullptr) {
    forget(fd);
    return;
  }
  s->client = client;
  s->nonblocking = nonblocking;
  // A standard stream of the C library, or of C++, reads and writes past us.
  if (fd <= STDERR_FILENO) {
    s->state.store(Socket::State::kKernel, std::memory_order_relaxed);
    CLAN_INFO("fd %d: it is standard input or output of this process; the connection stays on TCP", fd);
  }
  s->slot = &s->own_slot;
  s->fds.store(1, std::memory_order_relaxed);
  s->refs.store(1, std::memory_order_release);
  // PAIR preload.entry: publishes the Socket
  drop(e->exchange(s, std::memory_order_acq_rel), fd);
}

void probe(int fd, bool always) {
  KeepErrno keep;
  if (hold(fd)) return;
  int domain = 0, protocol = 0, type = 0;
  socklen_t size = sizeof domain;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return;
  if (domain != AF_INET && domain != AF_INET6) return;
  size = sizeof protocol;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0) return;
  size = sizeof type;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return;
  if (type != SOCK_STREAM || (protocol != IPPROTO_TCP && protocol != 0)) return;
  adopt(fd, false, -1, always);
  if (Held s = hold(fd)) s->inherited = true;
}

void duplicate_entry(int from, int to) {
  Held s = hold(from);
  if (!s) {
    forget(to);
    return;
  }
  Entry* e = entry(to, true);
  if (e == nullptr) return never_move(from, *s);  // what is done by that number nobody sees
  keep_away_from(to);
  s->fds.fetch_add(1, std::memory_order_relaxed);
  s->refs.fetch_add(1, std::memory_order_relaxed);
  drop(e->exchange(s.get(), std::memory_order_acq_rel), to);
}

void forget(int fd) {
  if (!known(fd)) return;
  KeepErrno keep;
  drop(entry(fd, false)->exchange(nullptr, std::memory_order_acq_rel), fd);
}

void forget_range(unsigned first, unsigned last) {
  for (unsigned c = first / kChunk; c < kChunks && c <= last / kChunk; ++c) {
    if (chunks[c].load(std::memory_order_acquire) == nullptr) continue;  // PAIR preload.chunk
    const unsigned from = std::max(first, c * kChunk);
    const unsigned to = std::min(last, c * kChunk + kChunk - 1);
    for (unsigned fd = from; fd <= to; ++fd) forget(static_cast<int>(fd));
  }
}

void for_each_socket(void (*f)(int, Socket&, void*), void* argument) {
  for (unsigned c = 0; c < kChunks; ++c) {
    if (chunks[c].load(std::memory_order_acquire) == nullptr) continue;  // PAIR preload.chunk
    for (unsigned i = 0; i < kChunk; ++i) {
      const int fd = static_cast<int>(c * kChunk + i);
      if (Held s = hold(fd)) f(fd, *s, argument);
    }
  }
}

}  // namespace clan::preload
