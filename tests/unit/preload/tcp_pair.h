// Two ends of a loopback TCP connection in this process, known to the rooms of the interposer, and
// migrated if asked.
#pragma once

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "attach/attach.h"
#include "clan/face/socket_face.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "migrate/bells.h"
#include "os/sys.h"
#include "stream/receive.h"
#include "stream/send.h"
#include "support/loopback.h"
#include "table/buffers.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"

namespace clan::preload {

/// End 0 is the client's.
class TcpPair {
 public:
  TcpPair() {
    std::ranges::copy(test::tcp_ends(), fds_);
    for (int end = 0; end < 2; ++end) adopt(fds_[end], end == 0, 0);
  }
  ~TcpPair() {
    for (int end = 0; end < 2; ++end) close(end);
  }
  TcpPair(const TcpPair&) = delete;
  TcpPair& operator=(const TcpPair&) = delete;

  int fd(int end) const { return fds_[end]; }
  SocketRef held(int end) const { return acquire(fds_[end]); }
  Socket& socket(int end) const { return *held(end); }  // lives as long as its descriptor

  /// Both ends enter one pipe, as client and server do at their calls.
  void migrate() {
    open_pipe();
    for (const int end : {1, 0}) enter(end);
  }
  /// The same, and each has read a byte of the other's.
  void migrate_and_greet() {
    migrate();
    EXPECT_EQ(send(0, "x"), 1);
    EXPECT_EQ(receive(1), "x");
    EXPECT_EQ(send(1, "y"), 1);
    EXPECT_EQ(receive(0), "y");
  }
  /// Each has its bell and the other's, as where the server's end makes them.
  void give_bells() {
    int through[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, through), 0);
    PassedBells bells;
    ASSERT_TRUE(bells.make(socket(1), through[0]));
    ASSERT_TRUE(bells.adopt(socket(0), through[1]));
    for (const int fd : through) ::close(fd);
  }
  /// How often an end has rung the other one.
  std::uint64_t rings(int end) const {
    return socket(end).mine().words[socket_face::kWakeups].load();
  }
  /// They have it, and are to enter it.
  void open_pipe() {
    auto made = Pipe::create(socket_face::kMemfdName, ring_bytes(), 1);
    ASSERT_TRUE(made);
    auto other = Pipe::open(::dup(made->memfd()), 0);
    ASSERT_TRUE(other);
    socket(1).pipe = std::move(*made);
    socket(0).pipe = std::move(*other);
    give_bells();
  }
  /// What a test has sent and received past the library goes for the library's.
  void count(int end) {
    constexpr int kEstablished = 1;
    std::uint64_t sent = 0;
    int queued = 0;
    if (!sent_by_tcp(fds_[end], &sent) || ::ioctl(fds_[end], FIONREAD, &queued) != 0) return;
    const std::uint64_t received = arrived(fds_[end]) - static_cast<std::uint64_t>(queued);
    const bool fin = tcp_state_of(fds_[end]) != kEstablished && received > 0;  // counts as a byte
    socket(end).open_file().sent = sent;
    socket(end).open_file().received = received - (fin ? 1 : 0);
  }
  void enter(int end) {
    Route route;
    ASSERT_TRUE(route_of(fds_[end], &route));
    count(end);
    ASSERT_TRUE(enter_pipe(fds_[end], socket(end), route));
  }
  void close(int end) {
    if (fds_[end] < 0) return;
    forget(fds_[end]);
    ::close(std::exchange(fds_[end], -1));
  }
  ssize_t send(int end, std::string_view text, int flags = MSG_DONTWAIT | MSG_NOSIGNAL) const {
    const iovec io{const_cast<char*>(text.data()), text.size()};
    return shared_send(fds_[end], socket(end), &io, 1, flags);
  }
  /// What has come, "" if nothing has; errno as recv() leaves it.
  std::string receive(int end, std::size_t most = 4096, int flags = MSG_DONTWAIT) const {
    std::string text(most, '\0');
    const iovec io{text.data(), most};
    errno = 0;
    const ssize_t n = shared_receive(fds_[end], socket(end), &io, 1, flags);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
  }

 private:
  int fds_[2] = {-1, -1};
};

}  // namespace clan::preload
