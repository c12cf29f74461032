#include "demote/resend.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/socket_face.h"
#include "demote/demote_steps.h"
#include "demote/handback.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "tcp/aborted.h"

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
  DeferSignals undisturbed_;
};

// Sends it again, by TCP. Holds the socket until all is sent, by this process or another.
class Resend {
 public:
  Resend(SocketRef s, int fd, int given, std::int32_t closer)
      : s_(std::move(s)), fd_(fd), given_(given), closer_(closer) {}
  ~Resend() {
    if (given_ >= 0) sys::close(given_);
    if (!taken_) resent(*s_, closer_);
    // Behind all that, and behind the word that it is over: shutdown() says kEnding, and then looks
    // for that word.
    if (!taken_ && (state_of(s_->mine()) & socket_face::kEnding) != 0)
      sys::call(SYS_shutdown, fd_, SHUT_WR);
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
    source_.open(fd_, given_);
    return fd_ >= 0 && source_.open_pipe(*s_);
  }
  // A thread is going to finish it.
  void list() {
    const ResendsGuard guard;
    next_ = std::exchange(behind, this);
    listed_ = true;
    behind_count.fetch_add(1, std::memory_order_relaxed);  // relaxed: a number alone
  }
  // By that thread: it is the one that sends, now.
  void is_mine() {
    const std::int32_t me = OpenFileState::kSendsAgain | closer_id();
    taken_ = !hand_resend_on(s_->open_file().sends, closer_, me);
    closer_ = me;
  }
  Resend* next() const { return next_; }
  // It goes on in the parent: this is a copy in a child.
  void disown() {
    if (given_ >= 0) sys::close(given_);
    sys::close(fd_);
    source_.close();
    const SocketRef gone(std::move(s_));
  }
  // The other end is to see that something is missing.
  void give_up() const { reset_connection(fd_); }
  // False: TCP takes no more for now, or there is no more to be had.
  bool run(bool may_wait) {
    for (;;) {
      if (taken_) return true;
      switch (step()) {
        case SentAgain::kSome:
          bytes_resent.fetch_add(source_.count(), std::memory_order_relaxed);  // relaxed: a number
          break;
        case SentAgain::kNoRoom: {
          if (!may_wait) return false;
          pollfd p{fd_, POLLOUT, 0};
          sys::poll(&p, 1, -1);
          break;
        }
        case SentAgain::kBroken: give_up(); return true;
        case SentAgain::kNobody: return true;
        case SentAgain::kAll:
          if (s_->pipe.page().ends[s_->pipe.end()].sender.ended.load(std::memory_order_relaxed) ==
              1)
            sys::call(SYS_shutdown, fd_, SHUT_WR);
          return true;
      }
    }
  }

 private:
  SentAgain step() {
    OpenFileState& slot = s_->open_file();
    // PAIR preload.resent: said before the first byte
    const std::uint64_t given = words::load_acquire(slot.again.given);
    if (given == 0) return SentAgain::kBroken;
    source_.begin(given - 1);
    if (std::exchange(recounts_, false) && !count_resent(slot.again, ResendSource::kMost, source_))
      return SentAgain::kBroken;
    return send_some_again(slot.again, source_);
  }

  SocketRef s_;
  int fd_;  ///< a descriptor of our own
  int given_;
  std::int32_t closer_;     ///< of the socket's sends
  Resend* next_ = nullptr;  ///< in `behind`
  bool listed_ = false, taken_ = false;
  bool recounts_ = true;  ///< perhaps from one that was killed
  char bytes_[ResendSource::kMost];
  ResendSource source_{bytes_};
};

