#include "demote/resend.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "state/face.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "tcp/aborted.h"

namespace clan::preload {
namespace {

class Resend;
Resend* behind = nullptr;  ///< those that threads finish
std::atomic<int> behind_count{0};
SpinLock resends_lock;

// All is sent again, or cannot be: others may send.
void resent(Socket& s) {
  OpenFileState::open(s.open_file().sends, resender_id());
  // PAIR preload.resending: all has been sent. After the gate opens: see resends()
  s.resending.store(false, std::memory_order_release);
  settle(s);
}

// What one connection sends again. Holds its socket.
class Resend {
 public:
  Resend(SocketRef s, int fd) : s_(std::move(s)), fd_(fd) {}
  ~Resend() {
    resent(*s_);
    // After all bytes, and after clearing `resending`: shutdown() sets kEnding, then checks that.
    if ((state_of(s_->mine()) & socket_face::kEnding) != 0) sys::call(SYS_shutdown, fd_, SHUT_WR);
    if (fd_ >= 0) sys::close(fd_);
    if (!listed_) return;
    const DeferSignals undisturbed;
    const std::lock_guard guard(resends_lock);
    for (Resend** p = &behind; *p != nullptr; p = &(*p)->next_) {
      if (*p != this) continue;
      *p = next_;
      break;
    }
    words::subtract(behind_count, 1);  // PAIR preload.behind: all has been sent
  }
  Resend(const Resend&) = delete;
  Resend& operator=(const Resend&) = delete;
  // Not by malloc(): a signal handler may have interrupted it.
  static void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    void* memory =
        sys::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : nullptr;
  }
  // NOLINTNEXTLINE(misc-new-delete-overloads): nobody makes one by a plain new
  static void operator delete(void* memory) { sys::munmap(memory, sizeof(Resend)); }

  bool open() {
    auto pipe = s_->pipe.at_other_end();
    if (fd_ < 0 || !pipe || !pipe->take_aside()) return false;
    theirs_ = std::move(*pipe);
    theirs_.writer_has_gone();  // nobody sends: there is at most a ring
    return true;
  }
  // Registers it for a thread to finish.
  void list() {
    const DeferSignals undisturbed;
    const std::lock_guard guard(resends_lock);
    next_ = std::exchange(behind, this);
    listed_ = true;
    behind_count.fetch_add(1, std::memory_order_relaxed);  // relaxed: a number alone
  }
  Resend* next() const { return next_; }
  // The parent goes on; this is the child's copy.
  void disown() {
    sys::close(fd_);
    theirs_ = Pipe();
    const SocketRef gone(std::move(s_));
  }
  // The peer is to see that bytes are missing.
  void give_up() const { reset_connection(fd_); }
  // False: TCP takes no more for now.
  bool run(bool may_wait) {
    for (;;) {
      if (begin_ == end_) {
        const iovec io{bytes_, sizeof bytes_};
        const Pipe::Done done = theirs_.receive(&io, 1, false);
        if (done.err != 0) return give_up(), true;
        begin_ = 0;
        end_ = done.bytes;
      }
      if (end_ == 0) {
        // relaxed: this end's own word
        if (s_->pipe.page().ends[s_->pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1)
          sys::call(SYS_shutdown, fd_, SHUT_WR);
        return true;
      }
      const ssize_t taken =
          sys::send(fd_, bytes_ + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (taken > 0) begin_ += static_cast<std::size_t>(taken);
      if (taken >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return true;  // nobody is there to read it
      if (!may_wait) return false;
      pollfd p{fd_, POLLOUT, 0};
      sys::poll(&p, 1, -1);
    }
  }

 private:
  SocketRef s_;
  int fd_;                  ///< its own descriptor
  Resend* next_ = nullptr;  ///< in `behind`
  bool listed_ = false;
  Pipe theirs_;                      ///< the pipe from the peer's end
  std::size_t begin_ = 0, end_ = 0;  ///< of `bytes_`: taken out and not sent yet
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

// Starts a thread that waits for room. Its signals stay with the application's threads.
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

std::int32_t resender_id() {
  return OpenFileState::kSendsAgain |
         static_cast<std::int32_t>(sys::name_of(static_cast<std::uint32_t>(::getpid())));
}

void resend(int fd, Socket& s) {
  s.refs.fetch_add(1, std::memory_order_relaxed);  // relaxed: our caller holds another
  auto* resend = new (std::nothrow) Resend(SocketRef(&s), copy_of(fd));
  if (resend == nullptr || !resend->open()) {
    break_off(
        fd, s,
        "what was not read cannot be sent again: no memory or descriptor, or its peer has set "
        "none aside");
    if (resend == nullptr) resent(s);
    delete resend;
  } else if (resend->run(false)) {
    delete resend;
  } else {
    finish_behind(resend);
  }
}

bool resends(int fd, Socket& s) {
  OpenFileState::Counter& sends = s.open_file().sends;
  // PAIR preload.gate: sees what was sent before it was opened
  std::uint64_t now = words::load_acquire(sends);
  if (!OpenFileState::is_resend(now) && !s.is_resending()) return false;
  const KeepErrno keep;
  if (OpenFileState::is_resend(now) && closer_has_died(now)) {
    break_off(fd, s, "a process that sent again what its peer had not read was killed");
    OpenFileState::open(sends, static_cast<std::int32_t>(now >> OpenFileState::kCloser));
  }
  // Set before the second check: a thread that opens the gate clears it afterwards.
  s.resending.store(true, std::memory_order_seq_cst);  // PAIR preload.resending: as in settle()
  now = words::load_acquire(sends);                    // PAIR preload.gate: the same
  if (OpenFileState::is_resend(now)) return true;
  // PAIR preload.resending: all has been sent. seq_cst: settle() reads `back_in` next; Dekker
  s.resending.store(false, std::memory_order_seq_cst);
  settle(s);
  return false;
}

void lock_resends() { resends_lock.lock(); }

void unlock_resends() { resends_lock.unlock(); }

void resends_forked() {
  for (Resend* one = std::exchange(behind, nullptr); one != nullptr;) {
    Resend* next = one->next();
    one->disown();  // never freed here: the parent's thread does that
    one = next;
  }
  behind_count.store(0, std::memory_order_relaxed);  // relaxed: the child has one thread
}

void finish_resends() {
  // PAIR preload.behind: sees that all has been sent
  const auto left = [] { return words::load_acquire(behind_count); };
  if (left() == 0) return;
  const KeepErrno keep;
  const std::uint64_t until = monotonic_ns() + kForOtherEndNs;
  while (left() > 0 && monotonic_ns() < until) nap();
  if (left() == 0) return;
  log_line(LogLevel::kError,
           "this process ends, and a program that a connection was handed to has not read for ten "
           "seconds what is still to be sent there; the connection is reset (set CLAN_EXCEPT for "
           "this port)");
  const DeferSignals undisturbed;
  const std::lock_guard guard(resends_lock);
  for (const Resend* one = behind; one != nullptr; one = one->next()) one->give_up();
}

}  // namespace clan::preload
