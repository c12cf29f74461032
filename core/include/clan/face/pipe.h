// Pipe: two byte streams in one memfd, one each way, that belong to no process.
//
// A Stream lives in its Context and dies with its process. A socket does not: it is shared by fork,
// handed on by SCM_RIGHTS, closed by its last holder. A Pipe is what stands behind such a socket.
// Every cursor and counter lies in the memfd, so any process that maps it continues where another
// stopped.
//
// Pipes neither sleep nor wake other processes: the owner of the sockets does (`must_ring` below).
//
// Wake-up: a sleeper sets its waiting flag, looks again (want_data() and want_room() do both) and
// sleeps. The thread that publishes bytes or room afterwards is told to ring, once.
//
// Thread-safety: every call may come from any thread of any process of the end. Those that move
// bytes or count them take the lock of their direction (PipeLocks); the others take none. No call
// allocates, and all but create() and open() are safe in a signal handler. A call that interrupts
// one of the same direction of the same pipe fails at once with EDEADLK: nothing has been done, nor
// can it be before the handler returns.
//
// The locks lie in memory of the end's own processes, so the other end can keep nobody waiting. A
// call waits for as long as the owner of a lock lives; nobody keeps one for longer than a copy
// takes. A process that is killed under one leaves its direction as it was before a record or
// behind it: the next call takes the lock and goes on from there.
#pragma once

#include <clan/detail/export.h>
#include <clan/face/pipe_page.h>
#include <clan/face/pipe_types.h>
#include <clan/result.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan {

class CLAN_EXPORT Pipe {
 public:
  /// A new pipe; the caller is end 0 or 1. `name` is what /proc shows of the memfd. `ring_bytes`: a
  /// power of two from 4 KiB to 64 MiB. EINVAL, ENOMEM, EMFILE.
  static Result<Pipe> create(const char* name, std::uint32_t ring_bytes, int end);
  /// The pipe behind a memfd, whose ownership passes. EPROTO: not one, not sealed, another version.
  static Result<Pipe> open(int memfd, int end);

  /// The same pipe as its other end sees it, by a mapping of its own and without a descriptor.
  /// ENOMEM.
  Result<Pipe> at_other_end() const;

  /// How the caller's buffers are copied: `guard(copy, argument)` calls copy(argument) and answers
  /// whether it came to its end. One that did not, as there is no memory where the buffer should
  /// be, makes the call stop before that record with EFAULT. Without a guard the copy faults. Of
  /// the process; for the time before the first pipe.
  using CopyGuard = bool (*)(void (*copy)(void*), void* argument);
  static void guard_copies(CopyGuard guard);

  /// The process locks what it maps from now on (mlockall with MCL_FUTURE), or does not: pipes are
  /// left out, which would have memory for all of their rings.
  static void process_locks_memory(bool locks);

  /// Takes `locks` for this end in place of those in this object. Processes that share the end use
  /// the same; they outlive the pipe. Before any other call.
  void use_locks(PipeLocks& locks) { locks_ = &locks; }

  /// To be called in the child of a fork, before anything else: its thread has another id.
  static void after_fork_in_child();

  Pipe() = default;
  Pipe(Pipe&& other) noexcept;
  Pipe& operator=(Pipe&& other) noexcept;
  ~Pipe();

  explicit operator bool() const { return page_ != nullptr; }
  int memfd() const { return memfd_; }
  /// Of the memfd, the same in all processes. It stays known when the descriptor is gone.
  std::uint64_t inode() const { return inode_; }
  /// It has moved (F_DUPFD) or has been closed by somebody (-1).
  void set_memfd(int memfd) { memfd_ = memfd; }
  int end() const { return end_; }
  PipePage& page() const { return *page_; }
  PipePage::Face& my_face() const { return page_->ends[end_].face; }
  PipePage::Face& peer_face() const { return page_->ends[1 - end_].face; }

  using Done = PipeDone;
  /// What this end's socket would buffer, in bytes, of what it sends and of what it receives.
  /// `grows`: as TCP does when nobody has set SO_RCVBUF, the latter is a part of what the other end
  /// buffers. A send stops at the sum of what its end and the other one say; without limits, when
  /// the ring is full. At least 16 KiB (or half a smaller ring), at most 7/8 of the ring.
  void set_limits(std::uint64_t sends, std::uint64_t receives, bool grows);

  // --- sending -----------------------------------------------------------------------------------
  /// Copies in what fits of `count` buffers.
  Done send(const iovec* buffers, int count, PipeRoom room = PipeRoom::kWhole);
  /// Half-closes: the reader finds kEnd behind all bytes. bytes = 1: done; there always is room.
  Done end_sending();
  /// As end_sending(), and instead of it: the reader finds kLeave behind all bytes.
  Done leave();
  /// True when there is room worth waking up for: as for TCP, a third of what there may be.
  bool writable(PipeRoom room = PipeRoom::kWhole) const;
  /// Bytes sent that the other end has not read.
  std::uint64_t unread_by_peer() const;
  /// Asks to be rung. False: there is room now.
  bool want_room(PipeRoom room = PipeRoom::kWhole);

