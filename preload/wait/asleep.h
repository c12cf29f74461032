// What a poll() that sleeps has said for each of its descriptors: that a thread waits there and
// wants to be rung, until it has slept.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>

#include "kernel/sock_diag.h"
#include "os/scratch.h"
#include "stream/bell.h"
#include "stream/sleeper.h"
#include "table/fd_table.h"
#include "wait/ready_check.h"
#include "wait/set_sleep.h"

namespace clan::preload {

/// What poll() tells without being asked.
constexpr short kAlways = POLLERR | POLLHUP | POLLNVAL;

/// The longest sleep for room, as of a send: another thread may shut down writing, which the kernel
/// does not know of, and a process that shares the other end may be killed before it rings.
constexpr std::int64_t kRoomNs = 100'000'000;

/// What poll() says of a socket that has moved. `look`: at the kernel, too.
short poll_answer(int fd, Socket& s, short events, bool look);

/// One descriptor: a socket that has moved, or an epoll set with such sockets in it.
class Asleep {
 public:
  /// `rings`: this thread may sleep by its bell.
  Asleep(int fd, short events, bool rings = false);
  ~Asleep() { set_awake(set_); }
  Asleep(const Asleep&) = delete;
  Asleep& operator=(const Asleep&) = delete;
  bool ready() const { return ready_; }
  /// Doorbells lie in TCP that somebody else sleeps for.
  bool left_to_others() const { return left_to_others_; }
  /// For how many ns the thread may rely on the kernel to report it.
  std::int64_t longest() const { return longest_; }
  /// The bell of a socket that the thread also sleeps on by its bell; else null.
  const BellSleep* bell() const { return bell_ && *bell_ ? &*bell_ : nullptr; }
  /// Null if it is no socket that has moved.
  Socket* socket() const { return sleeper_ ? held_.get() : nullptr; }

 private:
  SocketRef held_;
  std::optional<BellSleep> bell_;
  std::optional<Sleeper> sleeper_;
  SetSleep* set_ = nullptr;
  std::int64_t longest_ = kNoCap;
  bool left_to_others_ = false, ready_ = false;
};

/// A list that grows to `most` and does not allocate while that is a few.
template <typename T>
class SmallVector {
 public:
  explicit SmallVector(nfds_t most) : at_(reinterpret_cast<T*>(few_)) {
    if (most > kFew) at_ = more_.emplace(most * sizeof(T)).template as<T>();
  }
  ~SmallVector() {
    while (count_ > 0) at_[--count_].~T();
  }
  SmallVector(const SmallVector&) = delete;
  SmallVector& operator=(const SmallVector&) = delete;
  /// Null when there was no memory.
  template <typename... Arguments>
  T* add(Arguments... arguments) {
    return at_ == nullptr ? nullptr : new (at_ + count_++) T(arguments...);
  }

 private:
  static constexpr nfds_t kFew = 8;
  alignas(T) std::byte few_[kFew * sizeof(T)];
  std::optional<Scratch> more_;
  T* at_;
  nfds_t count_ = 0;
};

}  // namespace clan::preload
