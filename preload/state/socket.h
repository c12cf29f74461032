// Socket: what the library knows of a TCP socket of the application, whose descriptor stays the kernel's.
//
// A connection starts on TCP and may move into a Pipe while it lives (rendezvous.cc). Each direction moves by
// itself:
//
//   sender    asks the kernel how many bytes it has sent by TCP in all, publishes that number
//             (socket_face::kSwitchAt, then kSending) and sends the rest through the pipe
//   receiver  reads from TCP exactly up to that number, then from the pipe
//
// From then on TCP carries only doorbells: bytes that mean nothing but make the descriptor readable, so that
// whoever sleeps on it in the kernel (recv, poll, epoll, another process) wakes up. Their number is in the
// pipe's page, so they are told from the application's bytes of before and after.
//
// The end of a connection is the kernel's word: when the peer's process is gone or has closed, TCP says so.
// What then is left in the pipe is read first.
//
// One Socket serves all descriptors of this process that name the same open file (dup). Memory: Sockets come
// from a pool that is never returned, so a stale pointer finds a Socket, if not the one it looked for.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait.h"
#include "state/pipe_count.h"
#include "os/real.h"
#include "os/signals.h"

namespace clan::preload {

struct Interest;

/// Counts calls that are under way in the kernel on a socket that is still on TCP, so that nobody moves it
/// under them. After a fork it lies in memory that parent and child share.
struct Slot {
  /// Calls (bits 0 to 29), whether somebody has closed it, and who (from kCloser on): the id of a thread, or
  /// of the process for what another of its threads may finish. So that others see when he has been killed.
  using Counter = std::atomic<std::uint64_t>;
  static constexpr std::uint64_t kClosed = 1u << 30;
  static constexpr unsigned kCloser = 32;  ///< a shift
  static std::uint64_t closed_by(std::int32_t closer) {
    return static_cast<std::uint64_t>(closer) << kCloser | kClosed;
  }
  /// Closes a counter that is zero. Whoever counts up meanwhile sees kClosed and steps back.
  static bool try_close(Counter& counter, std::int32_t closer) {
    std::uint64_t none = 0;
    return counter.compare_exchange_strong(none, closed_by(closer), std::memory_order_acq_rel);
  }
  /// Likewise, whoever is counted: nobody of these is in the kernel.
  static bool try_close_over(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    return (now & kClosed) == 0 &&
           counter.compare_exchange_strong(now, now | closed_by(closer), std::memory_order_acq_rel);
  }
  /// Somebody may be stepping back meanwhile; or has opened it in our place, see UntilOpen.
  static void open(Counter& counter, std::int32_t closer) {
    std::uint64_t now = counter.load(std::memory_order_relaxed);
    while ((now & kClosed) != 0 && now >> kCloser == static_cast<std::uint32_t>(closer) &&
           !counter.compare_exchange_weak(now, now & (kClosed - 1), std::memory_order_acq_rel)) {
    }
  }
  /// A call in the kernel, counted. False: somebody has closed the counter, and the call has to look again.
  class UnderWay {
   public:
    explicit UnderWay(Counter& counter) : counter_(counter) {
      allowed_ = (counter_.fetch_add(1, std::memory_order_acq_rel) & kClosed) == 0;
    }
    ~UnderWay() { counter_.fetch_sub(1, std::memory_order_acq_rel); }  // also when cancelled
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;
    explicit operator bool() const { return allowed_; }

   private:
    Counter& counter_;
    bool allowed_;
  };
  Counter sends{0};
  Counter receives{0};
  std::atomic<std::int32_t> pipe_pid{0};  ///< who moved it
  std::atomic<std::int32_t> pipe_fd{-1};  ///< its descriptor of the pipe
  std::atomic<std::int32_t> pipe_end{0};
  std::atomic<std::int32_t> resender{0};  ///< if `sends` is closed for Socket::resending: whose it is
  std::atomic<std::int32_t> pinned{0};    ///< somebody has the open file whom we cannot reach: never move it
  /// Of these, processes that have not followed into the pipe, and so are not among its kHolders.
  std::atomic<std::int32_t> to_follow{1};
  /// Who has the open file: processes (bits 0 to 31; who was killed, or executed another program, counts),
  /// and descriptors that have been passed to somebody who has not said yet that he knows of this (bits 32 to
  /// 47). Above, which life of the slot it is: see passing.cc.
  std::atomic<std::uint64_t> held{1};
  static constexpr std::uint64_t kOnItsWay = std::uint64_t{1} << 32;
  static std::uint64_t users(std::uint64_t held) { return held & (kOnItsWay - 1); }
  static std::uint64_t on_its_way(std::uint64_t held) { return held >> 32 & 0xffff; }
  /// Of another socket, and one user's.
  static std::uint64_t renewed(std::uint64_t held) { return ((held >> 48) + 1) << 48 | 1; }
};

struct Socket {
  enum class State : std::uint8_t {
    kTcp,      ///< not moved; may be
    kOffered,  ///< we have connected, and listen for the other end to take up the offer; in CLAN_DIR also: an
               ///< offer has been taken up, by us or by the other end, and not all has been checked
    kShared,   ///< there is a pipe
    kKernel,   ///< stays with the kernel for good
  };

