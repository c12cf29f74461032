// Waits for a peer on another host: the thread that sleeps fetches the packets.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>

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
  /// From an epoll set.
  bool take_by_set(int set) {
    fid* fids[] = {&node_->cq->fid};
    epoll_event event;
    if (fi_trywait(node_->fabric.get(), fids, 1) == 0) (void)::epoll_wait(set, &event, 1, 15'000);
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

// Two that poll the descriptor, and two in sets of epoll of their own, edge-triggered.
TEST_F(FabricFarWaits, ByDescriptorsOfManyThreadsEndForEachOfManyMessages) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  int fd = -1;
  ASSERT_EQ(fi_control(&node_->cq->fid, FI_GETWAIT, &fd), 0);
  int sets[2];
  for (int& set : sets) {
    set = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  }
  sleep_together(
      1000, [&](int i, int) { return i < 2 ? take_by_descriptor(fd) : take_by_set(sets[i - 2]); },
      [&](int, int) { give(); });
  for (const int set : sets) ::close(set);
}

// What comes by shared memory and what comes in packets, in turns.
TEST_F(FabricFarWaits, ByOneDescriptorHearOfPeersHereAndOnOtherHosts) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  int fd = -1;
  ASSERT_EQ(fi_control(&node_->cq->fid, FI_GETWAIT, &fd), 0);
  Node here;
  here.enable();
  const fi_addr_t to = here.insert(node_->name());
  const auto give_here = [&] {
    ASSERT_EQ(fi_recv(node_->ep.get(), &buffer_, 1, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    ASSERT_EQ(sent([&] { return fi_inject(here.ep.get(), "x", 1, to); }, here), 0);
  };
  sleep_together(
      500, [&](int, int) { return take_by_descriptor(fd); },
      [&](int i, int) { i % 2 == 0 ? give() : give_here(); });
}

// The kernel counts by how many ways through sets a socket is in others.
TEST_F(FabricFarWaits, ByAsManyDescriptorsInOneSetAsThereAreQueues) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  std::vector<Object<fid_cq>> queues;
  const int set = ::epoll_create1(EPOLL_CLOEXEC);
  const auto watch = [&](fid_cq* queue) {
    int fd = -1;
    ASSERT_EQ(fi_control(&queue->fid, FI_GETWAIT, &fd), 0);
    epoll_event event{};
    event.events = EPOLLIN;
    ASSERT_EQ(::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
  };
  for (int i = 0; i < 200; ++i) {
    fi_cq_attr attr{};
    attr.wait_obj = FI_WAIT_FD;
    fid_cq* queue = nullptr;
    MUST(fi_cq_open(node_->domain.get(), &attr, &queue, nullptr));
    queues.emplace_back(queue);
    ASSERT_NO_FATAL_FAILURE(watch(queue)) << i;
    fid* fids[] = {&queue->fid};
    EXPECT_EQ(fi_trywait(node_->fabric.get(), fids, 1), 0);
  }
  ASSERT_NO_FATAL_FAILURE(watch(node_->cq.get()));
  for (int i = 0; i < 50; ++i) {
    give();
    ASSERT_TRUE(eventually([&] { return take_by_set(set); })) << i;
  }
  ::close(set);
}

// The child has the sockets and the descriptor, too, until it ends.
TEST_F(FabricFarWaits, ByADescriptorGoOnWhileAChildHasAllOfIt) {
  if (!in_a_network()) return;
  ASSERT_NO_FATAL_FAILURE(meet());
  int fd = -1;
  ASSERT_EQ(fi_control(&node_->cq->fid, FI_GETWAIT, &fd), 0);
  const auto some = [&] {
    for (int i = 0; i < 50; ++i) {
      give();
      ASSERT_TRUE(eventually([&] { return take_by_descriptor(fd); })) << i;
    }
  };
  some();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  some();
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  some();
}

}  // namespace
}  // namespace clan::test
