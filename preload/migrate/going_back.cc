// A moved connection goes back to TCP: before a program that knows nothing of pipes gets it (exec,
// posix_spawn), before urgent data, before SIGIO.
//
//   leaver L                                         other end Y
//   says kLeaving
//   puts its last record into the pipe, rings, kGone
//                                                    notices kLeaving at its next look at the socket
//                                                    last record, kGone
//   reads the pipe to its end, then Y's doorbells
//
// Where L goes on reading itself, that is all. Where L is about to be another program, nobody reads the pipe
// any more: Y rings once more too, and sends by TCP what is left there.
//
// Nor can such an L wait until Y looks: Y may be busy with something else, or wait for L. L then does Y's
// part itself, by a descriptor of Y's socket (pidfd_getfd). Where the kernel does not allow that, L waits.
// Bytes that Y sent by TCP before its switch and that nobody has read lie in front of the doorbells: L takes
// them out, and they are sent first.
//
// The other end may be in another pid namespace, where process and thread ids mean other processes than here.
// Whatever is found by such a number is then known by something that is the same everywhere, inode or
// contents, before it is used; what is not found stays untouched. L does Y's part only if Y's threads have
// the ids that our /proc shows, as they are what the locks of the pipe are about. Otherwise it waits for Y.
//
// A direction that never switched has nothing to take back. Both ends may leave at once.
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "clan/clock.h"
#include "clan/log.h"
#include "wait/epoll.h"
#include "state/own_descriptors.h"
#include "state/socket.h"
#include "stream/transfer.h"