  /// Whether the other end's socket is in our network namespace.
  enum class Place : std::uint8_t { kNotAsked, kHere, kElsewhere };

  std::atomic<int> refs{0};  ///< descriptors, and calls under way
  std::atomic<int> fds{0};   ///< descriptors alone
  std::atomic<State> state{State::kTcp};
  bool client = false;
  std::atomic<bool> inherited{false};                ///< other processes may have the same open file
  std::atomic<bool> followed{false};                 ///< and may have to find its pipe by our descriptor
  std::atomic<int> nonblocking{-1};                  ///< as last heard; -1: ask
  std::atomic<std::uint32_t> sends{0}, receives{0};  ///< calls so far, for when to offer and to look
  std::atomic<int> offer_fd{
      -1};  ///< the listener; in CLAN_DIR, once taken up: what connects with the other end
  std::atomic<std::uint32_t> offer_calls{0};
  std::uint64_t offered_ns = 0;  ///< under `moving`
  Place place = Place::kNotAsked;  ///< under `moving`
  // Of an offer in CLAN_DIR, see directory.cc.
  std::atomic<std::uint64_t> offer_name{0};              ///< of the file; 0: there is none of ours
  std::atomic<int> window_fd{-1};                        ///< into the other end's network namespace
  std::uint32_t window_interface = 0, window_looks = 0;  ///< under `moving`

  std::atomic<Slot*> slot{nullptr};
  Slot own_slot;

  Pipe pipe;
  std::optional<Waiter> receive_wait, send_wait;
  std::atomic<bool> drained{false};      ///< all TCP bytes from before the switch have been read
  std::atomic<bool> kernel_end{false};   ///< the peer's side of TCP is closed
  std::atomic<bool> fin_counted{false};  ///< TCP_INFO counts the peer's FIN among the bytes received
  std::atomic<bool> kernel_error{false};
  std::atomic<bool> error_taken{false};  ///< the kernel has told it to us, and so not to the application
  std::atomic<bool> kernel_says{false};  ///< the application has written to a peer that is gone
  std::atomic<bool> reset_told{false};
  std::atomic<bool> shut_read{false};
  std::atomic<bool> back_in{false};  ///< what we read is TCP's again
  std::atomic<bool> anew{false};     ///< out of its pipe, and the application may connect it to another end
  std::atomic<bool> left_at_exit{false};   ///< counted out when the process ended
  std::atomic<bool> left_slot{false};      ///< not among the users of its slot any more
  std::atomic<bool> not_to_follow{false};  ///< nor among those who are to follow
  std::atomic<bool> resending{
      false};                     ///< what the other end gave back is on its way; nothing may overtake it
  std::atomic<int> low_water{1};  ///< SO_RCVLOWAT
  std::atomic<int> data_sleepers{0},
      room_sleepers{0};  ///< threads of ours in the kernel, or nearly; not epoll's
  std::atomic<std::uint64_t> checked_ns{0};
  /// Of TCP_INFO, which never falls.
  struct Counter {
    std::atomic<std::uint64_t> told{0}, changed_ns{0};
  } told_sent, told_acked, told_received;
  std::atomic<bool> rang{false};       ///< the other end slept when something was last sent to it
  /// Of memory.cc: it is to release memory; when it last did; how often since the pipe was in the way.
  std::atomic<bool> owes_memory{false};
  std::atomic<std::uint64_t> released_ns{0};
  std::atomic<int> release_looks{0};
  std::atomic<std::uint32_t> receives_owing{0};
  std::atomic<bool> pipe_counted{false};
  PipeCharge charge;  ///< of pipe_count.h; written when it moves, at fork and when nobody has it
  std::atomic<std::uint32_t> full{0};  ///< counts sends that found no room, for edge-triggered EPOLLOUT
  std::atomic_flag moving = ATOMIC_FLAG_INIT;
  std::uint64_t last_fork = 0;       ///< which it has been counted for; under the lock of fork
  Interest* interests = nullptr;     ///< in epoll sets; under the epoll lock
  std::atomic<bool> in_sets{false};  ///< there are interests; written under the epoll lock
  Socket* next_free = nullptr;       ///< in the pool

