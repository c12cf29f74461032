#include <map>

#include "ends.h"
#include "vi.h"

namespace clan::via::testing {
namespace {

/// A server whose VIs share a completion queue, and as many clients.
struct Crowd {
  explicit Crowd(int n, int level = VIP_SERVICE_RELIABLE_DELIVERY) {
    EXPECT_EQ(VipCreateCQ(server.host.nic, 4096, &cq), VIP_SUCCESS);
    for (int i = 0; i < n; ++i) {
      VIP_VI_HANDLE here = nullptr, there = nullptr;
      auto ours = attributes_of(server.host.tag, level);
      auto theirs = attributes_of(client.host.tag, level);
      EXPECT_EQ(VipCreateVi(server.host.nic, &ours, cq, cq, &here), VIP_SUCCESS);
      EXPECT_EQ(VipCreateVi(client.host.nic, &theirs, nullptr, nullptr, &there), VIP_SUCCESS);
      number[here] = i;
      vis.push_back(here);
      clients.push_back(there);
    }
    const std::string name = unique_name();
    std::thread accepting([&] {
      for (VIP_VI_HANDLE vi : vis) EXPECT_EQ(serve(server.host.nic, vi, name), VIP_SUCCESS);
    });
    for (VIP_VI_HANDLE vi : clients) EXPECT_EQ(request(client.host.nic, vi, name), VIP_SUCCESS);
    accepting.join();
  }
  ~Crowd() {
    for (VIP_VI_HANDLE vi : clients) (void)VipDisconnect(vi);
    for (VIP_VI_HANDLE vi : vis) (void)VipDisconnect(vi);
    for (VIP_VI_HANDLE vi : clients) EXPECT_EQ(VipDestroyVi(vi), VIP_SUCCESS);
    EXPECT_EQ(VipDestroyCQ(cq), VIP_ERROR_RESOURCE) << "VIs use it";
    for (VIP_VI_HANDLE vi : vis) EXPECT_EQ(VipDestroyVi(vi), VIP_SUCCESS);
    EXPECT_EQ(VipDestroyCQ(cq), VIP_SUCCESS);
  }
  End server, client;
  VIP_CQ_HANDLE cq = nullptr;
  std::vector<VIP_VI_HANDLE> vis, clients;
  std::map<VIP_VI_HANDLE, int> number;
};

void post(VIP_VI_HANDLE vi, VIP_DESCRIPTOR* d, VIP_MEM_HANDLE handle, bool receive) {
  EXPECT_EQ(receive ? VipPostRecv(vi, d, handle) : VipPostSend(vi, d, handle), VIP_SUCCESS);
}

TEST(ViaCq, HasOneEntryForEachDescriptor) {
  Crowd crowd(3);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  EXPECT_EQ(VipCQDone(crowd.cq, &vi, &receive), VIP_NOT_DONE);
  EXPECT_EQ(VipCQWait(crowd.cq, 1, &vi, &receive), VIP_TIMEOUT);
  for (int i = 0; i < 12; ++i)
    post(crowd.vis[i % 3], crowd.server.host.make(i, 0, 8), crowd.server.host.handle, true);
  for (int i = 0; i < 12; ++i) {
    VIP_DESCRIPTOR* d = nullptr;
    post(crowd.clients[i % 3], crowd.client.host.make(i, 0, 8), crowd.client.host.handle, false);
    ASSERT_EQ(VipSendDone(crowd.clients[i % 3], &d), VIP_SUCCESS);
  }
  std::map<VIP_VI_HANDLE, int> counts;
  for (int i = 0; i < 12; ++i) {
    ASSERT_EQ(
        i % 2 == 0 ? VipCQDone(crowd.cq, &vi, &receive) : VipCQWait(crowd.cq, kSoon, &vi, &receive),
        VIP_SUCCESS);
    EXPECT_EQ(receive, VIP_TRUE);
    VIP_DESCRIPTOR* d = nullptr;
    ASSERT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS) << "exactly one for each entry";
    ++counts[vi];
  }
  for (const auto& count : counts) EXPECT_EQ(count.second, 4);
  EXPECT_EQ(VipCQDone(crowd.cq, &vi, &receive), VIP_NOT_DONE);
}

TEST(ViaCq, SendsAndFlushesHaveEntriesToo) {
  Crowd crowd(1);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 1;
  post(crowd.clients[0], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, true);
  // The client's record of its buffer is an event, and no completion.
  while (VipCQDone(crowd.cq, &vi, &receive) == VIP_SUCCESS) ADD_FAILURE();
  post(crowd.vis[0], crowd.server.host.make(0, 0, 8), crowd.server.host.handle, false);
  ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(receive, VIP_FALSE);
  VIP_DESCRIPTOR* d = nullptr;
  ASSERT_EQ(VipSendDone(vi, &d), VIP_SUCCESS);
  post(crowd.vis[0], crowd.server.host.make(1, 0, 8), crowd.server.host.handle, true);
  ASSERT_EQ(VipDisconnect(crowd.clients[0]), VIP_SUCCESS);
  ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(receive, VIP_TRUE);
  ASSERT_EQ(VipRecvDone(vi, &d), VIP_DESCRIPTOR_ERROR);
  EXPECT_NE(d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR, 0u);
}

// There is one event for the message and the end. The close has come when a later connection is
// made, since both come by the same way.
TEST(ViaCq, FindsTheEndBehindTheMessageThatTookTheLastReceive) {
  Crowd crowd(1);
  Pair later;
  post(crowd.vis[0], crowd.server.host.make(0, 0, 8), crowd.server.host.handle, true);
  post(crowd.clients[0], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
  ASSERT_EQ(VipDisconnect(crowd.clients[0]), VIP_SUCCESS);
  later.connect();
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(VipCQDone(crowd.cq, &vi, &receive), VIP_NOT_DONE);
  EXPECT_TRUE(crowd.server.errors.has(VIP_ERROR_CONN_LOST));
}

TEST(ViaCq, ReportsAnOverrunAndLosesNothing) {
  End server;
  VIP_CQ_HANDLE cq = nullptr;
  ASSERT_EQ(VipCreateCQ(server.host.nic, 2, &cq), VIP_SUCCESS);
  End client;
  server.create(VIP_SERVICE_RELIABLE_DELIVERY, nullptr, cq);
  client.create(VIP_SERVICE_RELIABLE_DELIVERY);
  connect(server, client);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(server.post_recv(server.host.make(i, 0, 8)), VIP_SUCCESS);
  ASSERT_EQ(VipDisconnect(server.vi), VIP_SUCCESS);  // flushes all three
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  ASSERT_EQ(VipCQWait(cq, kSoon, &vi, &receive), VIP_SUCCESS);
  ASSERT_TRUE(server.errors.has(VIP_ERROR_VI_OVERRUN));
  EXPECT_EQ(server.errors.all.front().ResourceCode, VIP_RESOURCE_CQ);
  EXPECT_EQ(server.errors.all.front().CQHandle, cq);
  EXPECT_EQ(VipResizeCQ(cq, 1), VIP_ERROR_RESOURCE) << "two are in it";
  EXPECT_EQ(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipResizeCQ(cq, 100), VIP_SUCCESS);
  EXPECT_EQ(VipCQDone(cq, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(VipCQDone(cq, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(VipCQDone(cq, &vi, &receive), VIP_NOT_DONE);
  ASSERT_EQ(VipDestroyVi(server.vi), VIP_SUCCESS);
  server.vi = nullptr;
  EXPECT_EQ(VipDestroyCQ(cq), VIP_SUCCESS);
}

// The thread that polls or waits calls the handler, and goes on with the queue behind that.
TEST(ViaCq, AnErrorHandlerCannotDestroyTheOneThatItsThreadPollsOrWaitsOn) {
  struct Ends {
    End a, b;
    VIP_CQ_HANDLE cq = nullptr;
    static void destroy(VIP_PVOID self, VIP_ERROR_DESCRIPTOR* error) {
      auto* const ends = static_cast<Ends*>(self);
      EXPECT_EQ(VipDisconnect(error->ViHandle), VIP_SUCCESS);
      EXPECT_EQ(VipDestroyVi(error->ViHandle), VIP_SUCCESS);
      EXPECT_EQ(VipDestroyCQ(ends->cq), VIP_ERROR_RESOURCE);
      EXPECT_EQ(VipCloseNic(ends->a.host.nic), VIP_ERROR_RESOURCE) << "it has the queue";
      ends->a.vi = nullptr;
    }
  };
  for (const bool waits : {false, true}) {
    Ends ends;
    ASSERT_EQ(VipCreateCQ(ends.a.host.nic, 8, &ends.cq), VIP_SUCCESS);
    ends.a.create(VIP_SERVICE_RELIABLE_DELIVERY, nullptr, ends.cq);
    ends.b.create(VIP_SERVICE_RELIABLE_DELIVERY);
    connect(ends.a, ends.b);
    ASSERT_EQ(VipErrorCallback(ends.a.host.nic, &ends, Ends::destroy), VIP_SUCCESS);
    ASSERT_EQ(VipDisconnect(ends.b.vi), VIP_SUCCESS);
    VIP_VI_HANDLE vi = nullptr;
    VIP_BOOLEAN receive = 0;
    while (ends.a.vi != nullptr) {
      EXPECT_EQ(waits ? VipCQWait(ends.cq, 1, &vi, &receive) : VipCQDone(ends.cq, &vi, &receive),
                waits ? VIP_TIMEOUT : VIP_NOT_DONE);
    }
    EXPECT_EQ(VipDestroyCQ(ends.cq), VIP_SUCCESS);
  }
}

/// Takes one message of each VI by polls, `rounds` times.
void poll_messages(Crowd& crowd, int rounds) {
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  VIP_DESCRIPTOR* d = nullptr;
  for (int i = 0; i < rounds; ++i) {
    for (std::size_t k = 0; k < crowd.vis.size(); ++k) {
      post(crowd.vis[k], crowd.server.host.make(static_cast<int>(k), 0, 8),
           crowd.server.host.handle, true);
      post(crowd.clients[k], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
      ASSERT_EQ(VipSendDone(crowd.clients[k], &d), VIP_SUCCESS);
      while (VipCQDone(crowd.cq, &vi, &receive) == VIP_NOT_DONE) continue;
      ASSERT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
    }
  }
}
int without_events(const Crowd& crowd) {
  int n = 0;
  for (VIP_VI_HANDLE vi : crowd.vis) n += static_cast<Vi*>(vi)->paused;
  return n;
}

TEST(ViaCq, PolledVisHaveNoEventsUntilAThreadWaits) {
  Crowd crowd(3);
  poll_messages(crowd, 5);
  EXPECT_EQ(without_events(crowd), 0) << "the program may be about to wait";
  poll_messages(crowd, 1100);
  EXPECT_EQ(without_events(crowd), 3);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  VIP_DESCRIPTOR* d = nullptr;
  std::thread sends([&] {
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it sleeps by then, most likely
      post(crowd.vis[i], crowd.server.host.make(i, 0, 8), crowd.server.host.handle, true);
      post(crowd.clients[i], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
    }
  });
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
    ASSERT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
    EXPECT_EQ(without_events(crowd), 0);
  }
  sends.join();
}

TEST(ViaCq, AVIThatIsPolledAndHasNoMessagesHasEventsAgain) {
  Crowd crowd(2);
  poll_messages(crowd, 1100);
  ASSERT_EQ(without_events(crowd), 2);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(VipCQDone(crowd.cq, &vi, &receive), VIP_NOT_DONE);
  EXPECT_EQ(without_events(crowd), 0);
  poll_messages(crowd, 1);
}

TEST(ViaCq, FindsThatThePeerOfAPolledVIHasGone) {
  Crowd crowd(1);
  poll_messages(crowd, 1100);
  ASSERT_EQ(without_events(crowd), 1);
  ASSERT_EQ(VipDisconnect(crowd.clients[0]), VIP_SUCCESS);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  while (!crowd.server.errors.has(VIP_ERROR_CONN_LOST))
    ASSERT_EQ(VipCQDone(crowd.cq, &vi, &receive), VIP_NOT_DONE);
}

TEST(ViaCq, NullAndImpossibleSizesAreRefused) {
  Host host;
  VIP_CQ_HANDLE cq = nullptr;
  EXPECT_EQ(VipCreateCQ(host.nic, 0, &cq), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCreateCQ(host.nic, 1, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCreateCQ(host.nic, 1ul << 30, &cq), VIP_ERROR_RESOURCE);
  ASSERT_EQ(VipCreateCQ(host.nic, 1, &cq), VIP_SUCCESS);
  EXPECT_EQ(VipCQDone(cq, nullptr, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCQWait(nullptr, 0, nullptr, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipCQNotify(cq, nullptr, nullptr), VIP_INVALID_PARAMETER);
  EXPECT_EQ(VipDestroyCQ(cq), VIP_SUCCESS);
}

TEST(ViaCq, AThousandVisShareOne) {
  Crowd crowd(1000);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  VIP_DESCRIPTOR* d = nullptr;
  for (VIP_VI_HANDLE one : crowd.vis)
    post(one, crowd.server.host.make(0, 0, 8), crowd.server.host.handle, true);
  for (VIP_VI_HANDLE one : crowd.clients) {
    post(one, crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
    ASSERT_EQ(VipSendDone(one, &d), VIP_SUCCESS);
  }
  std::map<VIP_VI_HANDLE, int> counts;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
    ASSERT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
    ++counts[vi];
  }
  EXPECT_EQ(counts.size(), 1000u);
}

// One event announces both messages of a VI, and many VIs may have a second one.
TEST(ViaCq, AWaitFindsASecondMessageBehindThoseOfManyVis) {
  constexpr int kVis = 400;
  Crowd crowd(kVis);
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  VIP_DESCRIPTOR* d = nullptr;
  for (int round = 0; round < 2; ++round) {
    for (VIP_VI_HANDLE one : crowd.vis)
      post(one, crowd.server.host.make(round, 0, 8), crowd.server.host.handle, true);
  }
  const auto send = [&](int client) {
    post(crowd.clients[client], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
    ASSERT_EQ(VipSendDone(crowd.clients[client], &d), VIP_SUCCESS);
  };
  for (int i = 0; i < kVis; ++i) send(i);
  send(100);
  for (int i = 0; i < kVis; ++i) {
    while (VipCQDone(crowd.cq, &vi, &receive) == VIP_NOT_DONE) continue;
    ASSERT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
  }
  ASSERT_EQ(VipCQWait(crowd.cq, kSoon, &vi, &receive), VIP_SUCCESS);
  EXPECT_EQ(vi, crowd.vis[100]);
}

TEST(ViaThreads, SeveralThatWaitOrPollTakeEachEntryOnce) {
  constexpr int kEach = 300, kVis = 4;
  Crowd crowd(kVis);
  std::atomic<int> taken{0};
  for (int i = 0; i < kEach * kVis; ++i)
    post(crowd.vis[i % kVis], crowd.server.host.make(i % kVis, 8u * (i % kVis), 8),
         crowd.server.host.handle, true);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, polls = t == 3] {
      VIP_VI_HANDLE vi = nullptr;
      VIP_BOOLEAN receive = 0;
      VIP_DESCRIPTOR* d = nullptr;
      while (taken < kEach * kVis) {
        if ((polls ? VipCQDone(crowd.cq, &vi, &receive) : VipCQWait(crowd.cq, 20, &vi, &receive)) !=
            VIP_SUCCESS)
          continue;
        EXPECT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
        ++taken;
      }
    });
  }
  for (int i = 0; i < kEach * kVis; ++i) {
    VIP_DESCRIPTOR* d = nullptr;
    post(crowd.clients[i % kVis], crowd.client.host.make(i % 8, 0, 8), crowd.client.host.handle,
         false);
    EXPECT_EQ(VipSendWait(crowd.clients[i % kVis], kSoon, &d), VIP_SUCCESS);
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken, kEach * kVis);
}

// One thread waits for what it receives, another one for what it sends, on one VI.
TEST(ViaThreads, OneThatWaitsDoesNotHoldUpTheOthers) {
  Pair pair;
  VIP_CLAN_VI_OPTIONS options{};
  options.DeferSends = VIP_TRUE;
  ASSERT_EQ(VipClanSetVi(pair.a.vi, &options), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(pair.a.post_send(pair.a.host.make(1, 0, 8)), VIP_SUCCESS);
  std::thread receiver(
      [&] { EXPECT_EQ(pair.a.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE); });
  std::thread sender([&] { EXPECT_EQ(pair.a.sent(), VIP_STATUS_DONE); });
  VIP_DESCRIPTOR* d = nullptr;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(VipSendDone(pair.b.vi, &d), VIP_DESCRIPTOR_ERROR);
  ASSERT_EQ(pair.b.post_recv(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  sender.join();
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(1, 0, 8)), VIP_SUCCESS);
  receiver.join();
}

struct Told {
  std::mutex mutex;
  std::vector<void*> what;
  std::atomic<int> count{0};
};
void note(VIP_PVOID told, VIP_NIC_HANDLE, VIP_VI_HANDLE, VIP_DESCRIPTOR* d) {
  auto* const t = static_cast<Told*>(told);
  std::lock_guard lock(t->mutex);
  t->what.push_back(d);
  ++t->count;
}

TEST(ViaNotify, AHandlerIsCalledOncePerCallInOrder) {
  Told received, sent;  // before the VIs, whose last descriptors are reported as they go
  Pair pair;
  pair.connect();
  EXPECT_EQ(VipRecvNotify(pair.a.vi, nullptr, nullptr), VIP_INVALID_PARAMETER);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(VipRecvNotify(pair.a.vi, &received, note), VIP_SUCCESS);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(pair.a.post_recv(pair.a.host.make(i, 0, 8)), VIP_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(i, 0, 8)), VIP_SUCCESS);
    ASSERT_EQ(VipSendNotify(pair.b.vi, &sent, note), VIP_SUCCESS);
  }
  while (received.count < 3 || sent.count < 3) std::this_thread::yield();
  std::scoped_lock lock(received.mutex, sent.mutex);  // more come as the VIs go
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(received.what[i], pair.a.host.descriptor(i));
    EXPECT_EQ(sent.what[i], pair.b.host.descriptor(i));
  }
  // Two calls are left: they go with the VI.
}

TEST(ViaNotify, ACompletionQueueTellsOfItsEntries) {
  Crowd crowd(1);
  struct Entries {
    std::atomic<int> receives{0};
    static void note(VIP_PVOID self, VIP_NIC_HANDLE, VIP_VI_HANDLE vi, VIP_BOOLEAN receive) {
      VIP_DESCRIPTOR* d = nullptr;
      EXPECT_EQ(receive, VIP_TRUE);
      EXPECT_EQ(VipRecvDone(vi, &d), VIP_SUCCESS);
      ++static_cast<Entries*>(self)->receives;
    }
  } entries;
  ASSERT_EQ(VipCQNotify(crowd.cq, &entries, Entries::note), VIP_SUCCESS);
  post(crowd.vis[0], crowd.server.host.make(0, 0, 8), crowd.server.host.handle, true);
  post(crowd.clients[0], crowd.client.host.make(0, 0, 8), crowd.client.host.handle, false);
  while (entries.receives < 1) std::this_thread::yield();
}

}  // namespace
}  // namespace clan::via::testing