  /// The calling thread has written by other ways than pipes: see PipeStamp.
  static void note_kernel_write();

  // --- receiving ---------------------------------------------------------------------------------
  PipeFront front() const;
  /// Of the record in front. Without the lock: of one that is being read at the same time,
  /// another's or none.
  PipeStamp front_stamp() const;
  /// A glance without the lock: front() would answer kNothing, or was about to. Costs a few loads.
  bool seems_empty() const;
  /// Copies out at most as much as there is; `peek` leaves it there. A null iov_base discards.
  Done receive(const iovec* buffers, int count, bool peek);
  /// Nothing more is written: at most a ring is left. The pipe breaks at records without end.
  void writer_has_gone();
  /// Leaves what has not been read to a process that sends it by another way: no call of this end
  /// receives it any more, each finds kLeave in front. EALREADY; EDEADLK in a handler that
  /// interrupts a receive; EPROTO.
  int set_aside();
  /// By that process, of what it has by at_other_end(): receive() takes what was set aside. False:
  /// nothing was.
  bool take_aside();
  /// Bytes that can be read now. 0 also in a handler that interrupts a receive, and when broken.
  std::uint64_t readable_bytes() const;
  bool peer_has_room() const { return has_room(1 - end_, PipeRoom::kWhole); }  ///< its writable()
  /// Asks to be rung for bytes (or an end). False: there is something now, or front() cannot tell.
  bool want_data();
  /// The calling thread does not wait any more. Takes the flag back if no other thread has set it
  /// too.
  void unwant_data();
  /// Asks to be rung for bytes, and for room too, for every process of this end; only the other end
  /// takes that back. For a thread that takes away a wake-up that others may sleep for, or will not
  /// look again by itself.
  void keep_wanted(bool room);
  /// Back from the kernel: what both ends touch next comes into the cache together.
  void fetch_ahead() const;
  /// More than a page of the ring that this end writes has been touched since release(). A glance.
  bool is_large() const { return large_.load(std::memory_order_relaxed); }
  /// Gives memory of the ring that this end writes back to the kernel, but for a page, when all has
  /// been read. False: it holds unread bytes, or a thread sends.
  bool release();

  /// Processor the other end last sent from (engine wait policy), 0 = unknown.
  // relaxed: a hint
  std::uint16_t peer_cpu() const { return peer_cpu_.load(std::memory_order_relaxed); }

 private:
  void reset();
  class Locked;
  Pipe(PipePage* page, std::size_t bytes, int memfd, std::uint64_t inode, int end);
  Done put_last(std::uint8_t type);
  bool is_calm() const;
  int plan(PipeRoom room, shm::RingProducer& p, std::uint64_t* most, std::uint64_t* n,
           shm::RingSlot* slot) const;
  std::uint64_t most_lines(int end, PipeRoom room) const;
  bool has_room(int end, PipeRoom room) const;
  void note_large() {
    if (!large_.load(std::memory_order_relaxed)) large_.store(true, std::memory_order_relaxed);
  }
  bool sleeps_for_room(bool drained) const;
  PipeLocks& locks() const { return locks_ != nullptr ? *locks_ : own_locks_; }
  int wait_for_lock(std::atomic<std::uint32_t>& word, bool in_handler) const;
  void finish_record() const;
  // The other end can write the word in the page, but what has been found to be broken stays so.
  bool broken() const {
    if (page_->head.broken.load(std::memory_order_relaxed) != 0) {
      broken_.store(true, std::memory_order_relaxed);
    }
    return broken_.load(std::memory_order_relaxed);
  }
  void broke(const char* what) const;

  PipePage* page_ = nullptr;
  std::size_t bytes_ = 0;
  int memfd_ = -1;
  std::uint64_t inode_ = 0;
  int end_ = 0;
  std::uint64_t lines_ = 0;  ///< of each ring
  std::byte* out_ = nullptr;
  std::byte* in_ = nullptr;
  mutable std::atomic<std::uint16_t> peer_cpu_{0};
  mutable std::atomic<bool> broken_{false};
  std::atomic<bool> large_{false};
  std::atomic<std::uint64_t> last_line_{0};  ///< where reading ends, see writer_has_gone(); 0: open
  bool takes_aside_ = false;
  PipeLocks* locks_ = nullptr;
  mutable PipeLocks own_locks_;  ///< of an end that one process has
};

}  // namespace clan
