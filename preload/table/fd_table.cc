#include "table/fd_table.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "clan/face/reasons.h"
#include "os/config.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/buffers.h"
#include "table/internal_fds.h"
#include "table/open_file.h"

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
  Entry* chunk = words::load_acquire(slot);  // PAIR preload.chunk
  if (chunk == nullptr) {
    if (!make) return nullptr;
    void* memory = sys::mmap(nullptr, kChunk * sizeof(Entry), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    chunk = static_cast<Entry*>(memory);
    Entry* expected = nullptr;
    // PAIR preload.chunk: publishes zeroed entries
    if (!words::cas(slot, expected, chunk)) {
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
  // PAIR preload.refs: sees what all holders have done
  if (words::subtract(s->refs, 1) != 1) return;
  KeepErrno keep;
  if (s->offer_fd.get() >= 0 || s->window_fd.get() >= 0 || s->offer_name.get() != 0) {
    withdraw_offer(*s);
  }
  // relaxed: the last thread that holds it
  let_go_of_remote(*s);
  unsay(*s);
  discount_pipe(*s);
  count_for_test(*s);
  give_back_socket(s);
}

/// the descriptor that the calling thread closes, see Closing
constinit thread_local int t_closing __attribute__((tls_model("initial-exec"))) = -1;

/// marks table entries that are being closed: a Socket that nobody can hold; null: none yet
std::atomic<Socket*> closing_mark{nullptr};

bool is_closing(const Socket* s) {
  return s != nullptr && s == words::load_acquire(closing_mark);  // PAIR preload.closing_mark
}

// Null: no memory.
Socket* mark_of_closing() {
  Socket* mark = words::load_acquire(closing_mark);  // PAIR preload.closing_mark
  if (mark != nullptr) return mark;
  Socket* none = nullptr;
  mark = take_socket();
  // PAIR preload.closing_mark: publishes a Socket without references
  if (mark == nullptr || words::cas(closing_mark, none, mark)) return mark;
  give_back_socket(mark);
  return none;
}

// Removes the mark. PAIR preload.entry: the same
void end_closing(Entry& e, Socket* mark) { (void)words::cas(e, mark, nullptr); }

// False: the calling thread closes it, or it takes long: a close may wait for its peer (SO_LINGER)
// with the number free, or a handler has jumped out of it.
bool waits_for_close(int fd, Entry& e, Socket* mark, std::uint64_t* until) {
  constexpr std::uint64_t kMomentNs = 10'000'000;
  if (t_closing == fd) return false;
  const std::uint64_t now = monotonic_ns();
  if (*until == 0) *until = now + kMomentNs;
  if (now < *until) return sched_yield(), true;
  end_closing(e, mark);
  return false;
}

void drop(Socket* s, int fd) {
  if (s == nullptr || is_closing(s)) return;
  const DeferSignals undisturbed;
  if (s->is_watched()) hooks.left_descriptor(*s, fd);
  // PAIR preload.refs: the same, for descriptors
  if (words::subtract(s->fds, 1) == 1) {
    const bool others = leave_slot(*s);
    if (s->shared()) hooks.last_close(fd, *s, others);
    if (s->lost_refs) use_slot_no_more(*s);
  }
  release(s);
}

// Without a reference: the memory stays a Socket's, and another one's state is no worse than stale.
const Socket* glance(int fd) {
  const Entry* e = entry(fd, false);
  return e != nullptr ? words::load_acquire(*e) : nullptr;  // PAIR preload.entry
}

}  // namespace

SocketRef::~SocketRef() {
  if (s_ != nullptr) release(s_);
}

SocketRef acquire(int fd, bool waits) {
  Entry* e = entry(fd, false);
  if (e == nullptr) return SocketRef();
  for (std::uint64_t until = 0;;) {
    Socket* s = words::load_acquire(*e);  // PAIR preload.entry
    if (s == nullptr) return SocketRef();
    int refs = s->refs.load(std::memory_order_relaxed);
    while (refs > 0 && !words::cas(s->refs, refs, refs + 1)) {
    }
    if (refs <= 0) {  // going: the entry is about to change
      if (is_closing(s) && (!waits || !waits_for_close(fd, *e, s, &until))) return SocketRef();
      continue;
    }
    if (words::load_acquire(*e) == s) return SocketRef(s);  // PAIR preload.entry
    release(s);
  }
}

bool known(int fd) {
  const Socket* s = glance(fd);
  return s != nullptr && !is_closing(s);
}

bool no_set_need_know(int fd) {
  const Socket* s = glance(fd);
  return s != nullptr && s->stays_on_tcp();
}

bool is_the_kernels(int fd) {
  const Socket* s = glance(fd);
  return s == nullptr || s->state.load(std::memory_order_relaxed) == Socket::State::kKernel;
}

void adopt(int fd, bool client, int nonblocking) {
  KeepErrno keep;
  if (config().disabled) return;
  if (!permits_moving()) return say_what_is_refused();
  Entry* e = entry(fd, true);
  if (e == nullptr) return forget(fd);
  // The C library's standard streams read and write past us.
  const bool is_standard = fd <= STDERR_FILENO;
  Socket* before = nullptr;
  lock_sockets();
  Socket* const s = take_socket_under_lock();
  if (s != nullptr) {
    s->client = client;
    s->nonblocking = nonblocking;
    if (is_standard) s->state.store(Socket::State::kKernel, std::memory_order_relaxed);
    s->fds.store(1, std::memory_order_relaxed);
    // PAIR preload.refs: publishes a Socket that can be held
    words::store_release(s->refs, 1);
    // PAIR preload.entry: publishes the Socket
    before = words::swap(*e, s);
  }
  unlock_sockets();
  if (s == nullptr) return forget(fd);
  drop(before, fd);
  if (const SocketRef held = acquire(fd); is_standard && held)
    say_why(fd, *held, reasons::Why::kStandardStream);
}

void probe(int fd) {
  KeepErrno keep;
  if (acquire(fd)) return;
  const int domain = sys::socket_option(fd, SO_DOMAIN);
  if (domain != AF_INET && domain != AF_INET6) return;
  const int protocol = sys::socket_option(fd, SO_PROTOCOL);
  if (protocol != IPPROTO_TCP && protocol != 0) return;
  if (sys::socket_option(fd, SO_TYPE) != SOCK_STREAM) return;
  adopt(fd, false, -1);
}

bool duplicate_entry(int from, int to) {
  SocketRef s = acquire(from);
  if (!s) {
    forget(to);
    return true;
  }
  Entry* e = entry(to, true);
  if (e == nullptr) return false;
  s->fds.fetch_add(1, std::memory_order_relaxed);
  s->refs.fetch_add(1, std::memory_order_relaxed);
  // PAIR preload.entry: publishes the Socket
  drop(words::swap(*e, s.get()), to);
  return true;
}

void forget(int fd) {
  if (!known(fd)) return;
  KeepErrno keep;
  Socket* const then = t_closing == fd ? mark_of_closing() : nullptr;
  // PAIR preload.entry: unpublishes it
  drop(words::swap(*entry(fd, false), then), fd);
}

Closing::Closing(int fd) : fd_(-1), before_(t_closing) {
  if (const SocketRef s = acquire(fd); s && s->shared()) fd_ = t_closing = fd;
}

Closing::~Closing() {
  t_closing = before_;
  Entry* const e = fd_ >= 0 ? entry(fd_, false) : nullptr;
  // PAIR preload.closing_mark
  if (Socket* const mark = words::load_acquire(closing_mark); e != nullptr && mark != nullptr)
    end_closing(*e, mark);
}

void forget_range(unsigned first, unsigned last) {
  for (unsigned c = first / kChunk; c < kChunks && c <= last / kChunk; ++c) {
    if (words::load_acquire(chunks[c]) == nullptr) continue;  // PAIR preload.chunk
    const unsigned from = std::max(first, c * kChunk);
    const unsigned to = std::min(last, c * kChunk + kChunk - 1);
    for (unsigned fd = from; fd <= to; ++fd) forget(static_cast<int>(fd));
  }
}

void for_each_socket(void (*f)(int, Socket&, void*), void* argument) {
  for (unsigned c = 0; c < kChunks; ++c) {
    if (words::load_acquire(chunks[c]) == nullptr) continue;  // PAIR preload.chunk
    for (unsigned i = 0; i < kChunk; ++i) {
      const int fd = static_cast<int>(c * kChunk + i);
      if (SocketRef s = acquire(fd)) f(fd, *s, argument);
    }
  }
}

int descriptor_of(Socket& s) {
  KeepErrno keep;
  int found = -1;
  for_each_socket([&](int fd, Socket& one) {
    if (&one == &s && sys::fcntl(fd, F_GETFD) >= 0) found = fd;
  });
  return found;
}

}  // namespace clan::preload