namespace clan::preload {
namespace {

using socket_face::kBells;
using socket_face::kDoorbells;
using socket_face::kGivenBack;
using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kResends;
using socket_face::kSending;
using socket_face::kState;

constexpr std::uint64_t kPatienceNs = 10'000'000'000u;          ///< with the other end's program
constexpr std::uint64_t kNothing = 1, kDone = 2, kReadsOn = 3;  ///< of kGivenBack

void nap() {
  timespec ts{0, 50'000};
  sys::call(SYS_nanosleep, &ts, nullptr);
}

// Begins the memfd of bytes that were taken out of TCP unread. Whoever opens one by a number of another
// process sees that it belongs to his connection, and not to some other of a process that has that number
// here.
struct TakenHead {
  std::uint64_t magic = 0x316e656b61746e63;  // "cntaken1"
  std::uint64_t pipe = 0;                    // the inode of its memfd
  bool operator==(const TakenHead&) const = default;
};
constexpr char kTakenName[] = "clan-given-back";
constexpr char kTakenLink[] = "/memfd:clan-given-back (deleted)";

TakenHead head_of(const Socket& s) {
  TakenHead head;
  head.pipe = s.pipe.inode();
  return head;
}

// By the other end, or reset.
bool closed(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return sys::poll(&p, 1, 0) > 0;
}

// Nobody of the end may ring any more, and as many doorbells as its word says have been sent: one that was
// killed on its way was counted, and is not to be taken for a byte of the application's. `fd`: the end's.
bool count_doorbells(int fd, PipePage::Face& face) {
  if (!silence(face)) return false;
  std::uint64_t sent = 0;
  if ((state_of(face) & (kSending | kGone)) != kSending || closed(fd) || !sent_by_tcp(fd, &sent)) return true;
  sent -= face.words[socket_face::kSwitchAt].load(std::memory_order_relaxed);
  if (sent < face.words[kDoorbells].load()) face.words[kDoorbells].store(sent);
  return true;
}

// This end sends by TCP from now on; the number of its doorbells stays.
void set_gone(PipePage::Face& face) {
  face.words[kState].fetch_or(kGone, std::memory_order_acq_rel);  // PAIR face.state: publishes that number
}

// Our last record, behind all bytes, and the doorbell that tells of it. `rings` false: only if somebody else
// may owe one for bytes before that record; what we send by TCP tells of the record soon enough. A doorbell
// that its receiver has not read when it is killed makes the kernel reset the connection, and drop what it
// had sent by TCP.
void say_goodbye(int fd, Socket& s, bool rings = true) {
  auto& face = s.mine();
  // EPIPE: half-closed before, and that record is the last.
  if (!s.pipe.leave().must_ring) rings = true;  // the wish for a doorbell was somebody else's to fulfil
  if (!count_doorbells(fd, face)) {
    log_line(
        LogLevel::kError,
        "fd %d: a thread that was stopped while it used this connection keeps it from going back to TCP; "
        "the connection is reset",
        fd);
    s.kernel_error.store(true);
    set_gone(face);
    return reset_connection(fd);
  }
  if (!rings || closed(fd)) return set_gone(face);  // a doorbell would be answered with a reset
  const char byte = 0;
  face.words[kDoorbells].fetch_add(1, std::memory_order_seq_cst);
  while (sys::send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    // Its queue is full, so it does not sleep; or it is gone.
    face.words[kDoorbells].fetch_sub(1, std::memory_order_seq_cst);
    break;
  }
  set_gone(face);
}

// Both directions are TCP's again: nothing is left to be done here, nor by whoever shares the open file.
void settle(Socket& s) {
  if (!s.back_in.load() || (state_of(s.mine()) & kGone) == 0 || s.resending.load()) return;
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  slot.pinned.store(1);
  slot.pipe_fd.store(-1);
  s.state.store(Socket::State::kKernel, std::memory_order_seq_cst);  // see control_add() in epoll.cc
}

// What is read next is the kernel's.
void read_kernel(int fd, Socket& s) {
  if (const int low_water = s.low_water.load(); low_water > 1) {
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
  }
  s.back_in.store(true, std::memory_order_release);
}

// --- what the other end has not read -----------------------------------------------------------------

class Resend;
Resend* behind = nullptr;  ///< those that a thread finishes
std::atomic<int> behind_count{0};
std::atomic<std::uint64_t> bytes_resent{0};
std::atomic_flag resends_lock = ATOMIC_FLAG_INIT;

// Ten seconds, from the last time that some of it was taken.
class UntilTaken {
 public:
  bool over() {
    const std::uint64_t now = monotonic_ns(), bytes = bytes_resent.load(std::memory_order_relaxed);
    if (end_ns_ == 0 || bytes != bytes_) end_ns_ = now + kPatienceNs;
    bytes_ = bytes;
    return now >= end_ns_;
  }

 private:
  std::uint64_t end_ns_ = 0, bytes_ = 0;
};

class ResendsGuard {
 public:
  ResendsGuard() { lock_resends(); }
  ~ResendsGuard() { unlock_resends(); }
  ResendsGuard(const ResendsGuard&) = delete;
  ResendsGuard& operator=(const ResendsGuard&) = delete;

 private:
  Undisturbed undisturbed_;
};

// What was to be sent again has been, or there was none: others may send. Fork moves the counters.
void resent(Socket& s, std::int32_t closer) {
  {
    const ResendsGuard guard;
    s.resending.store(false, std::memory_order_release);
    Slot::open(s.slot.load(std::memory_order_acquire)->sends, closer);
  }
  settle(s);
}

// Sends it again, by TCP. Holds the socket, and its sends closed, until all is sent.
class Resend {
 public:
  Resend(Held s, int fd, int given, std::int32_t closer)
      : s_(std::move(s)), fd_(fd), given_(given), closer_(closer) {}
  ~Resend() {
    if (given_ >= 0) sys::close(given_);
    if (fd_ >= 0) sys::close(fd_);
    resent(*s_, closer_);
    if (!listed_) return;
    const ResendsGuard guard;
    for (Resend** p = &behind; *p != nullptr; p = &(*p)->next_) {
      if (*p != this) continue;
      *p = next_;
      break;
    }
    behind_count.fetch_sub(1);
  }
  Resend(const Resend&) = delete;
  Resend& operator=(const Resend&) = delete;

  bool open() {
    auto pipe = s_->pipe.at_other_end();
    if (!pipe) return false;
    theirs_ = std::move(*pipe);
    return true;
  }
  // A thread is going to finish it.
  void list() {
    const ResendsGuard guard;
    next_ = std::exchange(behind, this);
    listed_ = true;
    behind_count.fetch_add(1);
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
  // False: TCP takes no more for now.
  bool run(bool may_wait) {
    for (;;) {
      if (from_ == to_) fill();
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
    if (s_->pipe.page().ends[s_->pipe.end()].sender.ended.load() == 1) sys::call(SYS_shutdown, fd_, SHUT_WR);
    return true;
  }

 private:
  void fill() {
    from_ = to_ = 0;
    if (given_ >= 0) {
      const long n = sys::call(SYS_pread64, given_, bytes_, sizeof bytes_, given_at_);
      if (n > 0) {
        given_at_ += n;
        to_ = static_cast<std::size_t>(n);
        return;
      }
      sys::close(given_);
      given_ = -1;
    }
    const iovec io{bytes_, sizeof bytes_};
    to_ = theirs_.receive(&io, 1, false).bytes;
  }

  Held s_;
  int fd_;  ///< a descriptor of our own
  int given_;
  std::int32_t closer_;  ///< of the socket's sends
  long given_at_ = sizeof(TakenHead);
  Pipe theirs_;
  Resend* next_ = nullptr;  ///< in `behind`
  bool listed_ = false;
  std::size_t from_ = 0, to_ = 0;
  char bytes_[16384];
};

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

// What the other end, which leaves, has to say of the bytes it has not read.
struct Given {
  std::uint64_t word = 0;
  int memfd = -1;     ///< of those it has taken from TCP
  bool lost = false;  ///< it has taken some, which cannot be had
};
Given given_back(int fd, Socket& s) {
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  auto& word = s.theirs().words[kGivenBack];
  Given given;
  // PAIR face.given
  while ((given.word = word.load(std::memory_order_acquire)) == 0 && monotonic_ns() < end) {
    if (closed(fd)) return given;
    nap();
  }
  if (given.word <= kReadsOn) return given;
  const auto process = static_cast<unsigned>(given.word >> 32);
  given.memfd = open_memfd_of(process, static_cast<int>(given.word & 0x7fff'ffffu), kTakenLink, O_RDONLY);
  TakenHead found;
  if (sys::call(SYS_pread64, given.memfd, &found, sizeof found, 0) != sizeof found ||
      !(found == head_of(s))) {
    if (given.memfd >= 0) sys::close(given.memfd);
    given.memfd = -1;
    given.lost = true;
  }
  return given;
}

// What both ends do of this. `fd`'s other end has said kLeaving, or we have.
void go(int fd, Socket& s) {
  auto sends = [&]() -> auto& { return s.slot.load(std::memory_order_acquire)->sends; };  // fork moves them
  // A switch that is under way ends one way or the other; none begins after kLeaving has been seen.
  UntilOpen until(fd, s);
  while ((sends().load(std::memory_order_acquire) & Slot::kClosed) != 0) (void)until.wait(sends());
  if ((state_of(s.mine()) & kSending) == 0) {
    (void)silence(s.mine());  // who has not switched does not ring
    set_gone(s.mine());
    return;
  }
  const std::int32_t us = ::getpid();  // another thread may finish this
  while (!Slot::try_close(sends(), us)) {
    if (until.wait(sends())) continue;
    // Somebody was killed, or is stopped, in the middle of a send by TCP.
    CLAN_WARN("fd %d: a send that does not end keeps it from going back to TCP; it is reset", fd);
    reset_connection(fd);
    s.kernel_error.store(true);
    return set_gone(s.mine());
  }
  if ((state_of(s.theirs()) & kLeaving) == 0) {
    say_goodbye(fd, s);
    Slot::open(sends(), us);
    return;
  }
  s.slot.load(std::memory_order_acquire)->resender.store(us);
  s.resending.store(true, std::memory_order_release);
  const Given given = given_back(fd, s);
  if (given.word == kDone || given.word == kReadsOn) {
    // Sending again what it still reads in the pipe would overtake that.
    if (given.word == kReadsOn) say_goodbye(fd, s, false);
    return resent(s, us);
  }
  if (given.lost) {
    log_line(
        LogLevel::kError,
        "fd %d: its peer goes back to TCP, and holds bytes of ours that cannot be had from it (another pid "
        "namespace?); the connection is reset (set CLAN_EXCEPT for this port)",
        fd);
    // By its part in this, done by us: the application is told of a reset, not of an end.
    s.theirs().words[kState].fetch_or(socket_face::kReset, std::memory_order_acq_rel);
    s.kernel_error.store(true);
    set_gone(s.mine());
    resent(s, us);
    return reset_connection(fd);
  }
  s.mine().words[kState].fetch_or(kResends, std::memory_order_acq_rel);
  say_goodbye(fd, s);
  s.refs.fetch_add(1, std::memory_order_relaxed);
  auto* resend = new (std::nothrow)
      Resend(Held(&s), static_cast<int>(sys::fcntl(fd, F_DUPFD_CLOEXEC, 0)), given.memfd, us);
  if (resend == nullptr || !resend->open()) {
    log_line(LogLevel::kError, "out of memory or descriptors: a connection could not be taken back to TCP");
    const linger at_once{1, 0};
    sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    sys::call(SYS_shutdown, fd, SHUT_RDWR);
    if (resend == nullptr) {
      s.refs.fetch_sub(1, std::memory_order_relaxed);  // our caller holds another
      resent(s, us);
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

// Shows the other end what take_unread() has put into `taken`.
void give_back(Socket& s, int taken) {
  auto& word = s.mine().words[kGivenBack];
  if (word.load(std::memory_order_relaxed) != 0) return;
  const long bytes = sys::call(SYS_lseek, taken, 0, SEEK_CUR);
  const std::uint64_t where =
      static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint32_t>(taken);
  const bool none = bytes <= static_cast<long>(sizeof(TakenHead));
  word.store(none ? kNothing : where, std::memory_order_release);  // PAIR face.given
}

// Reads what is left of TCP before the other end's switch. True: all of it is in `to`.
bool take_unread(int fd, Socket& s, int to) {
  char bytes[16384];
  while (!s.drained.load(std::memory_order_acquire)) {
    Draining draining(fd, s);
    std::size_t certain = 0;
    if (left_in_tcp(fd, s, &certain) == 0) break;
    if (certain == 0) return false;
    const ssize_t n = sys::recv(fd, bytes, std::min(certain, sizeof bytes), MSG_DONTWAIT);
    note_end(s, n);
    if (n <= 0) return false;
    for (ssize_t at = 0; at < n;) {
      const long k = sys::call(SYS_write, to, bytes + at, n - at);
      if (k <= 0) return false;
      at += k;
    }
  }
  return true;
}

}  // namespace

void reset_connection(int fd) {
  const sockaddr nowhere{AF_UNSPEC, {}};
  sys::call(SYS_connect, fd, &nowhere, sizeof nowhere);
}

void before_disconnect(Socket& s) {
  const bool both_ended = s.pipe.page().ends[s.pipe.end()].sender.ended.load() == 1 &&
                          s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load() == 1;
  if (!both_ended) s.mine().words[kState].fetch_or(socket_face::kReset, std::memory_order_acq_rel);
  (void)silence(s.mine());  // a doorbell now would be a byte of the next connection
}

void disconnected(int fd, Socket& s) {
  KeepErrno keep;
  const Undisturbed undisturbed;
  (void)silence(s.mine());
  while (s.moving.test_and_set(std::memory_order_acquire)) sched_yield();
  s.mine().words[kState].fetch_or(socket_face::kClosed, std::memory_order_acq_rel);
  set_gone(s.mine());
  read_kernel(fd, s);
  s.anew.store(true);
  settle(s);
  s.moving.clear(std::memory_order_release);
  went_back(s);
}

bool answer_leaving(int fd, Socket& s) {
  if (put_off(fd, s)) return false;
  const Undisturbed undisturbed;
  if (s.moving.test_and_set(std::memory_order_acquire)) return true;  // another thread is at it
  KeepErrno keep;
  if ((state_of(s.mine()) & kGone) == 0) {
    CLAN_DEBUG("fd %d goes back to TCP, as its peer wants", fd);
    go(fd, s);
  }
  s.moving.clear(std::memory_order_release);
  return true;
}

bool came_back(int fd, Socket& s) {
  if (s.back_in.load(std::memory_order_acquire)) return true;
  const std::uint64_t theirs = state_of(s.theirs());
  // An error that the kernel has told us it will not tell the application, and behind it nothing comes by
  // TCP.
  if ((theirs & kGone) == 0 || s.error_taken.load()) return false;
  KeepErrno keep;
  // Below, the doorbell is read that would remind us of it.
  if ((theirs & kLeaving) != 0 && (state_of(s.mine()) & kGone) == 0 && !answer_leaving(fd, s)) return false;
  if ((theirs & kSending) != 0) {
    if (!s.drained.load(std::memory_order_acquire) || s.pipe.front() != PipeFront::kLeave) return false;
    if (!swallow_doorbells(fd, s) || s.error_taken.load()) return false;
  }
  read_kernel(fd, s);
  settle(s);
  return true;
}

namespace {

// --- the other end's part, done by us -----------------------------------------------------------------

// The process is in our pid namespace, not in one below it.
bool counts_as_we_do(const char* pid) {
  char path[64], ours[64], theirs[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/ns/pid", pid);
  const long n = sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", ours, sizeof ours);
  const long m = sys::call(SYS_readlinkat, AT_FDCWD, path, theirs, sizeof theirs);
  return n > 0 && n == m && std::memcmp(ours, theirs, static_cast<std::size_t>(n)) == 0;
}

// A descriptor of the socket that `link` names, from a process that has it. -1: it has not, or may not be
// asked.
int socket_of(const char* pid, const char* link) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%.16s/fd", pid);
  const int directory =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory < 0) return -1;
  int found = -1;
  DirectoryReader names(directory);
  while (const char* name = found < 0 ? names.next() : nullptr) {
    char text[64];
    const long n = sys::call(SYS_readlinkat, directory, name, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    if (std::strcmp(text, link) != 0) continue;
    if (!counts_as_we_do(pid)) break;
    const int process = static_cast<int>(sys::call(SYS_pidfd_open, std::atoi(pid), 0));
    if (process < 0) break;
    found = static_cast<int>(sys::call(SYS_pidfd_getfd, process, std::atoi(name), 0));
    sys::close(process);
    // It may have closed that, or been followed by another of its number.
    struct stat st {};
    if (found < 0) continue;
    const bool known = sys::fstat(found, &st) == 0 && S_ISSOCK(st.st_mode);
    std::snprintf(text, sizeof text, "socket:[%lu]", static_cast<unsigned long>(st.st_ino));
    if (known && std::strcmp(text, link) == 0) continue;
    sys::close(found);
    found = -1;
  }
  sys::close(directory);
  return found;
}

// The other end's. -1: not to be had.
int their_socket(int fd) {
  const std::uint32_t inode = proc_is_ours() ? inode_of_other_end(fd) : 0;
  const int proc =
      inode == 0
          ? -1
          : static_cast<int>(sys::call(SYS_openat, AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (proc < 0) return -1;
  char link[32];
  std::snprintf(link, sizeof link, "socket:[%u]", inode);
  int found = -1;
  DirectoryReader processes(proc);
  while (const char* pid = found < 0 ? processes.next() : nullptr) {
    if (*pid >= '1' && *pid <= '9') found = socket_of(pid, link);
  }
  sys::close(proc);
  return found;
}

bool send_all(int to, const char* bytes, std::size_t count, std::uint64_t deadline_ns) {
  for (std::size_t at = 0; at < count;) {
    const ssize_t n = sys::send(to, bytes + at, count - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
    } else if (n < 0 && errno == EAGAIN && monotonic_ns() < deadline_ns) {
      pollfd p{to, POLLOUT, 0};
      sys::poll(&p, 1, 10);
    } else if (n == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

// What the other end has sent by TCP after it had gone by itself, behind what lies in the pipe.
void take_later(int fd, int to) {
  char bytes[16384];
  for (long n; (n = sys::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
    sys::call(SYS_write, to, bytes, n);
}

// From `at` on.
bool send_file(int to, int from, long at, std::uint64_t deadline_ns) {
  char bytes[16384];
  for (long n; (n = sys::call(SYS_pread64, from, bytes, sizeof bytes, at)) > 0; at += n) {
    if (!send_all(to, bytes, static_cast<std::size_t>(n), deadline_ns)) return false;
  }
  return true;
}

// Takes the other end back to TCP without its help. `taken`: what it sent by TCP and nobody has read.
bool do_their_part(int fd, Socket& s, int taken, std::uint64_t deadline_ns) {
  const int socket = their_socket(fd);
  if (socket < 0) return false;
  auto other = s.pipe.at_other_end();
  bool well = static_cast<bool>(other);
  if (well) {
    const int later = static_cast<int>(sys::call(SYS_memfd_create, "clan-later", MFD_CLOEXEC));
    const bool silent = count_doorbells(socket, s.theirs());
    (void)other->leave();  // EPIPE: it has gone, or half-closed
    well = silent && swallow_doorbells(fd, s);
    if ((state_of(s.theirs()) & kGone) != 0) take_later(fd, later);
    well = well && send_file(socket, taken, sizeof(TakenHead), deadline_ns);
    char bytes[16384];
    const iovec io{bytes, sizeof bytes};
    for (std::size_t n; well && (n = s.pipe.receive(&io, 1, false).bytes) > 0;) {
      well = send_all(socket, bytes, n, deadline_ns);
    }
    well = well && send_file(socket, later, 0, deadline_ns);
    if (later >= 0) sys::close(later);
    if (s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load() == 1)
      sys::call(SYS_shutdown, socket, SHUT_WR);
    set_gone(s.theirs());
    s.mine().words[kGivenBack].store(kDone, std::memory_order_release);  // PAIR face.given
  }
  sys::close(socket);
  return well;
}

// Until both directions are clean for somebody who knows TCP alone.
void wait_until_clean(int fd, Socket& s) {
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  const int taken = static_cast<int>(sys::call(SYS_memfd_create, kTakenName, MFD_CLOEXEC));
  const TakenHead head = head_of(s);
  sys::call(SYS_write, taken, &head, sizeof head);
  bool tried = false;
  std::uint64_t before = kReadsOn;  // not any more, if the other end has not acted on it yet
  s.mine().words[kGivenBack].compare_exchange_strong(before, 0, std::memory_order_acq_rel);
  auto take_rest = [&] {
    // It has gone and sends the rest, perhaps when there is room for it in TCP.
    const bool resends = (state_of(s.theirs()) & (kGone | kResends)) == (kGone | kResends);
    if (resends && s.drained.load(std::memory_order_acquire) && swallow_doorbells(fd, s)) return true;
    if (!take_unread(fd, s, taken)) return false;
    if (!std::exchange(tried, true) && do_their_part(fd, s, taken, end)) return true;
    give_back(s, taken);
    return false;
  };
  while (!came_back(fd, s)) {
    if ((state_of(s.theirs()) & kSending) == 0) {
      // It has not switched, and will not any more.
      set_gone(s.theirs());
      give_back(s, taken);
      if (came_back(fd, s)) break;
    } else if (take_rest()) {
      break;
    }
    if (closed(fd)) {
      if (s.pipe.front() == PipeFront::kBytes) {
        CLAN_WARN("fd %d: its peer has closed; bytes that were not read cannot go back to TCP", fd);
      }
      break;
    }
    if (monotonic_ns() > end) {
      log_line(
          LogLevel::kError,
          "fd %d: the program at the other end does not answer; its connection cannot go back to TCP and is "
          "reset (set CLAN_EXCEPT for this port)",
          fd);
      reset_connection(fd);
      break;
    }
    nap();
  }
  if (taken >= 0) sys::close(taken);
  read_kernel(fd, s);
}

// Under s.moving. False: nobody has come into the pipe; who comes now sees that we have gone.
bool say_leaving(int fd, Socket& s, bool reads_on) {
  // Who is sending just now rings, and so tells of bytes in the pipe what reads and signals by TCP would not.
  if (reads_on) (void)s.pipe.want_data();
  s.mine().words[kState].fetch_or(kLeaving, std::memory_order_seq_cst);  // PAIR face.state
  if ((state_of(s.theirs()) & socket_face::kAttached) == 0) {
    (void)silence(s.mine());  // likewise
    set_gone(s.mine());
    read_kernel(fd, s);
    settle(s);
    return false;
  }
  // The doorbell that wakes the other end has to be told from the application's bytes.
  for (Patience patience(fd, s); !switch_sending(fd, s);) {
    if (((state_of(s.theirs()) & kLeaving) | (state_of(s.mine()) & kGone)) != 0 || !patience.wait()) break;
  }
  if (reads_on) s.mine().words[kGivenBack].store(kReadsOn, std::memory_order_release);  // PAIR face.given
  if ((state_of(s.mine()) & kGone) == 0) go(fd, s);
  return true;
}

// No process moves the socket any more. One that was just doing it has closed its counters: either it has
// seen that, or we see here that it has moved it.
void pin(int fd, Socket& s) {
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  slot.pinned.store(1);
  if (!s.inherited.load(std::memory_order_relaxed)) return;
  constexpr std::uint64_t kMoveNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kMoveNs;
  auto being_moved = [&] {
    return (slot.sends.fetch_add(0, std::memory_order_acq_rel) & Slot::kClosed) != 0;
  };
  while (!s.resending.load() && being_moved() && monotonic_ns() < end) sched_yield();
  catch_up(fd, s);
}

void leave(int fd, Socket& s, bool to_others) {
  const Undisturbed undisturbed;
  KeepErrno keep;
  pin(fd, s);
  while (s.moving.test_and_set(std::memory_order_acquire)) sched_yield();
  if (s.shared()) {
    CLAN_DEBUG("fd %d goes back to TCP", fd);
    if (say_leaving(fd, s, !to_others) && to_others) wait_until_clean(fd, s);
    settle(s);
  }
  s.moving.clear(std::memory_order_release);
  // Nothing may overtake that.
  for (UntilTaken patience; to_others && resends(fd, s); nap()) {
    if (!patience.over()) continue;
    log_line(LogLevel::kError,
             "fd %d: its peer has not read for ten seconds what is to be sent before it can go back to TCP; "
             "the connection is reset (set CLAN_EXCEPT for this port)",
             fd);
    reset_connection(fd);
    break;
  }
  went_back(s);
}

}  // namespace

bool leave_alone(int fd, Socket& s) {
  const Undisturbed undisturbed;
  if ((state_of(s.theirs()) & socket_face::kAttached) != 0 ||
      s.moving.test_and_set(std::memory_order_acquire)) {
    return false;
  }
  KeepErrno keep;
  s.slot.load(std::memory_order_acquire)->pinned.store(1);
  (void)say_leaving(fd, s, true);
  const bool alone = !s.inherited.load(std::memory_order_relaxed);
  if (alone && !s.shared() && s.pipe.memfd() >= 0) close_descriptor(s);
  s.moving.clear(std::memory_order_release);
  return s.back_in.load(std::memory_order_acquire);
}

void leave_pipe(int fd, bool to_others) {
  if (Held s = hold(fd)) leave(fd, *s, to_others);
}

bool resends(int fd, Socket& s) {
  if (!s.resending.load(std::memory_order_acquire)) return false;
  Slot& slot = *s.slot.load(std::memory_order_acquire);
  std::int32_t who = slot.resender.load();
  if (who == 0 || who == ::getpid()) return true;
  KeepErrno keep;
  if ((slot.sends.load(std::memory_order_acquire) & Slot::kClosed) == 0) {
    s.resending.store(false);
    settle(s);
    return false;
  }
  if (sys::exists(who)) return true;
  if (!slot.resender.compare_exchange_strong(who, 0)) return true;
  log_line(
      LogLevel::kError,
      "fd %d: the process that sent again what its peer had not read was killed; the connection is reset",
      fd);
  reset_connection(fd);
  resent(s, who);
  return false;
}

void lock_resends() {
  while (resends_lock.test_and_set(std::memory_order_acquire)) sched_yield();
}
void unlock_resends() { resends_lock.clear(std::memory_order_release); }

void resends_forked() {
  for (Resend* one = std::exchange(behind, nullptr); one != nullptr;) {
    Resend* next = one->next();
    one->disown();  // its memory stays: the thread that would free it is the parent's
    one = next;
  }
  behind_count.store(0);
}

void finish_resends() {
  if (behind_count.load() == 0) return;
  KeepErrno keep;
  for (UntilTaken patience; behind_count.load() > 0 && !patience.over();) nap();
  if (behind_count.load() == 0) return;
  log_line(LogLevel::kError,
           "this process ends, and a program that a connection was handed to has not read for ten seconds "
           "what is still to be sent there; the connection is reset (set CLAN_EXCEPT for this port)");
  const ResendsGuard guard;
  for (const Resend* one = behind; one != nullptr; one = one->next()) one->give_up();
}

void leave_all_pipes() {
  KeepErrno keep;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        leave_pipe(fd, true);
        if (s.shared()) return;  // back already, or resets; what it reads is the kernel's
        s.state.store(Socket::State::kKernel);
        withdraw_offer(s);
      },
      nullptr);
}

void leave_to_others(int fd, Socket& s) {
  if (s.shared() && (state_of(s.theirs()) & socket_face::kAttached) == 0) leave(fd, s, false);
}

}  // namespace clan::preload
