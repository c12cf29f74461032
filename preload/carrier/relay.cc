#include "carrier/relay.h"

#include <clan/system_call.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <utility>

namespace clan::preload {
namespace {

constexpr std::size_t kBytes = 128 * 1024;  ///< that wait, each way
constexpr int kRounds = 16;                 ///< of a turn
constexpr std::size_t kMostDropped = 1 << 20;

// Past the interposed calls: this end is none of the program's sockets.
long receive(int fd, std::span<std::byte> to) {
  return sys::call(SYS_recvfrom, fd, to.data(), to.size(), MSG_DONTWAIT, nullptr, nullptr);
}

long send(int fd, std::span<const std::byte> bytes) {
  return sys::call(SYS_sendto, fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, nullptr,
                   0);
}

bool waits() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Relay::Relay(int fd, Stream&& stream) : fd_(fd), stream_(std::move(stream)) {
  out_.bytes.resize(kBytes);
  in_.bytes.resize(kBytes);
}

Relay::~Relay() {
  if (!out_.told) stream_.abort();
  if (!in_.told || failed_) {
    const linger reset{1, 0};
    (void)sys::call(SYS_setsockopt, fd_, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  sys::close(fd_);
}

// The other host takes nothing more. What it has sent is still to be read: take_in() finds the end
// behind that. A program that writes on and does not read is told of it at last.
void Relay::drop() {
  deaf_ = true;
  dropped_ += out_.left().size();
  out_.begin = out_.end;
  failed_ = failed_ || dropped_ > kMostDropped;
}

// True: something has been handed on.
bool Relay::send_out() {
  Way& way = out_;
  bool moved = false;
  if (way.empty() && !way.read_all) {
    const long n = receive(fd_, way.bytes);
    if (n < 0) {
      failed_ = failed_ || !waits();
      return false;
    }
    way.begin = 0;
    way.end = static_cast<std::size_t>(n);
    way.read_all = n == 0;
    moved = true;
  }
  if (!way.empty()) {
    const auto n = stream_.try_send(way.left());
    if (!n && n.error().err == EAGAIN) return moved;
    if (!n) return drop(), true;
    way.begin += *n;
    moved = moved || *n > 0;
  }
  if (way.empty() && way.read_all && !way.told) {
    const Status done = stream_.shutdown_send(0);
    way.told = done.ok();
    deaf_ = deaf_ || (!done.ok() && done.error().err != ETIMEDOUT && done.error().err != EAGAIN);
    moved = moved || way.told;
  }
  return moved;
}

bool Relay::take_in() {
  Way& way = in_;
  bool moved = false;
  if (way.empty() && !way.read_all) {
    const auto n = stream_.try_recv(way.bytes);
    if (!n) {
      failed_ = failed_ || n.error().err != EAGAIN;
      return false;
    }
    way.begin = 0;
    way.end = *n;
    way.read_all = *n == 0;
    moved = true;
  }
  if (!way.empty()) {
    const long n = send(fd_, way.left());
    if (n < 0) {
      failed_ = failed_ || !waits();
      return moved;
    }
    way.begin += static_cast<std::size_t>(n);
    moved = moved || n > 0;
  }
  if (way.empty() && way.read_all && !way.told) {
    way.told = sys::call(SYS_shutdown, fd_, SHUT_WR) == 0;
    failed_ = failed_ || !way.told;
    moved = moved || way.told;
  }
  return moved;
}

Relay::Turn Relay::serve() {
  for (int round = 0; round < kRounds; ++round) {
    const bool out = !is_over() && !out_.told && send_out();
    const bool in = !is_over() && !in_.told && take_in();
    if (is_over()) return Turn::kOver;
    if (!out && !in) return Turn::kWaits;
  }
  return Turn::kMore;
}

bool Relay::finish() {
  while (!is_over() && !out_.told && send_out()) {
  }
  if (is_over() || out_.told || deaf_) return true;
  if (!out_.empty()) return false;
  // As the kernel would when the last descriptor is closed.
  out_.told = stream_.shutdown_send(0).ok();
  return out_.told;
}

}  // namespace clan::preload
