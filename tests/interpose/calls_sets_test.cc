// epoll sets where the kernel's rules are less well known: sets in sets by edges, registrations
// that outlive their descriptor, and what a program may use as data. What is expected is what the
// kernel does by itself. Run with the interposer preloaded, and without: both have to pass.
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <string>
#include <utility>

#include "connection.h"

namespace clan::test {
namespace {

const bool watched = Watchdog::start();

constexpr int kSoonMs = 20'000;
constexpr std::uint64_t kData = 7;

/// One whose events all have the same data.
struct Set {
  int fd = ::epoll_create1(EPOLL_CLOEXEC);
  Set() = default;
  ~Set() { ::close(fd); }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;
  int control(int op, int of, std::uint32_t events, std::uint64_t data = kData) const {
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    return ::epoll_ctl(fd, op, of, &event);
  }
  int add(int of, std::uint32_t events) const { return control(EPOLL_CTL_ADD, of, events); }
  /// What one wait tells, of one descriptor at most. -1: of another one, or of several.
  int ready(int timeout_ms = 0, std::uint64_t data = kData) const {
    epoll_event events[4] = {};
    const int n = ::epoll_wait(fd, events, 4, timeout_ms);
    if (n == 0) return 0;
    return n == 1 && events[0].data.u64 == data ? static_cast<int>(events[0].events) : -1;
  }
};

bool is_readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

// --- sets in sets, whose sockets go back to TCP
// ---------------------------------------------------

struct Nested : testing::Test {
  void nest(std::uint32_t outer_events, std::uint32_t inner_events = EPOLLIN) {
    ASSERT_EQ(inner.add(pair.far, inner_events), 0);
    ASSERT_EQ(outer.add(inner.fd, outer_events), 0);
  }
  Pair pair;
  Set inner, outer;
};

TEST_F(Nested, ByEdgesAreToldOncePerArrival) {
  nest(EPOLLIN | EPOLLET);
  EXPECT_EQ(outer.ready(), 0);
  for (int round = 0; round < 5; ++round) {
    put(pair.near, "abc");
    EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN) << "round " << round;
    EXPECT_EQ(outer.ready(), 0) << "nothing has come since";
    EXPECT_EQ(outer.ready(20), 0) << "nothing has come since";
    EXPECT_FALSE(is_readable(outer.fd));
    EXPECT_TRUE(is_readable(inner.fd));
    EXPECT_EQ(inner.ready(), EPOLLIN);
  }
  EXPECT_EQ(get(pair.far, 15).size(), 15u);
  EXPECT_EQ(outer.ready(), 0);
  put(pair.near, "abc");
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  EXPECT_TRUE(by_tcp(pair.near));
}

TEST_F(Nested, ByEdgesAreToldAnewWhenTheyAreAskedForAnew) {
  nest(EPOLLIN | EPOLLET);
  put(pair.near, "abc");
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  EXPECT_EQ(outer.ready(), 0);
  ASSERT_EQ(outer.control(EPOLL_CTL_MOD, inner.fd, EPOLLIN | EPOLLET), 0);
  EXPECT_EQ(outer.ready(), EPOLLIN);
  EXPECT_EQ(outer.ready(), 0);
  ASSERT_EQ(inner.control(EPOLL_CTL_MOD, pair.far, EPOLLIN), 0);
  EXPECT_EQ(outer.ready(), 0) << "the inner set has told of nothing yet";
  ASSERT_EQ(inner.control(EPOLL_CTL_DEL, pair.far, 0), 0);
  EXPECT_EQ(outer.ready(), 0);
  ASSERT_EQ(inner.add(pair.far, EPOLLIN | EPOLLET), 0);
  EXPECT_EQ(outer.ready(), EPOLLIN) << "it is in the inner set anew";
  EXPECT_EQ(inner.ready(), EPOLLIN);
  ASSERT_EQ(inner.control(EPOLL_CTL_MOD, pair.far, EPOLLIN | EPOLLET), 0);
  EXPECT_EQ(outer.ready(), EPOLLIN) << "the inner set tells of it anew";
  EXPECT_EQ(outer.ready(), 0);
}

TEST_F(Nested, ByEdgesWakeAThreadWhileOlderBytesLieUnread) {
  nest(EPOLLIN | EPOLLET);
  put(pair.near, "abc");
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  for (int round = 0; round < 3; ++round) {
    int said = 0;
    {
      Thread waits([&] { said = outer.ready(-1); });
      EXPECT_TRUE(waits.falls_asleep());
      put(pair.near, "x");
    }
    EXPECT_EQ(said, EPOLLIN);
    EXPECT_EQ(outer.ready(), 0);
  }
}

TEST_F(Nested, ByEdgesAreToldOfRoomOnce) {
  nest(EPOLLIN | EPOLLET, EPOLLOUT);
  EXPECT_EQ(outer.ready(), EPOLLIN);
  EXPECT_EQ(outer.ready(), 0);
  EXPECT_EQ(inner.ready(), EPOLLOUT);
  EXPECT_EQ(outer.ready(), 0);
}

TEST_F(Nested, ByEdgesAreToldOfPlainDescriptorsInThemToo) {
  nest(EPOLLIN | EPOLLET);
  const int bell = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(inner.add(bell, EPOLLIN), 0);
  put(pair.near, "abc");
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  EXPECT_EQ(outer.ready(), 0);
  ASSERT_EQ(::eventfd_write(bell, 1), 0);
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  EXPECT_EQ(outer.ready(), 0);
  ::close(bell);
}

TEST_F(Nested, ByEdgesAreToldThroughASetBetween) {
  Set outermost;
  nest(EPOLLIN);
  ASSERT_EQ(outermost.add(outer.fd, EPOLLIN | EPOLLET), 0);
  for (int round = 0; round < 3; ++round) {
    put(pair.near, "abc");
    EXPECT_EQ(outermost.ready(kSoonMs), EPOLLIN) << "round " << round;
    EXPECT_EQ(outermost.ready(), 0);
    EXPECT_EQ(outer.ready(), EPOLLIN);
  }
}

TEST_F(Nested, AsAOneShotAreSilentWhateverComesUntilTheyAreAskedForAnew) {
  nest(EPOLLIN | EPOLLONESHOT);
  const int bell = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(inner.add(bell, EPOLLIN), 0);
  put(pair.near, "abc");
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  put(pair.near, "abc");
  ASSERT_EQ(::eventfd_write(bell, 1), 0);
  EXPECT_EQ(outer.ready(20), 0);
  ASSERT_EQ(outer.control(EPOLL_CTL_MOD, inner.fd, EPOLLIN | EPOLLONESHOT), 0);
  EXPECT_EQ(outer.ready(kSoonMs), EPOLLIN);
  ::close(bell);
}

// The peer has closed before the set is in another one, or before the socket is in it.
TEST_F(Nested, TellOfWhatAPeerHasLeftThatHasClosed) {
  for (const bool late : {false, true}) {
    for (const std::string bytes : {"", "abc"}) {
      SCOPED_TRACE(bytes + (late ? " late" : ""));
      Pair closing;
      Set in, out;
      EXPECT_EQ(late ? out.add(in.fd, EPOLLIN) : in.add(closing.far, EPOLLIN), 0);
      put(closing.near, bytes);
      closing.close_near();
      EXPECT_EQ(late ? in.add(closing.far, EPOLLIN) : out.add(in.fd, EPOLLIN), 0);
      EXPECT_EQ(out.ready(kSoonMs), EPOLLIN);
      EXPECT_EQ(in.ready(), EPOLLIN);
      EXPECT_EQ(get(closing.far, bytes.size()), bytes);
      EXPECT_EQ(out.ready(kSoonMs), EPOLLIN) << "its end";
      EXPECT_EQ(in.ready(), EPOLLIN);
      char byte;
      EXPECT_EQ(::read(closing.far, &byte, 1), 0);
    }
  }
}

// --- what is registered ------------------------------------------------------------------------

TEST(Registration, OutlivesItsDescriptorWhileACopyIsOpen) {
  for (const bool moves : {false, true}) {
    SCOPED_TRACE(moves ? "of a connection that has moved" : "of one that has not yet");
    Pair pair(moves);
    Set set;
    ASSERT_EQ(set.add(pair.far, EPOLLIN), 0);
    put(pair.near, "a");
    const int copy = ::dup(pair.far), closed = pair.far;
    pair.close_far();
    EXPECT_EQ(set.ready(kSoonMs), EPOLLIN);
    EXPECT_EQ(get(copy, 1), "a");
    EXPECT_EQ(set.ready(), 0);
    for (const int op : {EPOLL_CTL_MOD, EPOLL_CTL_DEL}) {
      EXPECT_EQ(set.control(op, closed, EPOLLIN), -1);
      EXPECT_EQ(errno, EBADF);
      EXPECT_EQ(set.control(op, copy, EPOLLIN), -1);
      EXPECT_EQ(errno, ENOENT);
    }
    pair.far = copy;
    pair.talk();
    put(pair.near, "b");
    EXPECT_EQ(set.ready(kSoonMs), EPOLLIN);
    pair.close_far();
    EXPECT_EQ(set.ready(20), 0) << "nothing is left of it";
  }
}

TEST(Registration, OfTheFirstSocketIsHeardOfByAThreadThatWaitsAlready) {
  Pair pair;
  Set set;
  int said = 0;
  Thread waits([&] { said = set.ready(5 * kSoonMs); });
  EXPECT_TRUE(waits.falls_asleep());
  ASSERT_EQ(set.add(pair.far, EPOLLIN), 0);
  put(pair.near, "a");
  waits.join();
  EXPECT_EQ(said, EPOLLIN);
  EXPECT_EQ(get(pair.far, 1), "a");
}

TEST(Data, MayBeAnyNumber) {
  Pair pair;
  Set set;
  ASSERT_EQ(set.add(pair.far, EPOLLIN), 0);
  const int bell = ::eventfd(1, EFD_CLOEXEC);
  ASSERT_EQ(set.add(bell, EPOLLIN), 0);
  EXPECT_EQ(set.ready(kSoonMs), EPOLLIN);
  // All that differ in a bit from those by which the library knows its own.
  for (int bit = 22; bit < 64; ++bit) {
    const std::uint64_t data = 0xc1a4'5e7b'0d40'0000u ^ std::uint64_t{1} << bit;
    ASSERT_EQ(set.control(EPOLL_CTL_MOD, bell, EPOLLIN, data), 0);
    EXPECT_EQ(set.ready(kSoonMs, data), EPOLLIN) << bit;
  }
  ::close(bell);
}

}  // namespace
}  // namespace clan::test
