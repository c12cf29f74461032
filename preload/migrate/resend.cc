#include "migrate/resend.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "clan/clock.h"
#include "clan/log.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/words.h"
#include "migrate/demote_end.h"
#include "migrate/returned_bytes.h"
#include "os/signals.h"
#include "os/sock_diag.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "os/tcp.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "state/internal_fds.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {
namespace {

class Resend;
Resend* behind = nullptr;  ///< those that a thread finishes
std::atomic<int> behind_count{0};
SpinLock resends_lock;

class ResendsGuard {
 public:
  ResendsGuard() { lock_resends(); }
  ~ResendsGuard() { unlock_resends(); }
  ResendsGuard(const ResendsGuard&) = delete;
  ResendsGuard& operator=(const ResendsGuard&) = delete;

 private:
  Undisturbed undisturbed_;
};

// Sends it again, by TCP. Holds the socket, and its sends closed, until all is sent.
class Resend {
 public:
  Resend(Held s, int fd, int given, std::int32_t closer)
      : s_(std::move(s)), fd_(fd), given_(given), closer_(closer) {}
  ~Resend() {
    if (given_ >= 0) sys::close(given_);
    resent(fd_, *s_, closer_);
    // Behind all that, and behind the word that it is over: shutdown() says kEnding, and then looks
    // for that word.
    if ((state_of(s_->mine()) & socket_face::kEnding) != 0) sys::call(SYS_shutdown, fd_, SHUT_WR);
    if (fd_ >= 0) sys::close(fd_);
    if (!listed_) return;
    const ResendsGuard guard;
    for (Resend** p = &behind; *p != nullptr; p = &(*p)->next_) {
      if (*p != this) continue;
      *p = next_;
      break;
    }
    words::subtract(behind_count, 1);  // PAIR preload.behind: all has been sent
  }
  Resend(const Resend&) = delete;
  Resend& operator=(const Resend&) = delete;
  // Past malloc(): a signal handler may have interrupted that, and send.
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    void* memory =
        sys::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : nullptr;
  }
  // NOLINTNEXTLINE(misc-new-delete-overloads): nobody makes one by a plain new
  static void operator delete(void* memory) { sys::munmap(memory, sizeof(Resend)); }

