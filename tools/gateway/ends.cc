#include "ends.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace clan::gateway {
namespace {

ssize_t outcome(ssize_t n) {
  if (n >= 0) return n;
  return errno == EAGAIN || errno == EINTR ? kNotNow : kGone;
}

ssize_t outcome(const Result<std::size_t>& n) {
  if (n) return static_cast<ssize_t>(*n);
  return n.error().err == EAGAIN ? kNotNow : kGone;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  close();
  fd_ = std::exchange(other.fd_, -1);
  watched_ = std::exchange(other.watched_, kUnwatched);
  return *this;
}

ssize_t Socket::recv(std::span<std::byte> to) {
  return outcome(::recv(fd_, to.data(), to.size(), 0));
}

ssize_t Socket::send(Bytes bytes) {
  return outcome(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

bool Socket::shutdown_send() {
  (void)shutdown(fd_, SHUT_WR);  // fails where the other end has gone, which recv says
  return true;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  watched_ = kUnwatched;
}

void Socket::reset() {
  const linger at_once{1, 0};
  if (fd_ >= 0) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

void Socket::watch(int set, std::uint32_t events, std::uint64_t tag) {
  if (fd_ < 0 || events == watched_) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  (void)epoll_ctl(set, watched_ == kUnwatched ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd_, &event);
  watched_ = events;
}

void Socket::unwatch(int set) {
  if (watched_ != kUnwatched) (void)epoll_ctl(set, EPOLL_CTL_DEL, fd_, nullptr);
  watched_ = kUnwatched;
}

ssize_t NativeEnd::recv(std::span<std::byte> to) { return outcome(stream_.try_recv(to)); }

ssize_t NativeEnd::send(Bytes bytes) { return outcome(stream_.try_send(bytes)); }

bool NativeEnd::shutdown_send() {
  const Status status = stream_.shutdown_send(0);
  return status.ok() || (status.error().err != EAGAIN && status.error().err != ETIMEDOUT);
}

}  // namespace clan::gateway
