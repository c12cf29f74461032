#include "tcp/tcp_backlog.h"

#include <linux/tcp.h>
#include <sys/ioctl.h>

#include "preload/tcp_pair.h"
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

// A process that shares the end may have set them since.
TEST(TcpPrefix, OptionsAreGivenBackToTcpOnce) {
  using namespace socket_face;
  const auto corked = [](int fd) {
    int value = -1;
    socklen_t size = sizeof value;
    EXPECT_EQ(sys::getsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, &size), 0);
    return value != 0;
  };
  TcpPair pair;
  pair.migrate_and_greet();
  PipePage::Face& face = pair.socket(0).mine();
  add_state(face, kCorked);
  give_options_back(pair.fd(0), face);
  EXPECT_FALSE(corked(pair.fd(0))) << "doorbells go this way yet";
  add_state(face, kGone);
  give_options_back(pair.fd(0), face);
  EXPECT_TRUE(corked(pair.fd(0)));
  const int off = 0;
  ASSERT_EQ(sys::setsockopt(pair.fd(0), IPPROTO_TCP, TCP_CORK, &off, sizeof off), 0);
  give_options_back(pair.fd(0), face);
  EXPECT_FALSE(corked(pair.fd(0)));
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
