#include "engine/connection/connection.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "clan/detail/clock.h"
#include "engine/connection/record_text.h"
#include "engine/context/context_core.h"
#include "engine/context/network.h"

namespace clan::engine {
namespace {

constexpr int kWaitMs = 20'000;

// Accepts what is asked of it, as a listener of message endpoints does.
class Acceptor final : public OobSink {
 public:
  explicit Acceptor(std::shared_ptr<ContextCore> context) : context_(std::move(context)) {}
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    auto accepted = Connection::accept(context_, link, message, ConnectionKind::kMessages);
    if (!accepted) return Connection::refuse(*link, message, accepted.error().err);
    std::lock_guard lock(mutex_);
    accepted_ = *accepted;
    changed_.notify_all();
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
  std::shared_ptr<Connection> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kWaitMs),
                      [&] { return accepted_ != nullptr; });
    return std::exchange(accepted_, nullptr);
  }

 private:
  std::shared_ptr<ContextCore> context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Connection> accepted_;
};

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    ContextOptions options;
    options.ring_bytes = 4096;
    a_ = *ContextCore::create(options);
    b_ = *ContextCore::create(options);
    acceptor_ = std::make_shared<Acceptor>(b_);
    service_ = "connection-test-" + std::to_string(::getpid());
    endpoint_ = *b_->add_endpoint(acceptor_);
    ASSERT_TRUE(b_->add_service(service_, endpoint_).ok());
  }
  void TearDown() override {
    for (const auto& context : {a_, b_}) context->shut_down();
  }
  Result<std::shared_ptr<Connection>> connect(ConnectionKind kind) {
    return Connection::connect_service(a_, service_, ::geteuid(), kind, {},
                                       deadline_after_ms(kWaitMs));
  }
  void open() {
    auto made = connect(ConnectionKind::kMessages);
    ASSERT_TRUE(made.ok()) << made.error().message();
    client_ = *made;
    server_ = acceptor_->wait();
    ASSERT_NE(server_, nullptr);
  }
  // A record of `text`; false: no room.
  static bool put(Connection& c, const std::string& text) {
    std::byte* at = c.reserve(text.size());
    if (at == nullptr) return false;
    std::memcpy(at, text.data(), text.size());
    c.commit(text.size(), RecordType::kMessage);
    return true;
  }
  static std::string take(Connection& c) { return take_text(c, kWaitMs); }

  std::shared_ptr<ContextCore> a_, b_;
  std::shared_ptr<Acceptor> acceptor_;
  std::string service_;
  std::uint32_t endpoint_ = 0;
  std::shared_ptr<Connection> client_, server_;
};

TEST_F(ConnectionTest, CarriesRecordsBothWays) {
  open();
  ASSERT_TRUE(put(*client_, "there"));
  EXPECT_EQ(take(*server_), "there");
  ASSERT_TRUE(put(*server_, "and back"));
  EXPECT_EQ(take(*client_), "and back");
}

TEST_F(ConnectionTest, HasNoRoomUntilTheReaderTellsOfWhatItHasRead) {
  open();
  const std::string text(500, 'x');
  int sent = 0;
  while (put(*client_, text)) ++sent;
  EXPECT_GT(sent, 3);
  EXPECT_FALSE(client_->writable(text.size()));
  for (int i = 0; i < sent; ++i) ASSERT_EQ(take(*server_), text);
  shm::RingRecord record;
  EXPECT_EQ(server_->peek(&record), 0);
  ASSERT_TRUE(client_->wait_writable(text.size(), deadline_after_ms(kWaitMs)).ok());
  EXPECT_TRUE(put(*client_, text));
}

TEST_F(ConnectionTest, IsRefusedByAnEndpointOfAnotherKind) {
  auto made = connect(ConnectionKind::kStream);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().err, EPROTOTYPE);
}

TEST_F(ConnectionTest, IsRefusedWhenTheEndpointIsGone) {
  b_->endpoints().remove(endpoint_);
  auto made = connect(ConnectionKind::kMessages);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().err, ECONNREFUSED);
}

TEST_F(ConnectionTest, LeavesWhatWasSentToBeReadWhenItCloses) {
  open();
  ASSERT_TRUE(put(*client_, "last words"));
  client_->close();
  EXPECT_EQ(take(*server_), "last words");
  ASSERT_TRUE(server_->wait_readable(deadline_after_ms(kWaitMs)).ok());
  EXPECT_TRUE(server_->peer_gone());
  EXPECT_EQ(server_->reset_reason(), 0);
}

TEST_F(ConnectionTest, TellsThePeerOfAReset) {
  open();
  client_->abort();
  ASSERT_TRUE(server_->wait_readable(deadline_after_ms(kWaitMs)).ok());
  EXPECT_EQ(server_->reset_reason(), ECONNRESET);
  EXPECT_EQ(client_->reset_reason(), ECONNABORTED);
}

