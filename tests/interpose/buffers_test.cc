// How much a connection that has moved takes, and holds: what TCP does. Run with the interposer
// preloaded, and without: both have to pass.
#include <sys/stat.h>

#include <cstdio>
#include <map>

#include "connection.h"

namespace clan::test {
namespace {

const bool watched = Watchdog::start();

// The last number of a setting of TCP's: a most, in bytes.
std::size_t most_of(const char* name) {
  const std::string path = std::string("/proc/sys/net/ipv4/") + name;
  std::size_t least = 0, usual = 0, most = 4 << 20;
  if (std::FILE* file = std::fopen(path.c_str(), "r")) {
    EXPECT_EQ(std::fscanf(file, "%zu %zu %zu", &least, &usual, &most), 3);
    std::fclose(file);
  }
  return most;
}

// Until nothing is taken any more. TCP needs a moment to carry over what it has.
std::size_t fill(int fd) {
  const std::string much(64 * 1024, 'x');
  std::size_t sent = 0;
  for (int idle = 0; idle < 20;) {
    const ssize_t n = ::send(fd, much.data(), much.size(), MSG_DONTWAIT);
    if (n > 0) sent += static_cast<std::size_t>(n);
    idle = n > 0 ? 0 : idle + 1;
    if (n < 0) ::usleep(2000);
  }
  return sent;
}

bool writable(int fd) {
  pollfd p{fd, POLLOUT, 0};
  return ::poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0;
}

TEST(Buffers, TakeMegabytesThatNobodyReads) {
  Pair pair;
  const std::size_t most = std::min<std::size_t>(most_of("tcp_wmem"), 16 << 20),
                    sent = fill(pair.near);
  EXPECT_GE(sent, most / 10 * 9);
  EXPECT_LE(sent, most * 2 + (8 << 20));
  EXPECT_FALSE(writable(pair.near));
  const std::string got = get(pair.far, sent);
  EXPECT_EQ(got.size(), sent);
  EXPECT_TRUE(comes_true([&] { return writable(pair.near); }));
  pair.expect_carried(sent, 0);
}

TEST(Buffers, TakeNoMoreThanTheirSizesSay) {
  for (const bool before : {true, false}) {
    Pair pair(false);
    if (!before) pair.move();
    const int sends = 100'000, receives = 60'000;
    ::setsockopt(pair.near, SOL_SOCKET, SO_SNDBUF, &sends, sizeof sends);
    ::setsockopt(pair.far, SOL_SOCKET, SO_RCVBUF, &receives, sizeof receives);
    if (before) pair.move();
    const std::size_t sent = fill(pair.near);
    EXPECT_GE(sent, 150'000u);
    EXPECT_LE(sent, 500'000u);
    EXPECT_FALSE(writable(pair.near));
    EXPECT_EQ(get(pair.far, sent).size(), sent);
  }
}

// Both ends write first, and read then.
TEST(Buffers, HoldWhatBothEndsWriteBeforeEitherReads) {
  Pair pair;
  const std::string there(1'500'000, 'x'), back(1'500'000, 'y');
  Thread writer([&] {
    EXPECT_EQ(::write(pair.near, there.data(), there.size()), static_cast<ssize_t>(there.size()));
  });
  EXPECT_EQ(::write(pair.far, back.data(), back.size()), static_cast<ssize_t>(back.size()));
  writer.join();
  EXPECT_EQ(get(pair.far, there.size()), there);
  EXPECT_EQ(get(pair.near, back.size()), back);
  pair.expect_carried(there.size(), back.size());
}

// A sender that waits for room gets some at a time, not each line as it is read.
TEST(Buffers, AreWritableAgainWhenAPartIsFree) {
  Pair pair;
  const std::size_t sent = fill(pair.near);
  pollfd p{pair.near, POLLOUT, 0};
  Thread reader([&] {
    ::usleep(20'000);
    for (std::size_t got = 0; got < sent;)
      got += get(pair.far, std::min<std::size_t>(sent - got, 50'000)).size();
  });
  EXPECT_EQ(::poll(&p, 1, 10'000), 1);
  EXPECT_GE(::send(pair.near, std::string(60'000, 'z').data(), 60'000, MSG_DONTWAIT), 60'000);
  reader.join();
  EXPECT_EQ(get(pair.far, 60'000), std::string(60'000, 'z'));
}

// --- memory --------------------------------------------------------------------------------------

// Sums the memory of all connections of this process that have moved.
std::uint64_t memory_of_pipes() {
  std::map<ino_t, std::uint64_t> bytes;  // both ends are here
  for (const int fd : pipes()) {
    struct stat st {};
    if (::fstat(fd, &st) == 0) bytes[st.st_ino] = static_cast<std::uint64_t>(st.st_blocks) * 512;
  }
  std::uint64_t sum = 0;
  for (const auto& [inode, of_one] : bytes) sum += of_one;
  return sum;
}

void carry(int from, int to, std::size_t bytes) {
  const std::string out(bytes, 'm');
  Thread writer(
      [&] { EXPECT_EQ(::write(from, out.data(), out.size()), static_cast<ssize_t>(out.size())); });
  EXPECT_EQ(get(to, bytes), out);
  writer.join();
}

TEST(Memory, OfAConnectionThatCarriesShortMessagesIsLittle) {
  Pair pair;
  pair.talk(3000);
  EXPECT_LE(memory_of_pipes(), 32 * 1024u);
}

// By a thread that sleeps in poll, however short the time since the last release.
TEST(Memory, ComesBackInSilence) {
  Pair pair;
  pollfd p{pair.near, POLLIN, 0};
  for (const std::size_t bytes : {3'000'000, 40'000, 3'000'000, 700'000}) {
    carry(pair.near, pair.far, bytes);
    carry(pair.far, pair.near, bytes);
    EXPECT_EQ(::poll(&p, 1, 0), 0);
  }
  EXPECT_EQ(::poll(&p, 1, 4000), 0);
  EXPECT_LE(memory_of_pipes(), 16 * 1024u);
  carry(pair.near, pair.far, 100'000);
}

// The other end's thread sleeps in a blocking read, and this one does nothing at all.
TEST(Memory, ComesBackThroughEitherEnd) {
  Pair pair;
  Thread reader([&] { EXPECT_EQ(get(pair.far, 3'000'000 + 500'000 + 1).size(), 3'500'001u); });
  for (const std::size_t bytes : {3'000'000, 500'000}) {
    const std::string out(bytes, 'm');
    EXPECT_EQ(::write(pair.near, out.data(), out.size()), static_cast<ssize_t>(out.size()));
  }
  EXPECT_TRUE(reader.falls_asleep());
  ::usleep(3'500'000);
  EXPECT_LE(memory_of_pipes(), 16 * 1024u);
  put(pair.near, "!");
  reader.join();
}

// A timer that the program has set still comes when it should, and a handler still ends the wait.
TEST(Memory, ThatIsOwedDoesNotChangeHowLongACallWaits) {
  Pair pair;
  for (int i = 0; i < 2; ++i) carry(pair.near, pair.far, 300'000);
  pollfd p{pair.near, POLLIN, 0};
  timespec before{}, after{};
  ::clock_gettime(CLOCK_MONOTONIC, &before);
  EXPECT_EQ(::poll(&p, 1, 1500), 0);
  ::clock_gettime(CLOCK_MONOTONIC, &after);
  const double seconds = static_cast<double>(after.tv_sec - before.tv_sec) +
                         static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  EXPECT_GE(seconds, 1.499);
  EXPECT_LT(seconds, 4);
}

}  // namespace
}  // namespace clan::test
