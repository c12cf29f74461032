#include "tcp/tcp_backlog.h"

#include <linux/tcp.h>
#include <sys/ioctl.h>

#include "preload/tcp_pair.h"
#include "state/remote.h"
#include "stream/ending.h"

namespace clan::preload {
namespace {

TEST(TcpPrefix, OfBytesFromBeforeTheSwitchIsReadFirst) {
  TcpPair pair;
  ASSERT_EQ(::send(pair.fd(0), "before ", 7, 0), 7);
  pair.migrate();
  EXPECT_FALSE(switch_sending(pair.fd(1), pair.socket(1)) && sends_tcp(pair.socket(1)));
  ASSERT_EQ(pair.send(0, "after"), 5);
  EXPECT_EQ(pair.socket(0).mine().words[socket_face::kSwitchAt].load(), 7u);
  EXPECT_TRUE(reads_tcp(pair.socket(1)));
  EXPECT_EQ(pair.receive(1), "before after");
  EXPECT_FALSE(reads_tcp(pair.socket(1)));
}

TEST(TcpPrefix, TellsWhatOfTheKernelsQueueIsTheApplications) {
  TcpPair pair;
  ASSERT_EQ(::send(pair.fd(0), "1234", 4, 0), 4);
  pair.migrate();
  ASSERT_TRUE(switch_sending(pair.fd(0), pair.socket(0)));
  std::size_t certain = 0;
  EXPECT_EQ(left_in_tcp(pair.fd(1), pair.socket(1), &certain), 4);
  EXPECT_EQ(certain, 4u);
}

TEST(TcpPrefix, ThatCannotBeResetsTheConnection) {
  TcpPair pair;
  pair.migrate();
  ASSERT_TRUE(switch_sending(pair.fd(0), pair.socket(0)));
  // a hostile peer
  pair.socket(0).mine().words[socket_face::kSwitchAt].store(std::uint64_t{1} << 40);
  std::size_t certain = 0;
  EXPECT_LT(left_in_tcp(pair.fd(1), pair.socket(1), &certain), 0);
  EXPECT_EQ(errno, ECONNRESET);
}

int option_of(int fd, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(sys::getsockopt(fd, IPPROTO_TCP, name, &value, &size), 0);
  return value;
}

void switch_on(int fd, int name) {
  const int on = 1;
  ASSERT_EQ(sys::setsockopt(fd, IPPROTO_TCP, name, &on, sizeof on), 0);
}

void expect_sent_by_the_switch(TcpPair& pair) {
  pair.migrate();
  ASSERT_TRUE(switch_sending(pair.fd(0), pair.socket(0)));
  tcp_info info{};
  socklen_t size = sizeof info;
  ASSERT_EQ(sys::getsockopt(pair.fd(0), IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  EXPECT_EQ(info.tcpi_notsent_bytes, 0u);
}

TEST(TcpPrefix, IsNotHeldBackByTheOptionsOfTheProgramWhichStay) {
  TcpPair pair;
  switch_on(pair.fd(0), TCP_CORK);
  ASSERT_EQ(::send(pair.fd(0), "corked", 6, 0), 6);
  expect_sent_by_the_switch(pair);
  EXPECT_EQ(option_of(pair.fd(0), TCP_CORK), 1);
  EXPECT_EQ(option_of(pair.fd(0), TCP_NODELAY), 0);
}

TEST(TcpPrefix, IsNotHeldBackBySendsThatAnnouncedMore) {
  TcpPair pair;
  switch_on(pair.fd(0), TCP_NODELAY);
  ASSERT_EQ(::send(pair.fd(0), "more", 4, MSG_MORE), 4);
  expect_sent_by_the_switch(pair);
  EXPECT_EQ(option_of(pair.fd(0), TCP_NODELAY), 1);
}

TEST(TcpPrefix, ADirectionDoesNotSwitchUnderACallInTheKernel) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  const OpenFileState::UnderWay call(s.slot->sends);
  EXPECT_FALSE(switch_sending(pair.fd(0), s));
  EXPECT_TRUE(sends_tcp(s));
}

TEST(TcpPrefix, AnEndIsNotedButNotThatOfADescriptorThatWasClosed) {
  Socket s;
  errno = EBADF;
  note_end(-1, s, -1);
  EXPECT_FALSE(s.kernel_error);
  errno = ECONNRESET;
  note_end(-1, s, -1);
  EXPECT_TRUE(s.kernel_error);
  note_end(-1, s, 0);
  EXPECT_TRUE(s.kernel_end);
}

// Perhaps by another process that has the socket.
TEST(TcpPrefix, AnEndThatReadsNoMoreIsNoEndOfTheOtherOne) {
  TcpPair pair;
  pair.migrate_and_greet();
  Socket& s = pair.socket(0);
  ASSERT_EQ(::shutdown(pair.fd(0), SHUT_RD), 0);
  look_for_end(pair.fd(0), s);
  EXPECT_FALSE(s.kernel_end);
  EXPECT_EQ(pair.receive(0), "");
  EXPECT_EQ(errno, 0) << "nothing comes any more";
  s.checked_ns.store(0);
  ASSERT_EQ(pair.send(0, "on"), 2);
  EXPECT_EQ(pair.receive(1), "on");
  pair.close(1);
  look_for_end(pair.fd(0), s);
  EXPECT_TRUE(s.kernel_end);
}

}  // namespace
}  // namespace clan::preload