TEST_F(ConnectionTest, GivesItsMemoryBackOnlyWhenBothEndsHaveClosed) {
  open();
  const std::uint64_t with_one = a_->snapshot().apertures;
  client_->close();
  EXPECT_EQ(a_->snapshot().apertures, with_one);  // the peer may still write
  server_->close();
  const std::uint64_t deadline = deadline_after_ms(kWaitMs);
  while (a_->snapshot().apertures == with_one && monotonic_ns() < deadline) ::usleep(1000);
  EXPECT_EQ(a_->snapshot().apertures, with_one - 1);
}

// Notes what comes to an endpoint that answers nothing.
class Silent final : public OobSink {
 public:
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage& message) override {
    std::lock_guard lock(mutex_);
    types_.push_back(message.type);
    changed_.notify_all();
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
  /// Waits for the message of that number.
  std::uint32_t wait(std::size_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kWaitMs),
                      [&] { return types_.size() > number; });
    return types_.size() > number ? types_[number] : 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint32_t> types_;
};

// The driver thread has found the connection, and then the one that waited gives up.
TEST_F(ConnectionTest, TellsAPeerThatAcceptsTooLateThatNobodyIsThere) {
  const auto silent = std::make_shared<Silent>();
  const std::uint32_t endpoint = *b_->add_endpoint(silent);
  std::uint32_t unused = 0;
  auto link = a_->link_to_service(service_, ::geteuid(), deadline_after_ms(kWaitMs), &unused);
  ASSERT_TRUE(link.ok()) << link.error().message();
  auto asked = Connection::ask(a_, *link, endpoint, ConnectionKind::kMessages, {});
  ASSERT_TRUE(asked.ok()) << asked.error().message();
  EXPECT_EQ(silent->wait(0), kOobConnect);
  (*asked)->close();
  OobMessage accept;
  accept.from = endpoint;
  accept.type = kOobAccept;
  (*asked)->on_oob(*link, accept);
  EXPECT_EQ(silent->wait(1), kOobClose);
}

TEST_F(ConnectionTest, ResetsAPeerThatClaimsToHaveReadWhatWasNotSent) {
  open();
  ASSERT_TRUE(put(*client_, "x"));
  // The server's word for how far it has read, in the client's memory.
  auto* credit = reinterpret_cast<std::atomic<std::uint64_t>*>(&client_->own_offer_word(0)) -
                 kRegionOffers / sizeof(std::uint64_t);
  credit->store(1'000'000, std::memory_order_relaxed);
  const std::string text(500, 'x');
  while (put(*client_, text)) continue;
  EXPECT_EQ(client_->reset_reason(), EPROTO);
  EXPECT_EQ(a_->snapshot().hostile_peers, 1u);
}

// What an acceptor over the network answers to our request.
class Refusals final : public OobSink {
 public:
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage& message) override {
    std::lock_guard lock(mutex_);
    if (message.type == kOobRefuse) (void)get_payload(message, &err_);
    if (message.type == kOobAccept) err_ = 0;
    changed_.notify_all();
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
  int wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kWaitMs), [&] { return err_ >= 0; });
    return std::exchange(err_, -1);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int err_ = -1;
};

// What is written into it is gathered here first, and the size of that the peer says.
TEST(FarConnection, ARingOfAnImpossibleSizeIsRefused) {
  ContextOptions options;
  options.network.enabled = true;
  options.network.mode = NetworkOptions::Mode::kOff;
  options.network.directory_port = 0;
  const auto server = *ContextCore::create(options), client = *ContextCore::create(options);
  const std::string service = "far-connection-" + std::to_string(::getpid());
  const auto acceptor = std::make_shared<Acceptor>(server);
  ASSERT_TRUE(server->add_service(service, *server->add_endpoint(acceptor)).ok());
  const auto refusals = std::make_shared<Refusals>();
  OobMessage request;
  request.from = *client->add_endpoint(refusals);
  request.type = kOobConnect;
  const std::string name =
      "udp:127.0.0.1:" + std::to_string(server->network()->port()) + "/" + service;
  auto link = client->link_to_service(name, ::geteuid(), deadline_after_ms(kWaitMs), &request.to);
  ASSERT_TRUE(link.ok()) << link.error().message();
  for (const unsigned bits : {31u, 21u, 20u}) {
    ConnectRecord record;
    record.region.node = client->node();
    record.ring_lines = 1u << bits;
    record.region.length = kRegionRing + std::uint64_t{record.ring_lines} * kCacheLine;
    record.region.rights = Rights::kReadWrite;
    record.kind = ConnectionKind::kMessages;
    put_payload(request, record);
    ASSERT_TRUE((*link)->send_oob(request).ok());
    EXPECT_EQ(refusals->wait(), bits > 20 ? EPROTO : 0) << "2^" << bits << " lines";
  }
  for (const auto& context : {client, server}) context->shut_down();
}

}  // namespace
}  // namespace clan::engine
