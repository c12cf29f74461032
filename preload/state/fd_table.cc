#include "state/fd_table.h"

#include <netinet/in.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "clan/reasons.h"
#include "clan/words.h"
#include "os/config.h"
#include "os/rings.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/buffers.h"
#include "state/count_for_test.h"
#include "state/hooks.h"
#include "state/internal_fds.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"

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
  Entry* chunk = words::look(slot);  // PAIR preload.chunk
  if (chunk == nullptr) {
    if (!make) return nullptr;
    void* memory = sys::mmap(nullptr, kChunk * sizeof(Entry), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    chunk = static_cast<Entry*>(memory);
    Entry* expected = nullptr;
    // PAIR preload.chunk: publishes zeroed entries
    if (!words::replace(slot, expected, chunk)) {
      sys::munmap(memory, kChunk * sizeof(Entry));
      chunk = expected;
    }
  }
  return chunk + n % kChunk;
}

void say_what_is_refused() {
  if (const Refusal refusal = refusal_found(); refusal.call != 0) {
    say_of_process(refusal.by_filter ? reasons::Why::kFilter : reasons::Why::kRefused,
                   refusal.call);
  }
}

void release(Socket* s) {
  // PAIR preload.refs: sees what all that had it have done
  if (words::subtract(s->refs, 1) != 1) return;
  KeepErrno keep;
  if (s->offer_fd.get() >= 0 || s->window_fd.get() >= 0 || s->offer_name.get() != 0) {
    withdraw_offer(*s);
  }
  // relaxed: of the last thread that has it
  if (s->far.load(std::memory_order_relaxed) != nullptr) hooks.let_go(*s);
  unsay(*s);
  discount_pipe(*s);
  count_for_test(*s);
  give_back_socket(s);
}

void drop(Socket* s, int fd) {
  if (s == nullptr) return;
  const Undisturbed undisturbed;
  if (s->is_watched()) hooks.left_descriptor(*s, fd);
  // PAIR preload.refs: likewise, of descriptors
  if (words::subtract(s->fds, 1) == 1) {
    if (s->shared()) hooks.before_last_close(fd, *s);
    const bool others = leave_slot(*s);
    if (s->shared()) hooks.last_close(fd, *s, others);
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
    Socket* s = words::look(*e);  // PAIR preload.entry
    if (s == nullptr) return Held();
    int refs = s->refs.load(std::memory_order_relaxed);
    while (refs > 0 && !words::replace(s->refs, refs, refs + 1)) {
    }
    if (refs <= 0) continue;                   // on its way out: the entry is about to change
    if (words::look(*e) == s) return Held(s);  // PAIR preload.entry
    release(s);
  }
}

bool known(int fd) {
  const Entry* e = entry(fd, false);
  return e != nullptr && e->load(std::memory_order_relaxed) != nullptr;
}

bool no_set_need_know(int fd) {
  const Entry* e = entry(fd, false);
  // PAIR preload.entry
  const Socket* s = e != nullptr ? words::look(*e) : nullptr;
  return s != nullptr && s->stays_on_tcp() && !s->inherited.load(std::memory_order_relaxed);
}

bool is_the_kernels(int fd) {
  const Entry* e = entry(fd, false);
  // Not held: a Socket's memory stays one's, and what is read here of another one is no worse than
  // old. PAIR preload.entry
  const Socket* s = e != nullptr ? words::look(*e) : nullptr;
  return s == nullptr || (s->state.load(std::memory_order_relaxed) == Socket::State::kKernel &&
                          !s->inherited.load(std::memory_order_relaxed));
}

void adopt(int fd, bool client, int nonblocking, bool always) {
  KeepErrno keep;
  if (!always && (config().disabled || rings_alive())) return;
  if (!always && !permits_moving()) return say_what_is_refused();
  keep_away_from(fd);
  Entry* e = entry(fd, true);
  Socket* s = e != nullptr ? take_socket() : nullptr;
  if (s == nullptr) {
    forget(fd);
    return;
  }
  s->client = client;
  s->nonblocking = nonblocking;
  // A standard stream of the C library, or of C++, reads and writes past us.
  if (fd <= STDERR_FILENO) {
    s->state.store(Socket::State::kKernel, std::memory_order_relaxed);
    say_why(fd, *s, reasons::Why::kStandardStream);
  }
  s->slot = &s->own_slot;
  s->fds.store(1, std::memory_order_relaxed);
  // PAIR preload.refs: publishes a Socket that can be held
  words::publish(s->refs, 1);
  // PAIR preload.entry: publishes the Socket
  drop(words::swap(*e, s), fd);
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
  if (Held s = hold(fd)) s->share();
}

bool duplicate_entry(int from, int to) {
  Held s = hold(from);
  if (!s) {
    forget(to);
    return true;
  }
  Entry* e = entry(to, true);
  if (e == nullptr) return false;
  keep_away_from(to);
  s->fds.fetch_add(1, std::memory_order_relaxed);
  s->refs.fetch_add(1, std::memory_order_relaxed);
  // PAIR preload.entry: publishes the Socket
  drop(words::swap(*e, s.get()), to);
  return true;
}

void forget(int fd) {
  if (!known(fd)) return;
  KeepErrno keep;
  // PAIR preload.entry: nobody finds it any more
  drop(words::swap(*entry(fd, false), nullptr), fd);
}

void forget_range(unsigned first, unsigned last) {
  for (unsigned c = first / kChunk; c < kChunks && c <= last / kChunk; ++c) {
    if (words::look(chunks[c]) == nullptr) continue;  // PAIR preload.chunk
    const unsigned from = std::max(first, c * kChunk);
    const unsigned to = std::min(last, c * kChunk + kChunk - 1);
    for (unsigned fd = from; fd <= to; ++fd) forget(static_cast<int>(fd));
  }
}

void for_each_socket(void (*f)(int, Socket&, void*), void* argument) {
  for (unsigned c = 0; c < kChunks; ++c) {
    if (words::look(chunks[c]) == nullptr) continue;  // PAIR preload.chunk
    for (unsigned i = 0; i < kChunk; ++i) {
      const int fd = static_cast<int>(c * kChunk + i);
      if (Held s = hold(fd)) f(fd, *s, argument);
    }
  }
}

int descriptor_of(Socket& s) {
  KeepErrno keep;
  struct {
    Socket* socket;
    int fd;
  } wanted{&s, -1};
  for_each_socket(
      [](int fd, Socket& one, void* argument) {
        auto* w = static_cast<decltype(wanted)*>(argument);
        if (&one == w->socket && sys::fcntl(fd, F_GETFD) >= 0) w->fd = fd;
      },
      &wanted);
  return wanted.fd;
}

}  // namespace clan::preload
