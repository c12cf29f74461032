#include "wait/set_sleep.h"

#include <fcntl.h>

#include "preload/wait/set.h"
#include "stream/bell.h"
#include "stream/poll_tcp.h"
#include "tcp/doorbell.h"
#include "wait/ready_check.h"
#include "wait/registration.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbells;

struct SetSleeps : EpollSet {
  SetSleeps() { EXPECT_TRUE(poll_tcp_socket(pair.fd(1), pair.socket(1))); }  // no doorbell is left
  ~SetSleeps() override {
    if (outer < 0) return;
    forget_epoll(outer);
    ::close(outer);
  }
  /// The set is in another one.
  void nest(std::uint32_t events = EPOLLIN, std::uint64_t data = 77) {
    outer = make_set();
    epoll_event event{};
    event.events = events;
    event.data.u64 = data;
    ASSERT_EQ(control(outer, EPOLL_CTL_ADD, epfd, &event), 0);
  }
  /// The sockets of the set have just said something: a sleep does not arm them.
  void hear() const {
    const Guard guard(epfd);
    set(epfd).set_now(monotonic_ns());
    for (std::uint32_t k = 0; k < set(epfd).watched.count; ++k) watch(*set(epfd).watched.at[k]);
  }
  /// A doorbell lies there, with nothing in the pipe.
  void ring() { ring_doorbell(pair.fd(0), pair.socket(0)); }
  std::uint64_t rung() const { return pair.socket(0).mine().words[kDoorbells].load(); }
  bool kernel_says_ready() const {
    pollfd p{epfd, POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  Set& set(int fd) const { return *find(fd); }
  bool has_only_doorbells() const { return only_doorbells(set(epfd)); }
  bool is_ready() const {
    const Guard guard(epfd);
    return anything(set(epfd));
  }

  int outer = -1;
};

TEST_F(SetSleeps, APeerRingsForAThreadThatSleepsAndNoLongerThan) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  hear();
  SetSleep* sleep = nullptr;
  {
    const Guard guard(epfd);
    ASSERT_TRUE(prepare(set(epfd), &sleep));
  }
  EXPECT_EQ(set(epfd).sleepers, 1);
  EXPECT_EQ(set(epfd).watched.count, 1u);
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "a"), 1);
  EXPECT_EQ(rung(), before + 1);
  EXPECT_EQ(pair.receive(1), "a");
  hear();
  {
    const Guard guard(epfd);
    awake(sleep);
    sleep = nullptr;
    ASSERT_TRUE(prepare(set(epfd), &sleep));
    awake(sleep);
  }
  EXPECT_EQ(set(epfd).sleepers, 0);
  ASSERT_EQ(pair.send(0, "b"), 1);
  EXPECT_EQ(rung(), before + 1) << "the wish has been taken back";
}

TEST_F(SetSleeps, AreNotBegunWhereThereIsSomething) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ASSERT_EQ(pair.send(0, "abc"), 3);
  SetSleep* sleep = nullptr;
  EXPECT_FALSE(prepare(set(epfd), &sleep));
  ASSERT_NE(sleep, nullptr) << "to be followed by awake()";
  awake(sleep);
  EXPECT_EQ(set(epfd).sleepers, 0);
}

TEST_F(SetSleeps, ReachTheSetsInASet) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  nest();
  SetSleep* sleep = nullptr;
  const Guard guard(epfd);
  ASSERT_TRUE(prepare(set(outer), &sleep));
  EXPECT_EQ(set(outer).sleepers, 1);
  EXPECT_EQ(set(epfd).sleepers, 1);
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "a"), 1);
  EXPECT_EQ(rung(), before + 1);
  awake(sleep);
  EXPECT_EQ(set(outer).sleepers, 0);
  EXPECT_EQ(set(epfd).sleepers, 0);
}

