// Waits for a peer on another host: the thread that sleeps fetches the packets.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "libfabric/far_peer.h"
#include "libfabric/sleep_together.h"

namespace clan::test {
namespace {

using std::chrono::milliseconds;

class FabricFarWaits : public testing::Test {
 protected:
  // The node sleeps, the peer sends it messages of one byte.
  void meet() {
    node_ = std::make_unique<Node>(NodeOptions{.wait = FI_WAIT_FD});
    fi_cntr_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_cntr* counter = nullptr;
    MUST(fi_cntr_open(node_->domain.get(), &attr, &counter, nullptr));
    counter_.reset(counter);
    MUST(fi_ep_bind(node_->ep.get(), &counter->fid, FI_RECV));
    node_->enable();
    peer_ = std::make_unique<FarPeer>();
    ASSERT_TRUE(peer_->connect(port_of(*node_)) && peer_->introduce("192.0.2.7", 7000));
    give();
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_cq_sread(node_->cq.get(), &entry, 1, nullptr, 15'000), 1);
  }
  void give() {
    ASSERT_EQ(fi_recv(node_->ep.get(), &buffer_, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_TRUE(peer_->say({.op = ofi::Op::kMessage}, Bytes(1, std::byte{7})));
  }
  bool take() {
    fi_cq_tagged_entry entry;
    return fi_cq_sread(node_->cq.get(), &entry, 1, nullptr, 15'000) == 1;
  }
  bool take_by_descriptor(int fd) {
    fid* fids[] = {&node_->cq->fid};
    if (fi_trywait(node_->fabric.get(), fids, 1) == 0) {
      pollfd p{fd, POLLIN, 0};
      (void)::poll(&p, 1, 15'000);
    }
    fi_cq_tagged_entry entry;
    return fi_cq_read(node_->cq.get(), &entry, 1) == 1;
  }
  /// The next value of the counter, by one of those that wait for it.
  bool take_count(std::uint64_t value) { return fi_cntr_wait(counter_.get(), value, 15'000) == 0; }

  std::unique_ptr<Node> node_;
  Object<fid_cntr> counter_;
  std::unique_ptr<FarPeer> peer_;
  char buffer_ = 0;

  // The counter goes after the endpoint that counts by it.
  void TearDown() override {
    peer_.reset();
    if (node_) node_->ep.reset();
    counter_.reset();
    node_.reset();
  }
};

// Each is given once the one before has been taken.
TEST_F(FabricFarWaits, OfOneThreadEndForMessagesThatComeFarApart) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  std::atomic<int> taken{0};
  std::thread sleeper([&] {
    for (std::uint64_t i = 0; i < 100; ++i) {
      if (i % 2 != 0) {
        EXPECT_TRUE(take_count(i + 2)) << i;
      }
      EXPECT_TRUE(take()) << i;
      taken.fetch_add(1);
    }
  });
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(milliseconds(i % 8 == 0 ? 3 : 0));  // it sleeps, most likely
    give();
    ASSERT_TRUE(eventually([&] { return taken.load() > i; })) << i;
  }
  sleeper.join();
}

TEST_F(FabricFarWaits, OfManyThreadsEndForEachOfManyMessages) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  sleep_together(
      1000, [&](int, int) { return take(); }, [&](int, int) { give(); });
}

// Two in calls of the queue's, one on the descriptor, one on a counter that counts the same.
TEST_F(FabricFarWaits, OfAllKindsAtOnceMissNothing) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  int fd = -1;
  ASSERT_EQ(fi_control(&node_->cq->fid, FI_GETWAIT, &fd), 0);
  sleep_together(
      500,
      [&](int i, int round) {
        if (i == 0) return take_count(static_cast<std::uint64_t>(round) * 3 + 4);
        return i == 1 ? take_by_descriptor(fd) : take();
      },
      [&](int i, int) {
        if (i > 0) give();
      });
}

}  // namespace
}  // namespace clan::test
