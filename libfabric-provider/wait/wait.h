// Waiting: what fi_cq_sread(), FI_GETWAIT, fi_trywait() and wait sets are made of.
//
// Something becomes ready in one of two ways. Either a source receives from the network: its
// descriptor becomes readable, and the thread that wakes makes progress. Or another thread has made
// progress already and puts an entry into a queue that a thread is about to sleep on: it calls
// signal().
//
//   sleeper                              thread that fills its queue
//     armed = true                         put the entry (under the queue's lock)
//     sources: progress, arm               signal(): armed was true? write the eventfd
//     queue still empty? sleep
//
// Either the sleeper sees the entry or the other thread sees `armed`: wait_words.h, which also has
// how the eventfd of calls that sleep (sleep_unless()) is emptied.
//
// Programs that sleep by themselves (prepare(), by fi_trywait) have a descriptor to do so on, once
// they have asked for it: an epoll over an eventfd of its own and the sources. It is readable as
// long as there is something in a queue that a sleeper is to learn of. FI_WAIT_MUTEX_COND: a Bell,
// a thread that sleeps on that descriptor and signals the condition.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "system/provider.h"
#include "wait/bell.h"
#include "wait/wait_words.h"

namespace clan::ofi {

class WaitObject;

/// Something that receives from the network.
class Source {
 public:
  virtual ~Source() = default;
  virtual void make_progress() = 0;
  /// Readable when there may be progress to make after arm().
  virtual Result<int> descriptor() = 0;
  /// Readable when packets of other hosts have come that nobody has taken. -1: there are none, or
  /// others take them.
  virtual int packets() { return -1; }
  /// Where a thread is about to sleep: in sleep(), on descriptor() and packets(), or on the former
  /// alone.
  enum class SleepsIn { kSource, kBoth, kDescriptor };
  /// Makes progress and gets ready for that. False: do not sleep, there is more; then others that
  /// sleep on it have been woken, as the caller may not come again. What has to be called again
  /// though the descriptor says nothing makes `look_again_ms` as small as that.
  virtual bool arm(SleepsIn where, std::uint32_t* look_again_ms) = 0;
  /// As poll(), of at most two descriptors, in which the thread receives from the network by
  /// itself, where it can. 0: one is ready; ETIMEDOUT, EINTR.
  virtual int sleep(std::span<pollfd> fds, std::int64_t timeout_ms) {
    return poll(fds, timeout_ms);
  }
  /// Threads sleep on it in this wait object. It is to be signalled when there is something to
  /// check that nothing announces, and that was not there when they called arm().
  virtual void add_sleepers(WaitObject&) {}
  virtual void remove_sleepers(WaitObject&) {}
  static int poll(std::span<pollfd> fds, std::int64_t timeout_ms);
};

/// Something that can be waited for: a queue or a counter.
class Waitable {
 public:
  virtual ~Waitable() = default;
  /// Whether a reader would find something. Makes no progress.
  virtual bool pending() = 0;
};

class WaitObject {
 public:
  /// -FI_ENOSYS: a kind of wait that we do not have.
  static int create(fi_wait_obj kind, std::unique_ptr<WaitObject>* object);
  ~WaitObject();
  WaitObject(const WaitObject&) = delete;
  WaitObject& operator=(const WaitObject&) = delete;

  /// FI_GETWAIT and FI_GETWAITOBJ, as the kind says.
  int control(int command, void* argument);
  /// Sources and waitables may be added more than once, and are removed as often. Threads that
  /// sleep meanwhile are woken to arm a source that has been added.
  int add_source(Source& source);
  void remove_source(Source& source);
  /// Calls sleep in this one: the only one there will be, and it outlives them. Before it is added.
  void sleep_in(Source& source) { sleeps_in_ = &source; }
  void add(Waitable& waitable);
  void remove(Waitable& waitable);

  /// Wakes sleepers, if there can be any. Any thread.
  void signal() {
    if (may_sleep(words_)) wake();
  }
  /// fi_trywait(). False: there is something already.
  bool prepare();
  /// Whether any of the waitables is pending.
  bool any_pending();
  /// Makes progress, and sleeps until something may have changed, but not if `ready()`: it is asked
  /// when a thread that makes it true would wake us. 0: look again; -FI_ETIMEDOUT, -FI_EINTR.
  template <typename Ready>
  int sleep_unless(Ready&& ready, std::int64_t timeout_ms) {
    if (!lie_down()) return 0;
    if (ready()) {
      leave_sleepers(words_, false);
      return 0;
    }
    return sleep(timeout_ms);
  }

 private:
  WaitObject() = default;
  void wake();
  bool lie_down();
  int sleep(std::int64_t timeout_ms);
  bool arm_sources(Source::SleepsIn where);
  Source::SleepsIn elsewhere() const {
    return hears_packets_ ? Source::SleepsIn::kBoth : Source::SleepsIn::kDescriptor;
  }
  bool pending_locked();
  int show();
  int face(fi_mutex_cond* face);
  bool set_timer(std::uint32_t ms);

  fi_wait_obj kind_ = FI_WAIT_FD;
  int sources_epoll_ = -1;
  int event_ = -1;              ///< of sleep_unless()
  int timer_ = -1;              ///< for sources that must be called again; made when there is one
  bool timer_set_ = false;      ///< under mutex_
  bool hears_packets_ = false;  ///< what is slept on elsewhere has the sources' packets() in it
  WaitWords words_;
  // What a program sleeps on by itself, once it has asked for it.
  int shown_epoll_ = -1;
  int shown_event_ = -1;
  ForkMutex mutex_;  ///< guards the lists, the timer, and the emptying of an eventfd
  std::vector<Source*> sources_;
  Source* sleeps_in_ = nullptr;  ///< or nowhere in particular
  std::vector<Waitable*> waitables_;
  ForkMutex bell_mutex_;  ///< guards the making of bell_
  std::unique_ptr<Bell> bell_;
};

/// Milliseconds until then for a sleep: -1, no end; 0, it is over.
std::int64_t sleep_ms(std::uint64_t deadline_ns);

/// fi_wait_open()
class WaitSet final : public fid_wait {
 public:
  using Face = fid_wait;
  static int open(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set);
  WaitObject& object() { return *object_; }
  References& references() { return references_; }

 private:
  WaitSet() = default;
  static int wait(fid_wait* set, int timeout_ms);
  static int control(fid_t id, int command, void* argument);
  static fi_ops ops_;
  static fi_ops_wait wait_ops_;
  std::unique_ptr<WaitObject> object_;
  References references_;
  Held fabric_;
};

/// How a queue or counter waits, as its attributes ask: none, an object of its own, or that of a
/// set.
class WaitPlace {
 public:
  /// -FI_ENOSYS: a kind of wait that we do not have. `source`: what the owner hears by, or none
  /// yet.
  int open(fi_wait_obj kind, fid_wait* set, Waitable& owner, Source* source);
  ~WaitPlace();
  WaitObject* object() const { return object_; }
  void signal() {
    if (object_ != nullptr) object_->signal();
  }
  /// FI_GETWAIT and FI_GETWAITOBJ.
  int control(int command, void* argument) const;

 private:
  std::unique_ptr<WaitObject> own_;
  WaitObject* object_ = nullptr;
  Waitable* owner_ = nullptr;
  Source* source_ = nullptr;
  Held set_;
};

/// The control() of an object that waits so.
template <typename Object>
int control_wait(fid_t id, int command, void* argument) {
  return object_of<Object>(id).wait_place().control(command, argument);
}

}  // namespace clan::ofi
