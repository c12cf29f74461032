#include "stock_socket.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace clan::rpc {
namespace {

constexpr std::size_t kMostReply = std::size_t{1} << 31;
constexpr std::size_t kPiece = 65536;
constexpr std::size_t kScratch = 8192;
constexpr int kMostReads = 64;  ///< in one look: their sender may never stop
constexpr int kWriteMs = 2000;  ///< libtirpc's own limit, where it has one

}  // namespace

bool is_datagram_socket(int fd) {
  int type = 0;
  socklen_t length = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM;
}

bool send_by_socket(int fd, const char* reply, std::size_t bytes, const netbuf* to) {
  if (bytes >= kMostReply) return false;
  if (is_datagram_socket(fd)) {
    return sendto(fd, reply, bytes, MSG_NOSIGNAL, static_cast<const sockaddr*>(to->buf), to->len) ==
           static_cast<ssize_t>(bytes);
  }
  std::uint32_t mark = htonl(static_cast<std::uint32_t>(bytes) | 0x8000'0000u);
  iovec parts[2] = {{&mark, sizeof mark}, {const_cast<char*>(reply), bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (parts[0].iov_len + parts[1].iov_len > 0) {
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n > 0) {
      for (std::size_t sent = static_cast<std::size_t>(n); iovec & part : parts) {
        const std::size_t here = std::min(sent, part.iov_len);
        part.iov_base = static_cast<char*>(part.iov_base) + here;
        part.iov_len -= here;
        sent -= here;
      }
      continue;
    }
    if (errno == EINTR) continue;
    pollfd p{fd, POLLOUT, 0};
    if (errno != EAGAIN || ::poll(&p, 1, kWriteMs) <= 0) return false;
  }
  return true;
}

SocketReply::State SocketReply::look() {
  if (!part_) message_.clear();
  if (!is_datagram_socket(fd_)) return read_stream();
  char buffer[65536];
  const ssize_t n = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? State::kNothing : State::kEnd;
  message_.assign(buffer, buffer + n);
  return State::kWhole;
}

void SocketReply::forget() {
  forgotten_ = part_;
  if (message_.capacity() <= kPiece) return message_.clear();
  std::vector<char>().swap(message_);
}

ssize_t SocketReply::read_mark() {
  const ssize_t n = recv(fd_, mark_ + mark_bytes_, 4 - mark_bytes_, MSG_DONTWAIT);
  if (n > 0) mark_bytes_ += static_cast<unsigned>(n);
  if (n <= 0 || mark_bytes_ < 4) return n;
  std::uint32_t mark;
  std::memcpy(&mark, mark_, 4);
  mark = ntohl(mark);
  last_ = (mark & 0x8000'0000u) != 0;
  left_ = mark & 0x7fff'ffffu;
  return n;
}

ssize_t SocketReply::read_fragment() {
  char scratch[kScratch];
  const std::size_t had = message_.size();
  const std::size_t room = std::min<std::size_t>(left_, forgotten_ ? kScratch : kPiece);
  if (!forgotten_) message_.resize(had + room);
  const ssize_t n = recv(fd_, forgotten_ ? scratch : message_.data() + had, room, MSG_DONTWAIT);
  if (!forgotten_) message_.resize(had + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  if (n > 0) left_ -= static_cast<std::uint32_t>(n);
  return n;
}

SocketReply::State SocketReply::read_stream() {
  for (int reads = 0; reads < kMostReads; ++reads) {
    if (message_.size() >= kMostReply) return State::kEnd;
    const bool was_part = std::exchange(part_, true);
    const ssize_t n = mark_bytes_ < 4 ? read_mark() : read_fragment();
    if (n <= 0) {
      part_ = was_part;
      if (n == 0 || (errno != EAGAIN && errno != EINTR)) return State::kEnd;
      return part_ ? State::kPart : State::kNothing;
    }
    if (mark_bytes_ < 4 || left_ > 0) continue;
    mark_bytes_ = 0;
    if (!last_) continue;
    part_ = false;
    return std::exchange(forgotten_, false) ? State::kNothing : State::kWhole;
  }
  return State::kPart;
}

}  // namespace clan::rpc