  bool open() {
    auto pipe = s_->pipe.at_other_end();
    if (!pipe || fd_ < 0) return false;
    theirs_ = std::move(*pipe);
    theirs_.writer_has_gone();  // nobody sends: what is there is at most a ring
    if (!sent_by_tcp(fd_, &most_given_)) most_given_ = ~std::uint64_t{0};
    return true;
  }
  // A thread is going to finish it.
  void list() {
    const ResendsGuard guard;
    next_ = std::exchange(behind, this);
    listed_ = true;
    behind_count.fetch_add(1, std::memory_order_relaxed);  // relaxed: a number alone
  }
  Resend* next() const { return next_; }
  // It goes on in the parent: this is a copy in a child.
  void disown() {
    if (given_ >= 0) sys::close(given_);
    sys::close(fd_);
    theirs_ = Pipe();
    const Held gone(std::move(s_));
  }
  // The other end is to see that something is missing.
  void give_up() const { reset_connection(fd_); }
  // False: TCP takes no more for now, or there is no more to be had.
  bool run(bool may_wait) {
    for (;;) {
      if (from_ == to_ && !fill()) {
        if (!may_wait) return false;
        nap();
        continue;
      }
      if (from_ == to_) break;
      const ssize_t n =
          sys::send(fd_, bytes_ + from_, to_ - from_, MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT));
      if (n > 0) {
        from_ += static_cast<std::size_t>(n);
        bytes_resent.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      } else if (n < 0 && errno == EAGAIN) {
        if (!may_wait) return false;
        pollfd p{fd_, POLLOUT, 0};  // the application made it non-blocking
        sys::poll(&p, 1, -1);
      } else if (n == 0 || errno != EINTR) {
        return true;  // nobody is there to read it
      }
    }
    if (s_->pipe.page().ends[s_->pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
      sys::call(SYS_shutdown, fd_, SHUT_WR);
    return true;
  }

 private:
  // False: not for now, as somebody at the other end has been stopped while it read.
  bool fill() {
    from_ = to_ = 0;
    if (given_ >= 0) {
      const long n = sys::call(SYS_pread64, given_, bytes_, sizeof bytes_, given_at_);
      if (n > 0) {
        given_at_ += n;
        to_ = static_cast<std::size_t>(n);
        if (static_cast<std::uint64_t>(given_at_) - sizeof(TakenHead) <= most_given_) return true;
        // More than has ever been sent to it: no byte of that is.
        to_ = 0;
        give_up();
      }
      sys::close(given_);
      given_ = -1;
    }
    const iovec io{bytes_, sizeof bytes_};
    const Pipe::Done done = theirs_.receive(&io, 1, false);
    to_ = done.bytes;
    if (done.err == EPROTO) give_up();
    return done.err != EBUSY;
  }

  Held s_;
  int fd_;  ///< a descriptor of our own
  int given_;
  std::int32_t closer_;  ///< of the socket's sends
  long given_at_ = sizeof(TakenHead);
  std::uint64_t most_given_ = 0;  ///< what TCP has been given: the other end had no more
  Pipe theirs_;
  Resend* next_ = nullptr;  ///< in `behind`
  bool listed_ = false;
  std::size_t from_ = 0, to_ = 0;
  char bytes_[16384];
};

int copy_of(int fd) {
  const auto copy = [fd] { return static_cast<int>(sys::fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  const int first = copy();
  return first < 0 && errno == EMFILE && give_up_ours() ? copy() : first;
}

void* resend_rest(void* argument) {
  auto* resend = static_cast<Resend*>(argument);
  resend->run(true);
  delete resend;
  return nullptr;
}

// More than TCP takes at once: a thread waits for room. Its signals are the application's threads'.
void finish_behind(Resend* resend) {
  sigset_t all, old;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_t thread;
  resend->list();
  if (::pthread_create(&thread, nullptr, resend_rest, resend) == 0) {
    ::pthread_detach(thread);
  } else {
    resend_rest(resend);
  }
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace

constinit std::atomic<std::uint64_t> bytes_resent{0};

void resent(int fd, Socket& s, std::int32_t closer) {
  {
    const ResendsGuard guard;
    // PAIR preload.resending: all has been sent
    s.resending.store(false, std::memory_order_release);
    Slot::open(s.open_file().sends, closer);
  }
  settle(fd, s);
}

void resend(int fd, Socket& s, int given, std::int32_t closer) {
  s.refs.fetch_add(1, std::memory_order_relaxed);
  auto* resend = new (std::nothrow) Resend(Held(&s), copy_of(fd), given, closer);
  if (resend == nullptr || !resend->open()) {
    log_line(LogLevel::kError,
             "fd %d: out of memory or descriptors: a connection could not be taken back to TCP; it "
             "is reset",
             fd);
    reset_connection(fd);
    s.kernel_error.set();
    if (resend == nullptr) {
      if (given >= 0) sys::close(given);
      s.refs.fetch_sub(1, std::memory_order_relaxed);  // our caller holds another
      resent(fd, s, closer);
    }
    delete resend;
    return;
  }
  if (resend->run(false)) {
    delete resend;
  } else {
    finish_behind(resend);
  }
}

bool resends(int fd, Socket& s) {
  if (!s.is_resending()) return false;
  Slot& slot = s.open_file();
  // relaxed: published by `resending`, or by fork
  std::int32_t resender = slot.resender.load(std::memory_order_relaxed);
  if (resender == 0 || resender == ::getpid()) return true;
  KeepErrno keep;
  // PAIR preload.gate: sees what was sent before it was opened
  if ((slot.sends.load(std::memory_order_acquire) & Slot::kClosed) == 0) {
    // PAIR preload.resending: all has been sent. seq_cst: settle() looks at `back_in` next, and a
    // thread that sets that looks here
    s.resending.store(false, std::memory_order_seq_cst);
    settle(fd, s);
    return false;
  }
  if (sys::exists(resender)) return true;
  // order: one of those that find it killed goes on in its place
  if (!slot.resender.compare_exchange_strong(resender, 0, std::memory_order_seq_cst)) return true;
  log_line(LogLevel::kError,
           "fd %d: the process that sent again what its peer had not read was killed; the "
           "connection is reset",
           fd);
  reset_connection(fd);
  resent(fd, s, resender);
  return false;
}

void nap_while_resending() {
  const Disturbed here;
  sys::poll(nullptr, 0, 1);
}

void lock_resends() { resends_lock.lock(); }

void unlock_resends() { resends_lock.unlock(); }

void resends_forked() {
  for (Resend* one = std::exchange(behind, nullptr); one != nullptr;) {
    Resend* next = one->next();
    one->disown();  // its memory stays: the thread that would free it is the parent's
    one = next;
  }
  behind_count.store(0, std::memory_order_relaxed);  // relaxed: the child has one thread
}

void finish_resends() {
  // PAIR preload.behind: sees that all has been sent
  const auto left = [] { return words::look(behind_count); };
  if (left() == 0) return;
  KeepErrno keep;
  for (UntilTaken patience; left() > 0 && !patience.over();) nap();
  if (left() == 0) return;
  log_line(
      LogLevel::kError,
      "this process ends, and a program that a connection was handed to has not read for ten "
      "seconds "
      "what is still to be sent there; the connection is reset (set CLAN_EXCEPT for this port)");
  const ResendsGuard guard;
  for (const Resend* one = behind; one != nullptr; one = one->next()) one->give_up();
}

}  // namespace clan::preload
