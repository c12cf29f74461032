// Where calls of a queue sleep: in the source that they hear by, which may fetch packets meanwhile;
// programs that sleep by themselves cannot.
#include <gtest/gtest.h>
#include <rdma/fi_errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <vector>

#include "wait/wait.h"

namespace clan::ofi {
namespace {

class Network final : public Source {
 public:
  ~Network() override { ::close(fd_), ::close(packets_); }
  void make_progress() override {}
  Result<int> descriptor() override { return fd_; }
  int packets() override { return packets_; }
  void packet_comes() { EXPECT_EQ(::eventfd_write(packets_, 1), 0); }
  bool arm(SleepsIn where, std::uint32_t*) override {
    armed.push_back(where);
    return true;
  }
  int sleep(std::span<pollfd> fds, std::int64_t timeout_ms) override {
    ++sleeps;
    if (brings) (void)::eventfd_write(fd_, 1);
    return interrupted ? EINTR : poll(fds, timeout_ms);
  }
  std::vector<SleepsIn> armed;
  int sleeps = 0;
  bool brings = false, interrupted = false;

 private:
  int fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int packets_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
};

struct Nothing final : Waitable {
  bool pending() override { return false; }
};

class SourceSleep : public testing::Test {
 protected:
  static bool never() { return false; }
  WaitObject& open() {
    EXPECT_EQ(place_.open(FI_WAIT_FD, nullptr, nothing_, &network_), 0);
    return *place_.object();
  }
  Network network_;
  Nothing nothing_;
  WaitPlace place_;  ///< goes first
};

TEST_F(SourceSleep, IsThatOfCallsOfAQueueWithAWaitObjectOfItsOwn) {
  WaitObject& object = open();
  network_.brings = true;
  EXPECT_EQ(object.sleep_unless(never, 10'000), 0);
  EXPECT_EQ(network_.sleeps, 1);
  EXPECT_EQ(network_.armed, std::vector{Source::SleepsIn::kSource});
}

TEST_F(SourceSleep, EndsWithItsTimeAndWithASignal) {
  WaitObject& object = open();
  EXPECT_EQ(object.sleep_unless(never, 1), -FI_ETIMEDOUT);
  network_.interrupted = true;
  EXPECT_EQ(object.sleep_unless(never, 10'000), -FI_EINTR);
  EXPECT_EQ(network_.sleeps, 2);
}

TEST_F(SourceSleep, EndsWhenAnotherThreadSignals) {
  WaitObject& object = open();
  EXPECT_EQ(object.sleep_unless([&] { return object.signal(), false; }, 10'000), 0);
  EXPECT_EQ(network_.sleeps, 1);
}

TEST_F(SourceSleep, IsNotToldOfToAProgramThatSleepsByItself) {
  WaitObject& object = open();
  EXPECT_TRUE(object.prepare());
  EXPECT_EQ(network_.armed, std::vector{Source::SleepsIn::kBoth});
}

TEST_F(SourceSleep, IsNotThatOfAWaitObjectThatMayHearByOthersToo) {
  std::unique_ptr<WaitObject> object;
  ASSERT_EQ(WaitObject::create(FI_WAIT_FD, &object), 0);
  ASSERT_EQ(object->add_source(network_), 0);
  EXPECT_EQ(object->sleep_unless(never, 1), -FI_ETIMEDOUT);
  EXPECT_EQ(network_.sleeps, 0);
  EXPECT_EQ(network_.armed, std::vector{Source::SleepsIn::kBoth});
  object->remove_source(network_);
}

// A queue of a wait set is bound to its network while another thread sleeps in the set.
TEST_F(SourceSleep, EndsWhenASourceIsAddedAndTheNextOneHearsByIt) {
  std::unique_ptr<WaitObject> object;
  ASSERT_EQ(WaitObject::create(FI_WAIT_FD, &object), 0);
  const auto add = [&] { return object->add_source(network_) != 0; };
  EXPECT_EQ(object->sleep_unless(add, 10'000), 0);
  EXPECT_TRUE(network_.armed.empty());
  EXPECT_EQ(object->sleep_unless(never, 1), -FI_ETIMEDOUT);
  EXPECT_EQ(network_.armed, std::vector{Source::SleepsIn::kBoth});
  object->remove_source(network_);
}

TEST_F(SourceSleep, OfAProgramByItselfEndsWhenASourceIsAdded) {
  std::unique_ptr<WaitObject> object;
  ASSERT_EQ(WaitObject::create(FI_WAIT_FD, &object), 0);
  int fd = -1;
  ASSERT_EQ(object->control(FI_GETWAIT, &fd), 0);
  ASSERT_TRUE(object->prepare());
  pollfd p{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 0), 0);
  ASSERT_EQ(object->add_source(network_), 0);
  EXPECT_EQ(::poll(&p, 1, 0), 1);
  EXPECT_TRUE(object->prepare());
  EXPECT_EQ(network_.armed, std::vector{Source::SleepsIn::kBoth});
  object->remove_source(network_);
}

TEST_F(SourceSleep, OfAProgramByItselfEndsWithAPacket) {
  WaitObject& object = open();
  int fd = -1;
  ASSERT_EQ(object.control(FI_GETWAIT, &fd), 0);
  ASSERT_TRUE(object.prepare());
  pollfd p{fd, POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 0), 0);
  network_.packet_comes();
  EXPECT_EQ(::poll(&p, 1, 0), 1);
}

TEST_F(SourceSleep, OfACallOfAWaitObjectThatMayHearByOthersEndsWithAPacket) {
  std::unique_ptr<WaitObject> object;
  ASSERT_EQ(WaitObject::create(FI_WAIT_FD, &object), 0);
  ASSERT_EQ(object->add_source(network_), 0);
  network_.packet_comes();
  EXPECT_EQ(object->sleep_unless(never, 10'000), 0);
  object->remove_source(network_);
  EXPECT_EQ(object->sleep_unless(never, 1), -FI_ETIMEDOUT);
}

// It fetches packets itself.
TEST_F(SourceSleep, IsNotEndedByPacketsFromOutside) {
  WaitObject& object = open();
  network_.packet_comes();
  EXPECT_EQ(object.sleep_unless(never, 1), -FI_ETIMEDOUT);
}

// By a bell's thread, and where so many sets have the packets that the kernel may take no more.
TEST_F(SourceSleep, LeavesPacketsToTheDriverThreadWhereTheyCannotBeHeard) {
  const auto armed_by = [&](fi_wait_obj kind) {
    std::unique_ptr<WaitObject> object;
    EXPECT_EQ(WaitObject::create(kind, &object), 0);
    EXPECT_EQ(object->add_source(network_), 0);
    EXPECT_TRUE(object->prepare());
    object->remove_source(network_);
    return network_.armed.back();
  };
  EXPECT_EQ(armed_by(FI_WAIT_MUTEX_COND), Source::SleepsIn::kDescriptor);
  EXPECT_EQ(armed_by(FI_WAIT_FD), Source::SleepsIn::kBoth);
  std::vector<std::unique_ptr<WaitObject>> many(100);
  for (auto& object : many) ASSERT_EQ(WaitObject::create(FI_WAIT_FD, &object), 0);
  EXPECT_EQ(armed_by(FI_WAIT_FD), Source::SleepsIn::kDescriptor);
  many.clear();
  EXPECT_EQ(armed_by(FI_WAIT_FD), Source::SleepsIn::kBoth);
}

}  // namespace
}  // namespace clan::ofi
