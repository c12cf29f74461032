#include "engine/connection/connect_attempt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/connection/record_text.h"
#include "engine/context/context_core.h"

namespace clan::engine {
namespace {

constexpr int kAttemptMs = 20'000;

// Answers what is asked of its endpoint when the test says so.
class Doorkeeper final : public OobSink {
 public:
  explicit Doorkeeper(std::shared_ptr<ContextCore> context) : context_(std::move(context)) {}
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    std::lock_guard lock(mutex_);
    ++asked_;
    link_ = link;
    message_ = message;
    if (opens_) open();
    changed_.notify_all();
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}

  void open_to_all() {
    std::lock_guard lock(mutex_);
    opens_ = true;
  }
  bool was_asked(int times = 1) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kAttemptMs),
                             [&] { return asked_ >= times; });
  }
  void let_in() {
    std::lock_guard lock(mutex_);
    open();
  }
  void send_away(int err) {
    std::lock_guard lock(mutex_);
    Connection::refuse(*link_, message_, err);
  }
  std::shared_ptr<Connection> guest() {
    std::lock_guard lock(mutex_);
    return accepted_;
  }

 private:
  void open() {
    auto accepted = Connection::accept(context_, link_, message_, ConnectionKind::kMessages);
    ASSERT_TRUE(accepted.ok()) << accepted.error().message();
    accepted_ = *accepted;
  }
  std::shared_ptr<ContextCore> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool opens_ = false;
  int asked_ = 0;
  std::shared_ptr<nic::Link> link_;
  OobMessage message_;
  std::shared_ptr<Connection> accepted_;
};

// Is notified of the end.
class Owner final : public AnswerSink {
 public:
  void on_answer() override {
    std::lock_guard lock(mutex_);
    ++told_;
    changed_.notify_all();
  }
  bool was_told() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(kAttemptMs),
                             [&] { return told_ > 0; });
  }
  int told() {
    std::lock_guard lock(mutex_);
    return told_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int told_ = 0;
};

class ConnectAttemptTest : public testing::Test {
 protected:
  void SetUp() override {
    a_ = *ContextCore::create({});
    b_ = *ContextCore::create({});
    door_ = std::make_shared<Doorkeeper>(b_);
    service_ = "connect-attempt-test-" + std::to_string(::getpid());
    endpoint_ = *b_->add_endpoint(door_);
    ASSERT_TRUE(b_->add_service(service_, endpoint_).ok());
  }
  void TearDown() override {
    for (const auto& context : {a_, b_}) context->shut_down();
  }
  Result<std::shared_ptr<ConnectAttempt>> begin(
      std::uint64_t deadline_ns = deadline_after_ms(kAttemptMs),
      const std::vector<std::string>& greetings = {}) {
    std::vector<std::span<const std::byte>> spans;
    for (const std::string& text : greetings)
      spans.push_back(std::as_bytes(std::span(text.data(), text.size())));
    return ConnectAttempt::begin(a_, service_, ::geteuid(), ConnectionKind::kMessages, {}, spans,
                                 deadline_ns, owner_);
  }
  static bool wait(ConnectAttempt& attempt) { return attempt.wait(deadline_after_ms(kAttemptMs)); }
  static int error(ConnectAttempt& attempt) {
    auto result = attempt.result();
    return result.ok() ? 0 : result.error().err;
  }
  static std::string take(Connection& c) { return take_text(c, kAttemptMs); }

  std::shared_ptr<ContextCore> a_, b_;
  std::shared_ptr<Doorkeeper> door_;
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
  std::string service_;
  std::uint32_t endpoint_ = 0;
};

TEST_F(ConnectAttemptTest, EndsInAConnectionWhoseFirstRecordsAreTheGreetings) {
  auto attempt = begin(deadline_after_ms(kAttemptMs), {"good", "", "morning"});
  ASSERT_TRUE(attempt.ok()) << attempt.error().message();
  ASSERT_TRUE(door_->was_asked());
  EXPECT_EQ(error(**attempt), EAGAIN);
  EXPECT_EQ(owner_->told(), 0);
  door_->let_in();
  ASSERT_TRUE(wait(**attempt));
  ASSERT_EQ(error(**attempt), 0);
  EXPECT_TRUE(owner_->was_told());
  for (const char* greeting : {"good", "", "morning"}) EXPECT_EQ(take(*door_->guest()), greeting);
  EXPECT_EQ((*(*attempt)->result())->remote_address().endpoint, endpoint_);
}

TEST_F(ConnectAttemptTest, GoesOverTheLinkThatIsThere) {
  door_->open_to_all();
  for (int times = 1; times <= 2; ++times) {
    auto attempt = begin();
    ASSERT_TRUE(attempt.ok()) << attempt.error().message();
    ASSERT_TRUE(wait(**attempt));
    EXPECT_EQ(error(**attempt), 0);
    ASSERT_TRUE(door_->was_asked(times));
  }
  EXPECT_EQ(a_->snapshot().links, 1u);
}

