// The socket calls of the differential test's actors, and the text that says what came of them:
// what differential_actor.cc uses.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "differential_actor.h"

namespace clan::interpose_test {

using Bytes = std::vector<std::uint8_t>;

std::int64_t now_ms();

/// The contents of a stream: a function of its key and the position in it.
Bytes make_pattern(std::uint64_t key, std::int64_t offset, std::size_t bytes);
std::string sum_of(const Bytes& data);
/// The sum of what was received, and where it first differs from what was sent.
std::string judge(const Bytes& data, std::uint64_t key, std::int64_t offset);

std::string error_name(int error);
/// The result of a call, and errno if it failed.
std::string outcome(std::int64_t result);
std::string events_text(int events);
std::string flags_text(std::int64_t flags);

/// Put together with <<, whose operands are evaluated from left to right: most of them are socket
/// calls.
class Said {
 public:
  Said& operator<<(const std::string& more) {
    text_ += more;
    return *this;
  }
  operator std::string() const { return text_; }  // NOLINT(google-explicit-constructor)

 private:
  std::string text_;
};

constexpr std::uint64_t kEpollData = 0xfeedface12345678;

/// An epoll set with one member.
class EpollOf {
 public:
  EpollOf(int fd, std::uint32_t events) : fd_(fd), set_(::epoll_create1(EPOLL_CLOEXEC)) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = kEpollData;
    if (::epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event) != 0) std::abort();
  }
  ~EpollOf() { ::close(set_); }
  EpollOf(const EpollOf&) = delete;
  EpollOf& operator=(const EpollOf&) = delete;

  int set() const { return set_; }
  void arm_again(std::uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = kEpollData;
    if (::epoll_ctl(set_, EPOLL_CTL_MOD, fd_, &event) != 0) std::abort();
  }
  /// Ready events, 0 for none, -1 for an error. `how`: 0 epoll_wait, 1 epoll_pwait, 2 epoll_pwait2.
  int wait(int timeout_ms, int how = 0) {
    epoll_event events[4] = {};
    const timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    int ready = 0;
    if (how == 0) ready = ::epoll_wait(set_, events, 4, timeout_ms);
    if (how == 1) ready = ::epoll_pwait(set_, events, 4, timeout_ms, nullptr);
    if (how == 2) ready = ::epoll_pwait2(set_, events, 4, &timeout, nullptr);
    if (ready <= 0) return ready;
    if (ready != 1 || events[0].data.u64 != kEpollData)
      std::abort();  // its data is not ours to change
    return static_cast<int>(events[0].events);
  }

 private:
  int fd_;
  int set_;
};

/// Ready events of one descriptor, 0 for none, -1 for an error.
int poll_one(int fd, int events, int timeout_ms);
int select_one(int fd, int events, int timeout_ms, bool with_mask);
/// `how`: poll, ppoll, select, pselect, epoll_wait, epoll_pwait, epoll_pwait2.
int wait_one(int fd, int how, int events, int timeout_ms);
/// Waits until exactly `bytes` can be read. False: they do not come.
bool settle(int fd, std::int64_t bytes);
bool would_block(ssize_t result);

/// One call that sends `data` or receives into it, by one of the methods. Details are added to
/// `said`.
extern const char* const kSendNames[kSendMethods];
extern const char* const kReceiveNames[kReceiveMethods];
bool takes_flags(int how);
bool receives_with_flags(int how);
ssize_t send_by(int fd, int how, Bytes& data, int flags, Said* said);
ssize_t receive_by(int fd, int how, Bytes& data, int flags, Said* said);

/// Sends everything, however many calls that takes.
ssize_t transfer_out(int fd, int how, Bytes& data, std::size_t chunk);
/// Receives exactly data.size() bytes; `data` keeps what came.
ssize_t transfer_in(int fd, int how, Bytes& data, std::size_t chunk);

}  // namespace clan::interpose_test