int copy_of(int fd) {
  const auto copy = [fd] { return static_cast<int>(sys::fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  const int first = copy();
  return first < 0 && errno == EMFILE && give_up_ours() ? copy() : first;
}

void* resend_rest(void* argument) {
  auto* resend = static_cast<Resend*>(argument);
  resend->is_mine();
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

// In the place of a process that was killed.
void go_on_with_resend(int fd, Socket& s) {
  const std::int32_t us = OpenFileState::kSendsAgain | closer_id();
  HandedBack given;
  if (!take_resend_over(s, us, &given)) return;
  // PAIR preload.resent: of one that has not said it, the other end has done its part
  if (words::load_acquire(s.open_file().again.given) == 0) {
    if (given.memfd >= 0) sys::close(given.memfd);
    resent(s, us);
  } else {
    resend(fd, s, given.memfd, us);
  }
}

}  // namespace

constinit std::atomic<std::uint64_t> bytes_resent{0};

bool ResendSource::open_pipe(const Socket& s) {
  auto pipe = s.pipe.at_other_end();
  if (!pipe) return false;
  theirs_ = std::move(*pipe);
  theirs_.writer_has_gone();  // nobody sends: what is there is at most a ring
  return true;
}

bool ResendSource::sent(std::uint64_t* bytes) const { return sent_by_tcp(fd_, bytes); }

long ResendSource::fetch(std::uint64_t at) {
  if (at >= given_ && !theirs_) return 0;
  if (at >= given_) return theirs_.copy_aside(&place_, at - given_, bytes_, kMost);
  const std::uint64_t from = sizeof(TakenHead) + at;
  const long n = sys::call(SYS_pread64, file_, bytes_, std::min(kMost, given_ - at), from);
  return n > 0 ? n : -1;
}

SentAgain ResendSource::send(std::uint64_t at) {
  count_ = 0;
  const long n = fetch(at);
  if (n <= 0) return n == 0 ? SentAgain::kAll : SentAgain::kBroken;
  const ssize_t sent =
      sys::send(fd_, bytes_, static_cast<std::size_t>(n), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) return count_ = static_cast<std::uint64_t>(sent), SentAgain::kSome;
  if (sent < 0 && errno == EAGAIN) return SentAgain::kNoRoom;
  return sent < 0 && errno == EINTR ? SentAgain::kSome : SentAgain::kNobody;
}

void resent(Socket& s, std::int32_t closer) {
  OpenFileState::open(s.open_file().sends, closer);
  // PAIR preload.resending: all has been sent. Behind the open gate: see resends()
  s.resending.store(false, std::memory_order_release);
  settle(s);
}

void note_given(int fd, Socket& s, int file) {
  auto& again = s.open_file().again;
  struct stat st {};
  std::uint64_t bytes = 0, most = 0, none = 0, no_file = 0;
  if (file >= 0 && sys::fstat(file, &st) == 0)
    bytes = static_cast<std::uint64_t>(st.st_size) - sizeof(TakenHead);
  // More than has ever been sent to it: no byte of that is.
  if (sent_by_tcp(fd, &most) && bytes > most) return;
  const std::uint64_t where =
      static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint32_t>(file);
  if (file >= 0) words::cas(again.file, no_file, where);
  words::cas(again.given, none, bytes + 1);  // PAIR preload.resent: before the first byte
}

void resend(int fd, Socket& s, int given, std::int32_t closer) {
  note_given(fd, s, given);
  s.refs.fetch_add(1, std::memory_order_relaxed);
  auto* resend = new (std::nothrow) Resend(SocketRef(&s), copy_of(fd), given, closer);
  if (resend == nullptr || !resend->open()) {
    break_off(fd, s, "out of memory or descriptors: a connection could not be taken back to TCP");
    if (resend == nullptr) {
      if (given >= 0) sys::close(given);
      s.refs.fetch_sub(1, std::memory_order_relaxed);  // our caller holds another
      resent(s, closer);
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

bool take_resend_over(Socket& s, std::int32_t us, HandedBack* given) {
  KeepErrno keep;
  OpenFileState& slot = s.open_file();
  const std::uint64_t now = words::load_acquire(slot.sends);  // PAIR preload.gate: sees whose it is
  if (!OpenFileState::is_resend(now)) return false;
  if (!closer_has_died(now)) return false;
  // PAIR preload.resent: as in a step
  const std::uint64_t bytes = words::load_acquire(slot.again.given);
  // PAIR preload.resent: of one that has it
  std::uint64_t file = words::load_acquire(slot.again.file);
  if (bytes == 0) {
    *given = given_back(s);
    // PAIR preload.resent: as in a step
  } else if (words::load_acquire(slot.again.resent) < bytes - 1) {
    given->memfd = file_of_given(s, file);
    if (given->memfd < 0) *given = given_back(s);
    given->lost = given->memfd < 0;
  }
  const std::uint64_t where =
      static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint32_t>(given->memfd);
  // First: this one may be killed, too.
  if (given->memfd >= 0) words::cas(slot.again.file, file, where);  // PAIR preload.resent
  if (hand_resend_on(slot.sends, static_cast<std::int32_t>(now >> OpenFileState::kCloser), us))
    return true;
  if (given->memfd >= 0) sys::close(given->memfd);
  return false;
}

bool resends(int fd, Socket& s) {
  OpenFileState& slot = s.open_file();
  // PAIR preload.gate: sees what was sent before it was opened
  const auto is_resend = [&] { return OpenFileState::is_resend(words::load_acquire(slot.sends)); };
  if (!is_resend() && !s.is_resending()) return false;
  KeepErrno keep;
  // Said before it is looked for again: a thread that opens the gate takes that back behind it.
  s.resending.store(true, std::memory_order_seq_cst);  // PAIR preload.resending: as in settle()
  const bool gone = (state_of(s.mine()) & socket_face::kGone) != 0;
  if (gone && is_resend()) go_on_with_resend(fd, s);
  if (is_resend()) return true;
  // PAIR preload.resending: all has been sent. seq_cst: settle() reads `back_in` next, and a thread
  // that sets `back_in` then reads this
  s.resending.store(false, std::memory_order_seq_cst);
  settle(s);
  return false;
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
  const auto left = [] { return words::load_acquire(behind_count); };
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
