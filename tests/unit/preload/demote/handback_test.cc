#include "demote/handback.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "clan/detail/clock.h"
#include "demote/demote_steps.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "preload/tcp_pair.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kGivenBack;

struct ReturnedBytes : testing::Test {
  ReturnedBytes() {
    EXPECT_EQ(::send(pair.fd(0), "unread", 6, 0), 6);
    pair.migrate();
    EXPECT_TRUE(switch_sending(pair.fd(0), pair.socket(0)));
    memfd = ::memfd_create(kTakenName, MFD_CLOEXEC);
    const TakenHead head = head_of(pair.socket(1));
    EXPECT_EQ(::write(memfd, &head, sizeof head), static_cast<ssize_t>(sizeof head));
  }
  ~ReturnedBytes() override { ::close(memfd); }
  void send_again(const HandedBack& given) const {
    const std::int32_t us = OpenFileState::kSendsAgain | closer_id();
    pair.socket(0).open_file().sends = OpenFileState::closed_by(us);
    resend(pair.fd(0), pair.socket(0), given.memfd, us);
    EXPECT_EQ(pair.socket(0).open_file().sends.load(), 0u);
  }
  TcpPair pair;
  int memfd;
  const std::uint64_t soon = monotonic_ns() + 10'000'000'000u;
};

TEST_F(ReturnedBytes, AreNotReadFromWhoSendsOnAndOnBehindTheDeadline) {
  // it says that it sends by TCP up to there
  pair.socket(0).mine().words[socket_face::kSwitchAt].store(1u << 30);
  EXPECT_FALSE(take_unread(pair.fd(1), pair.socket(1), memfd, monotonic_ns() - 1));
  char text[8] = {};
  EXPECT_EQ(::recv(pair.fd(1), text, sizeof text, MSG_PEEK | MSG_DONTWAIT), 6)
      << "bytes were taken";
}

TEST_F(ReturnedBytes, AreTakenOutOfTcpUpToTheSwitch) {
  EXPECT_TRUE(take_unread(pair.fd(1), pair.socket(1), memfd, soon));
  char text[8] = {};
  EXPECT_EQ(::pread(memfd, text, sizeof text, sizeof(TakenHead)), 6);
  EXPECT_STREQ(text, "unread");
  EXPECT_FALSE(reads_tcp(pair.socket(1)));
}

TEST_F(ReturnedBytes, AreFoundByTheirSender) {
  ASSERT_TRUE(take_unread(pair.fd(1), pair.socket(1), memfd, soon));
  give_back(pair.socket(1), memfd);
  const HandedBack given = given_back(pair.socket(0));
  EXPECT_FALSE(given.lost);
  ASSERT_GE(given.memfd, 0);
  char text[8] = {};
  EXPECT_EQ(::pread(given.memfd, text, sizeof text, sizeof(TakenHead)), 6);
  ::close(given.memfd);
}

// A file without end, with the right head.
TEST_F(ReturnedBytes, ThatAreMoreThanWereEverSentResetTheConnection) {
  ASSERT_EQ(::ftruncate(memfd, 1L << 40), 0);
  ::lseek(memfd, 0, SEEK_END);
  give_back(pair.socket(1), memfd);
  const HandedBack given = given_back(pair.socket(0));
  ASSERT_GE(given.memfd, 0);
  send_again(given);
  std::vector<char> bytes(1 << 20);
  std::size_t got = 0;
  ssize_t n = 0;
  while (got < bytes.size() && (n = ::recv(pair.fd(1), bytes.data(), bytes.size(), 0)) > 0)
    got += static_cast<std::size_t>(n);
  EXPECT_LE(got, 6u);
  EXPECT_LT(n, 0);
}

TEST_F(ReturnedBytes, AreLeftInTcpWhereThereIsNoFileForThem) {
  EXPECT_FALSE(take_unread(pair.fd(1), pair.socket(1), -1, soon));
  char text[8];
  EXPECT_EQ(::recv(pair.fd(1), text, sizeof text, MSG_PEEK | MSG_DONTWAIT), 6);
}

TEST_F(ReturnedBytes, ThatCannotBeKeptResetTheConnection) {
  const std::string path = "/proc/self/fd/" + std::to_string(memfd);
  const int read_only = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_FALSE(take_unread(pair.fd(1), pair.socket(1), read_only, soon));
  ::close(read_only);
  EXPECT_TRUE(pair.socket(1).kernel_error);
  char byte;
  EXPECT_EQ(::recv(pair.fd(0), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(ReturnedBytes, ThatCannotBeSentAgainResetTheConnection) {
  ASSERT_TRUE(take_unread(pair.fd(1), pair.socket(1), memfd, soon));
  give_back(pair.socket(1), memfd);
  const HandedBack given = given_back(pair.socket(0));
  ASSERT_GE(given.memfd, 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  send_again(given);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(pair.socket(0).is_resending());
  char byte;
  EXPECT_EQ(::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, ECONNRESET);
}

TEST_F(ReturnedBytes, ThatAreNoneAreSaidToBeNone) {
  give_back(pair.socket(1), memfd);
  EXPECT_EQ(given_back(pair.socket(0)).word, kNothing);
}

TEST_F(ReturnedBytes, OfAnotherConnectionAreNotTaken) {
  const TakenHead other{.magic = TakenHead().magic, .pipe = 1};
  ASSERT_EQ(::pwrite(memfd, &other, sizeof other, 0), static_cast<ssize_t>(sizeof other));
  ASSERT_TRUE(take_unread(pair.fd(1), pair.socket(1), memfd, soon));
  give_back(pair.socket(1), memfd);
  const HandedBack given = given_back(pair.socket(0));
  EXPECT_TRUE(given.lost);
  EXPECT_EQ(given.memfd, -1);
}

TEST_F(ReturnedBytes, ByADescriptorThatIsNoSuchFileAreLost) {
  // a hostile peer: our standard input
  const auto where = static_cast<std::uint64_t>(::getpid()) << 32 | 0u;
  pair.socket(1).mine().words[kGivenBack].store(where);
  EXPECT_TRUE(given_back(pair.socket(0)).lost);
}

}  // namespace
}  // namespace clan::preload