  PipePage::Face& mine() const { return pipe.my_face(); }
  PipePage::Face& theirs() const { return pipe.peer_face(); }
  /// For good, in all processes that have it, and no set remembers it.
  bool stays_on_tcp() const {
    return state.load(std::memory_order_relaxed) == State::kKernel &&
           !in_sets.load(std::memory_order_relaxed) &&
           (!inherited.load(std::memory_order_relaxed) ||
            slot.load(std::memory_order_acquire)->pinned.load(std::memory_order_relaxed) != 0);
  }
  bool shared() const {
    // PAIR preload.shared: sees the pipe
    return state.load(std::memory_order_acquire) == State::kShared;
  }
};

// --- descriptors -------------------------------------------------------------------------------------

/// A Socket in use by the calling thread.
class Held {
 public:
  Held() = default;
  explicit Held(Socket* s) : s_(s) {}
  Held(Held&& o) noexcept : s_(o.s_) { o.s_ = nullptr; }
  Held& operator=(Held&&) = delete;
  ~Held();
  explicit operator bool() const { return s_ != nullptr; }
  Socket* operator->() const { return s_; }
  Socket& operator*() const { return *s_; }
  Socket* get() const { return s_; }

 private:
  Socket* s_ = nullptr;
};

/// The Socket behind a descriptor, or none. Lock-free.
Held hold(int fd);
/// A TCP socket that has just appeared here. `nonblocking`: -1 unknown. `always`: also where none moves.
void adopt(int fd, bool client, int nonblocking, bool always = false);
/// A TCP socket that came from another process and is new here.
void probe(int fd, bool always = false);
/// `to` names the same open file as `from`, which may be unknown. What `to` named before is forgotten.
void duplicate_entry(int from, int to);
/// The descriptor is about to be closed, or has been by somebody we did not see.
void forget(int fd);
void forget_range(unsigned first, unsigned last);
/// The same, whatever it is to us. What a child of vfork closes stays open in its parent, whose tables these
/// are.
void gone(int fd);
/// There is a Socket for this descriptor.
bool known(int fd);
/// The pool of Sockets, for fork. Behind the locks of epoll sets and of AF_CLAN.
void lock_sockets();
void unlock_sockets();
/// No TCP socket, or one that stays on TCP for good.
bool is_the_kernels(int fd);
/// A TCP socket that stays on TCP for good and is in no set that remembers it: a glance.
bool no_set_need_know(int fd);
/// Calls `f(fd, Socket&)` for each known descriptor.
void for_each_socket(void (*f)(int fd, Socket& s, void* argument), void* argument);

// --- moving (rendezvous.cc) --------------------------------------------------------------------------

/// Before a send and after a receive that went by TCP: makes or takes up an offer when it is time to.
void before_send(int fd, Socket& s);
void after_receive(int fd, Socket& s);
/// Where connections move at once, in tests (testing.h), before a receive by TCP, after connect() and accept() too.
void before_receive(int fd, Socket& s);
void was_connected(int fd, Socket& s);
void was_accepted(int fd);
/// Another process that shares the open file has moved it: follow.
void catch_up(int fd, Socket& s);
/// One has, and we have not followed yet.
inline bool moved_elsewhere(const Socket& s) {
  return s.inherited.load(std::memory_order_relaxed) && !s.shared() &&
         s.slot.load(std::memory_order_acquire)->pipe_fd.load(std::memory_order_acquire) >= 0;
}
/// As hold(), and follows.
inline Held hold_current(int fd) {
  Held s = hold(fd);
  if (s && s->inherited.load(std::memory_order_relaxed)) catch_up(fd, *s);
  return s;
}
/// Counts the sockets that this process, or one it shares them with over fork, has moved after the fork.
std::uint32_t moves_of_shared();
/// Takes back an offer, or a claim. drop_offer() leaves the file, which is another process's who has it too.
void withdraw_offer(Socket& s);
void drop_offer(Socket& s);
/// Before fork: counters of calls under way go where parent and child see them. After it, in the child.
void share_slots();
void fork_has_failed();
/// In parent and child: sockets may move again.
void fork_is_over();
void forked();
/// The connection stays on TCP for good: nobody who shares the open file moves it any more. False: it has
/// moved already, and has still to be taken back if it must not stay there.
bool keep_on_tcp(int fd, Socket& s);
/// That, and leave_pipe(fd, true) if it has moved.
void never_move(int fd, Socket& s);
/// A pipe from a process before exec.
void adopt_pipe(int fd, int memfd, int end);
/// A descriptor from another process, by the AF_UNIX socket `through`: if its connection has moved, follows
/// it; if not, it may move when all who have it know of each other. `peeked`: it will be received again.
void adopt_passed(int fd, int through, bool peeked);
/// The socket's counters are at `shared` from now on, where other processes see them, and the process has one
/// user there. False: a call is under way that is not counted there, so it never moves.
bool share_slot(Socket& s, Slot* shared);
/// This process has the socket no more. True: others have it who have not followed into the pipe.
bool leave_slot(Socket& s);

// --- passing on what has not moved (passing.cc) -------------------------------------------------------

/// A descriptor of the socket is about to be sent by SCM_RIGHTS. False: it has moved or stays on TCP; or the
/// receiver could not find its slot, and then it has to stay.
bool put_on_its_way(int fd, Socket& s);
/// It was not sent.
void take_off_its_way(Socket& s);
/// The descriptor of our own slots, if its number is one of these, is needed for something else: what is
/// passed from now on stays on TCP. False: it is not.
bool close_slots(unsigned first, unsigned last, bool already_closed);
/// Such a descriptor has been received. False: nobody knows of it.
bool claim_passed(int fd, Socket& s, int through, bool peeked);

/// A memfd of another process, by its descriptor there and the link that /proc shows for it, or -1.
/// The other process may have counted in another pid namespace: what is found must be known by its contents.
int open_memfd_of(unsigned pid, int fd, const char* link, int flags);
/// /proc counts processes as our pid namespace does.
bool proc_is_ours();

/// The inode of the socket at the other end, 0 = the kernel does not say.
std::uint32_t inode_of_other_end(int fd);

/// Of a socket in whose pipe the other end has not come yet: it will not any more, and without a pipe calls cost
/// less. Counts the call.
bool has_waited_for_peer(Socket& s);

// --- as much as TCP (buffers.cc) ---------------------------------------------------------------------

/// Of the rings of a pipe that is made here.
std::uint32_t ring_bytes();
/// The address space of this process is limited, and a pipe that somebody else has made takes much of it.
bool too_large_here(const Pipe& pipe);
/// One more pipe is within what pipes may take of memory.
bool may_have_pipe();
/// It has moved here, and its memory is the user's: both ends count, and of the two of a pipe one
/// is charged. The Socket is another connection's from now on.
void count_pipe(Socket& s, bool charged);
void discount_pipe(Socket& s);
/// What the pipe of a socket takes, by the socket's buffers: when it moves, and when they are set.
void limit_as_tcp(int fd, Socket& s);
/// By a thread that sends: others of the user may have more pipes by now, or fewer. Looks now and
/// then.
void share_memory_anew(std::uint64_t now_ns);

// --- memory (memory.cc) ------------------------------------------------------------------------------

/// The pipe is_large(): it is released now or when a thread sleeps. `empty`: a receive has left nothing there.
void owe_memory(int fd, Socket& s, bool empty);
/// Before a thread sleeps: what can be released. Nanoseconds until it is to be called again, -1: nothing is left.
std::int64_t release_memory();

/// `sleep(ns)` is the kernel's wait for so long, -1 for ever, which returns 0 when that is over and which a signal
/// handler ends whatever its flags. Wakes up for memory that could not be released before.
template <typename Sleep>
int sleep_releasing(std::int64_t ns, Sleep&& sleep);

// --- going back (going_back.cc) ----------------------------------------------------------------------

/// Takes the connection back to TCP, for good. `to_others`: somebody who does not know of pipes is going to
/// use the descriptor, so it is clean when this returns, or reset when that cannot be had. Otherwise what is
/// sent from now on goes by TCP, and what is received does when the other end has noticed.
void leave_pipe(int fd, bool to_others);
/// All connections of this process go back to TCP, and those there are stay there. Comes back when none is in
/// a pipe any more.
void leave_all_pipes();
/// This process is about to lose the socket, which others have too. If its pipe is known to nobody else yet,
/// the connection stays on TCP: they could not find it.
void leave_to_others(int fd, Socket& s);
/// What the other end gave back is on its way, by this process or another: nothing may overtake it.
bool resends(int fd, Socket& s);
/// Before this process loses its threads, by exit or exec: all that has been given back is on its way when
/// this returns. Who does not read it within ten seconds sees a reset.
void finish_resends();
/// For fork, and after it in the child: the parent goes on.
void lock_resends();
void unlock_resends();
void resends_forked();
/// When nothing else is right any more.
void reset_connection(int fd);
/// The application takes the connection off its socket, connect() with AF_UNSPEC: what the other end is to
/// know before the kernel tells it of a reset; and, when the kernel has done it, what is left for us. From
/// then on the socket is TCP's in this process. Others that share it keep the pipe.
void before_disconnect(Socket& s);
void disconnected(int fd, Socket& s);

// --- transfer (transfer.cc) --------------------------------------------------------------------------

/// Both return what recvmsg and sendmsg would, with errno. `flags` as there. The socket is shared().
ssize_t shared_receive(int fd, Socket& s, const iovec* buffers, int count, int flags);
ssize_t shared_send(int fd, Socket& s, const iovec* buffers, int count, int flags);
int shared_shutdown(int fd, Socket& s, int how);
/// POLLIN, POLLOUT, POLLRDHUP, POLLHUP, POLLERR as they hold now. `look`: ask the kernel too.
short readiness(int fd, Socket& s, bool look);
/// readiness() has nothing to say but perhaps POLLOUT. For a glance: false means that it has to be asked.
inline bool nothing_new(const Socket& s);
/// What select, poll and epoll do before they sleep. False: something of `events` holds already.
bool prepare_sleep(Socket& s, short events);
/// After the kernel called the descriptor ready: drops doorbells, notices the end. False: doorbells stay
/// where they are, because somebody else sleeps for them.
bool look_at_kernel(int fd, Socket& s);
/// The same where the kernel has told of bytes and of nothing else: an end is behind them, and not looked for.
bool take_doorbells(int fd, Socket& s);
/// There are some, or will be in a moment. Does not ask the kernel.
bool doorbells_waiting(const Socket& s);
/// Others than the calling thread may be asleep on the socket.
bool others_sleep(const Socket& s);

/// A thread that is about to sleep in the kernel until there are bytes or room. To be made before the calls
/// that ask to be rung; when it goes, the thread wants no doorbells any more. Who has one does not
/// look_at_kernel(), which would take it for somebody else.
class Sleeper {
 public:
  explicit Sleeper(Socket& s, bool for_data, bool for_room) : s_(s), data_(for_data), room_(for_room) {
    if (data_) s_.data_sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (room_) s_.room_sleepers.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() {
    if (data_) s_.pipe.unwant_data(), s_.data_sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (room_) s_.room_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  Socket& s_;
  bool data_, room_;
};
/// The socket still has TCP bytes to read, or may have.
bool reads_tcp(const Socket& s);
/// It sends by TCP: not in the pipe yet, or not any more.
bool sends_tcp(const Socket& s);
bool is_nonblocking(int fd, Socket& s);
/// SO_ERROR, which is told once.
int take_error(int fd, Socket& s);
/// The last descriptor of the process is about to be closed. `others`: another process has the socket.
void shared_close(int fd, Socket& s, bool others);
int bytes_to_read(int fd, Socket& s);
/// Bytes that TCP has ever received, doorbells and all.
std::uint64_t arrived(int fd);

inline bool nothing_new(const Socket& s) {
  const bool plain =
      s.drained.load(std::memory_order_acquire) && !s.kernel_end.load(std::memory_order_relaxed) &&
      !s.kernel_error.load(std::memory_order_relaxed) && !s.shut_read.load(std::memory_order_relaxed) &&
      !s.back_in.load(std::memory_order_relaxed);
  constexpr std::uint64_t kOnItsWay = socket_face::kLeaving | socket_face::kGone;
  return plain && s.pipe.seems_empty() &&
         (s.theirs().words[socket_face::kState].load(std::memory_order_acquire) & kOnItsWay) ==
             0;  // PAIR face.state
}

template <typename Sleep>
int sleep_releasing(std::int64_t ns, Sleep&& sleep) {
  const SinceEntry since;
  for (;;) {
    const std::int64_t next = ns == 0 ? -1 : release_memory();
    if (next < 0 || (ns >= 0 && ns <= next)) return sleep(ns);
    if (const int n = sleep(next); n != 0) return n;
    if (ns >= 0) ns -= next;
    if (since.handled()) {
      errno = EINTR;
      return -1;
    }
  }
}

/// Mends what the kernel has answered to TCP_INFO, if the connection has moved. tcp_info.cc
void show_pipe_in_tcp_info(int fd, Socket& s, void* value, socklen_t size);

}  // namespace clan::preload