TEST_F(ConnectAttemptTest, TellsWhyItWasRefused) {
  auto attempt = begin();
  ASSERT_TRUE(attempt.ok());
  ASSERT_TRUE(door_->was_asked());
  door_->send_away(EMFILE);
  ASSERT_TRUE(wait(**attempt));
  EXPECT_EQ(error(**attempt), EMFILE);
  EXPECT_TRUE(owner_->was_told());
}

TEST_F(ConnectAttemptTest, FailsAtOnceWhereNobodyOffersTheService) {
  service_ += "-of-nobody";
  auto attempt = begin();
  ASSERT_FALSE(attempt.ok());
  EXPECT_EQ(attempt.error().err, ECONNREFUSED);
  EXPECT_EQ(owner_->told(), 0) << "the caller knows";
}

// The name is remembered with the endpoint that it had; its owner may offer it by another one.
TEST_F(ConnectAttemptTest, LooksForTheServiceAgainWhereARememberedEndpointIsGone) {
  door_->open_to_all();
  auto first = begin();
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(wait(**first));
  ASSERT_EQ(error(**first), 0);
  b_->remove_service(service_);
  b_->endpoints().remove(endpoint_);
  auto other = std::make_shared<Doorkeeper>(b_);
  other->open_to_all();
  const std::uint32_t moved = *b_->add_endpoint(other);
  ASSERT_NE(moved, endpoint_);
  ASSERT_TRUE(b_->add_service(service_, moved).ok());
  auto second = begin();
  ASSERT_TRUE(second.ok()) << second.error().message();
  ASSERT_TRUE(wait(**second));
  ASSERT_EQ(error(**second), 0);
  EXPECT_EQ((*(*second)->result())->remote_address().endpoint, moved);
}

TEST_F(ConnectAttemptTest, EndsWhenItsTimeIsUp) {
  auto attempt = begin(monotonic_ns() + 30'000'000);
  ASSERT_TRUE(attempt.ok());
  ASSERT_TRUE(door_->was_asked());
  ASSERT_TRUE(wait(**attempt)) << "nobody answers";
  EXPECT_EQ(error(**attempt), ETIMEDOUT);
  EXPECT_TRUE(owner_->was_told());
}

TEST_F(ConnectAttemptTest, IsWaitedForUntilTheWaitersDeadlineOnly) {
  auto attempt = begin();
  ASSERT_TRUE(attempt.ok());
  EXPECT_FALSE((*attempt)->wait(monotonic_ns() + 10'000'000));
  EXPECT_EQ(error(**attempt), EAGAIN);
}

TEST_F(ConnectAttemptTest, ThatIsCancelledEndsAndItsOwnerHearsNothingOfIt) {
  auto attempt = begin();
  ASSERT_TRUE(attempt.ok());
  ASSERT_TRUE(door_->was_asked());
  (*attempt)->cancel();
  EXPECT_TRUE((*attempt)->wait(0));
  EXPECT_EQ(error(**attempt), ECANCELED);
  door_->let_in();  // too late
  EXPECT_EQ(door_->guest()->wait_readable(deadline_after_ms(kAttemptMs)).ok(), true);
  EXPECT_EQ(take(*door_->guest()), "gone");
  EXPECT_EQ(owner_->told(), 0);
}

TEST_F(ConnectAttemptTest, ThatIsLetGoGreetsAndCloses) {
  auto attempt = begin(deadline_after_ms(kAttemptMs), {"a datagram"});
  ASSERT_TRUE(attempt.ok());
  ASSERT_TRUE(door_->was_asked());
  (*attempt)->let_go();
  door_->let_in();
  ASSERT_TRUE(wait(**attempt));
  EXPECT_EQ(take(*door_->guest()), "a datagram");
  EXPECT_EQ(take(*door_->guest()), "gone");
}

TEST_F(ConnectAttemptTest, OfAPeerThatEndsMeanwhileFails) {
  auto attempt = begin();
  ASSERT_TRUE(attempt.ok());
  ASSERT_TRUE(door_->was_asked());
  b_->shut_down();
  ASSERT_TRUE(wait(**attempt));
  EXPECT_NE(error(**attempt), 0);
  EXPECT_NE(error(**attempt), ETIMEDOUT);
}

TEST_F(ConnectAttemptTest, OfAContextThatHasBeenShutDownIsNone) {
  auto attempt = begin();
  ASSERT_TRUE(attempt.ok());
  a_->shut_down();
  EXPECT_EQ(error(**attempt), ESHUTDOWN);
  EXPECT_FALSE((*attempt)->wait(deadline_after_ms(kAttemptMs)));
  EXPECT_EQ(begin().error().err, ESHUTDOWN);
}

}  // namespace
}  // namespace clan::engine
