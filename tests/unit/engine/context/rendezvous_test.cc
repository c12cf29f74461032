#include "engine/context/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "clan/detail/clock.h"

namespace clan::engine {
namespace {

// Notes what clients say; waits for one that has not spoken.
class Clients {
 public:
  explicit Clients(Reactor& reactor) : reactor_(reactor) {}
  void on_client(Fd socket) {
    char byte = 0;
    if (::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
      (void)reactor_.once(std::move(socket), [this](Fd client) { on_client(std::move(client)); });
      note("silent");
      return;
    }
    note({byte});
  }
  /// That was noted last.
  bool wait_for(const std::string& wanted) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return !seen_.empty() && seen_.back() == wanted; });
  }

 private:
  void note(std::string what) {
    std::lock_guard lock(mutex_);
    seen_.push_back(std::move(what));
    changed_.notify_all();
  }
  Reactor& reactor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> seen_;
};

class RendezvousTest : public testing::Test {
 protected:
  void SetUp() override {
    name_ = service_name(::geteuid(), "rendezvous-test-" + std::to_string(::getpid()));
    auto listener = listen_abstract(name_);
    ASSERT_TRUE(listener.ok());
    auto acceptor = std::make_shared<Acceptor>(
        std::move(*listener), [this](Fd client) { clients_.on_client(std::move(client)); });
    ASSERT_TRUE(reactor_.add(acceptor->fd(), acceptor).ok());
  }
  void TearDown() override { reactor_.stop(); }
  Fd connect() {
    auto client = connect_abstract(name_, kNoDeadline);
    EXPECT_TRUE(client.ok());
    return std::move(*client);
  }

  std::string name_;
  Reactor reactor_;
  Clients clients_{reactor_};
};

TEST_F(RendezvousTest, HandsOnAClient) {
  const Fd client = connect();
  ASSERT_EQ(::send(client.get(), "h", 1, 0), 1);
  EXPECT_TRUE(clients_.wait_for("h"));
}

TEST_F(RendezvousTest, WaitsForNoClientThatDoesNotSpeak) {
  const Fd silent = connect();
  ASSERT_TRUE(clients_.wait_for("silent"));
  ASSERT_EQ(::send(silent.get(), "x", 1, 0), 1);
  EXPECT_TRUE(clients_.wait_for("x"));
}

TEST(ServiceNames, SayWhoseTheyAre) {
  EXPECT_EQ(service_name(7, "db"), "clan/7/db");
  EXPECT_EQ(node_name(7, NodeId{0xab}), "clan/7/node/00000000000000ab");
}

}  // namespace
}  // namespace clan::engine