TEST_F(SetSleeps, OfSocketsThatHaveBeenSilentForLongArmThem) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  hear();
  set(epfd).watched.at[0]->heard_ns -= 2 * kQuietNs;
  SetSleep* sleep = nullptr;
  EXPECT_TRUE(prepare(set(epfd), &sleep));
  EXPECT_EQ(set(epfd).watched.count, 0u);
  awake(sleep);
  const std::uint64_t before = rung();
  ASSERT_EQ(pair.send(0, "a"), 1);
  EXPECT_EQ(rung(), before + 1) << "its peer rings at the next bytes, sleep or not";
}

TEST_F(SetSleeps, EndWithTheKernelsWait) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  SetSleep* sleep = nullptr;
  {
    const Guard guard(epfd);
    ASSERT_TRUE(prepare(set(epfd), &sleep));
  }
  const int answer = sleep_prepared(sleep, [&] {
    EXPECT_EQ(set(epfd).sleepers, 1);
    return 5;
  });
  EXPECT_EQ(answer, 5);
  EXPECT_EQ(set(epfd).sleepers, 0);
  EXPECT_EQ(sleep_prepared(nullptr, [] { return 6; }), 6);
}

TEST_F(SetSleeps, AreForPipesWhereASocketInItOrInASetInItHasMigrated) {
  nest();
  {
    const Guard guard(epfd);
    EXPECT_FALSE(watches_pipes(set(outer)));
  }
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  const Guard guard(epfd);
  EXPECT_TRUE(watches_pipes(set(epfd)));
  EXPECT_TRUE(watches_pipes(set(outer)));
}

TEST_F(SetSleeps, ThatADoorbellEndedFindNothingAndTheDoorbellGone) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  EXPECT_FALSE(has_only_doorbells()) << "none was rung";
  ring();
  ASSERT_TRUE(kernel_says_ready());
  EXPECT_TRUE(has_only_doorbells());
  EXPECT_FALSE(kernel_says_ready());
  EXPECT_FALSE(doorbells_waiting(pair.socket(1)));
}

TEST_F(SetSleeps, ThatADoorbellForBytesEndedFindTheBytes) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  ring();
  ASSERT_EQ(pair.send(0, "abc"), 3);
  EXPECT_FALSE(has_only_doorbells());
  EXPECT_TRUE(is_ready());
  EXPECT_EQ(pair.receive(1), "abc");
  EXPECT_FALSE(is_ready());
}

TEST_F(SetSleeps, ThatAnotherDescriptorEndedWereNotForADoorbellAlone) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(control(epfd, EPOLL_CTL_ADD, ends[0], &event), 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  ring();
  EXPECT_FALSE(has_only_doorbells());
  EXPECT_TRUE(kernel_says_ready());
  for (const int fd : ends) ::close(fd);
}

TEST_F(SetSleeps, TheKernelsWordOfASetInOneMayBeOfDoorbellsAlone) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  nest(EPOLLIN, 77);
  epoll_event of_another{}, of_inner{};
  of_another.data.u64 = 78;
  of_inner.data.u64 = 77;
  ring();
  const Guard guard(epfd);
  EXPECT_FALSE(is_no_news_of_nested(set(outer), of_another));
  EXPECT_TRUE(is_no_news_of_nested(set(outer), of_inner));
  EXPECT_FALSE(is_no_news_of_nested(set(outer), of_inner)) << "it has been dropped";
}

TEST_F(SetSleeps, AOneShotOfASetInOneIsTheApplicationsOnceWhateverWasRung) {
  ASSERT_EQ(ask(EPOLL_CTL_ADD, EPOLLIN), 0);
  nest(EPOLLIN | EPOLLONESHOT, 77);
  epoll_event event{};
  event.data.u64 = 77;
  ring();
  const Guard guard(epfd);
  EXPECT_FALSE(is_no_news_of_nested(set(outer), event)) << "of another descriptor";
  ASSERT_EQ(ask_kernel(set(outer), &event, 1), 1);
  EXPECT_FALSE(is_no_news_of_nested(set(outer), event));
  EXPECT_TRUE(is_no_news_of_nested(set(outer), event)) << "it has been told of";
}

}  // namespace
}  // namespace clan::preload
