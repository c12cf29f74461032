#include <algorithm>

#include "ends.h"

namespace clan::via::testing {
namespace {

constexpr std::uint32_t kReceived = VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE;
constexpr int kLevels[] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY,
                           VIP_SERVICE_RELIABLE_RECEPTION};

void fill(unsigned char* data, std::size_t bytes, int seed) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(i * 7 + seed);
}

TEST(ViaSend, AShortMessageArrivesWithItsImmediateData) {
  Pair pair;
  VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 100);
  ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
  pair.connect();
  std::memcpy(pair.b.host.data, "hello", 6);
  VIP_DESCRIPTOR* s = pair.b.host.make(0, 0, 6, VIP_CONTROL_IMMEDIATE);
  s->CS.ImmediateData = 4711;
  ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(s), VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
  EXPECT_EQ(pair.a.received(r), kReceived | VIP_STATUS_IMMEDIATE);
  EXPECT_EQ(r->CS.Length, 6u);
  EXPECT_EQ(r->CS.ImmediateData, 4711u);
  EXPECT_STREQ(reinterpret_cast<char*>(pair.a.host.data), "hello");
}

// Splits [0, bytes) into segments with unequal lengths, empty ones among them.
void split(Host& host, VIP_DESCRIPTOR* d, std::uint32_t bytes, int segments) {
  d->CS.SegCount = 0;
  std::uint32_t at = 0;
  for (int i = 0; i < segments; ++i) {
    const std::uint32_t rest = bytes - at;
    const std::uint32_t part = i + 1 == segments ? rest : i % 3 == 1 ? 0 : rest / 3 + (rest > 0);
    host.add(d, at + static_cast<std::uint32_t>(i) * 64, part);
    at += part;
  }
}

std::vector<unsigned char> join(Host& host, VIP_DESCRIPTOR* d, std::uint32_t bytes) {
  std::vector<unsigned char> all;
  for (int i = 0; i < d->CS.SegCount; ++i) {
    auto& s = host.segment(d, i).Local;
    auto* const at = static_cast<unsigned char*>(s.Data.Address);
    all.insert(all.end(), at, at + s.Length);
  }
  all.resize(bytes);
  return all;
}

TEST(ViaSend, EverySizeArrivesThroughEveryNumberOfSegments) {
  for (const int level : kLevels) {
    Pair pair(level);
    pair.connect();
    for (const std::uint32_t bytes : {0u, 1u, 40u, 41u, 4096u, 16384u, 16385u, 70000u, 900000u}) {
      for (const int segments : {1, 2, 5, 16}) {
        VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 0);
        VIP_DESCRIPTOR* s = pair.b.host.make(1, 0, 0);
        split(pair.a.host, r, bytes, segments);
        split(pair.b.host, s, bytes, 17 - segments);
        fill(pair.b.host.data, 1 << 20, level + static_cast<int>(bytes) + segments);
        ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
        ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
        ASSERT_EQ(pair.b.sent(s), VIP_STATUS_DONE);
        ASSERT_EQ(pair.a.received(r), kReceived);
        ASSERT_EQ(r->CS.Length, bytes);
        ASSERT_EQ(join(pair.a.host, r, bytes), join(pair.b.host, s, bytes))
            << bytes << " bytes, " << segments << " segments, level " << level;
      }
    }
  }
}

TEST(ViaSend, LongAndShortMessagesArriveInTheOrderOfPosting) {
  Pair pair;
  pair.connect();
  for (int i = 0; i < 40; ++i)
    ASSERT_EQ(pair.a.post_recv(pair.a.host.make(i, 20'000u * i, 20'000)), VIP_SUCCESS);
  for (int i = 0; i < 40; ++i) {
    VIP_DESCRIPTOR* s = pair.b.host.make(i, 0, i % 2 == 0 ? 20'000 : 10, VIP_CONTROL_IMMEDIATE);
    s->CS.ImmediateData = static_cast<VIP_UINT32>(i);
    ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(pair.a.received(pair.a.host.descriptor(i)), kReceived | VIP_STATUS_IMMEDIATE);
    EXPECT_EQ(pair.a.host.descriptor(i)->CS.ImmediateData, static_cast<VIP_UINT32>(i));
    EXPECT_EQ(pair.b.sent(pair.b.host.descriptor(i)), VIP_STATUS_DONE);
  }
}

// More is copied into the ring than it holds at a time, and nobody takes anything out meanwhile.
TEST(ViaSend, AReceiverThatDoesNothingIsNoHindrance) {
  Pair pair;
  for (int i = 0; i < 1000; ++i) {
    VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 1000);
    ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
  }
  pair.connect();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 1000)), VIP_SUCCESS);
    VIP_DESCRIPTOR* d = nullptr;
    ASSERT_EQ(VipSendDone(pair.b.vi, &d), VIP_SUCCESS) << "message " << i;
  }
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(pair.a.received(), kReceived);
}

TEST(ViaSend, AnEmptyReceiveQueueIsAnsweredByLevel) {
  for (const int level : kLevels) {
    Pair pair(level);
    pair.connect();
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    if (level == VIP_SERVICE_UNRELIABLE) {
      EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE) << "it is dropped";
      EXPECT_EQ(pair.a.state(), VIP_STATE_CONNECTED);
      continue;
    }
    EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE | (level == VIP_SERVICE_RELIABLE_RECEPTION
                                                    ? VIP_STATUS_REMOTE_DESC_ERROR
                                                    : VIP_STATUS_TRANSPORT_ERROR));
    EXPECT_EQ(pair.b.state(), VIP_STATE_ERROR);
    EXPECT_TRUE(pair.b.errors.has(VIP_ERROR_CONN_LOST));
    while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
    EXPECT_EQ(pair.a.state(), VIP_STATE_ERROR);
    EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_RECVQ_EMPTY));
  }
}

TEST(ViaSend, AMessageThatIsTooLongIsAnsweredByLevel) {
  for (const int level : kLevels) {
    Pair pair(level);
    VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 7);
    ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
    pair.connect();
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    EXPECT_EQ(pair.a.received(r), kReceived | VIP_STATUS_LENGTH_ERROR);
    const std::uint32_t status = pair.b.sent();
    const bool reliable = level != VIP_SERVICE_UNRELIABLE;
    EXPECT_EQ(status != VIP_STATUS_DONE, reliable);
    EXPECT_EQ(pair.b.state(), reliable ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
  }
}

TEST(ViaSend, DescriptorsThatNobodyCanUseEndWithTheirFault) {
  struct Case {
    const char* name;
    std::uint32_t status;
    void (*spoil)(Host&, VIP_DESCRIPTOR*);
  };
  const Case cases[] = {
      {"reserved operation", VIP_STATUS_FORMAT_ERROR,
       [](Host&, VIP_DESCRIPTOR* d) { d->CS.Control = VIP_CONTROL_OP_RESERVED; }},
      {"reserved bits", VIP_STATUS_FORMAT_ERROR,
       [](Host&, VIP_DESCRIPTOR* d) { d->CS.Control = 0x10; }},
      {"17 segments", VIP_STATUS_FORMAT_ERROR,
       [](Host&, VIP_DESCRIPTOR* d) { d->CS.SegCount = 17; }},
      {"RDMA without an address", VIP_STATUS_FORMAT_ERROR,
       [](Host&, VIP_DESCRIPTOR* d) {
         d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
         d->CS.SegCount = 0;
       }},
      {"handle of nothing", VIP_STATUS_PROTECTION_ERROR,
       [](Host& h, VIP_DESCRIPTOR* d) { h.segment(d, 0).Local.Handle = 0; }},
      {"beyond its memory", VIP_STATUS_PROTECTION_ERROR,
       [](Host& h, VIP_DESCRIPTOR* d) { h.segment(d, 0).Local.Length = 1u << 30; }},
      {"longer than agreed", VIP_STATUS_LENGTH_ERROR,
       [](Host& h, VIP_DESCRIPTOR* d) {
         for (int i = 1; i < 16; ++i) h.add(d, 0, 1 << 21);
       }},
  };
  for (const Case& c : cases) {
    for (const int level : kLevels) {
      Pair pair(level, 1 << 21);
      ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 100)), VIP_SUCCESS);
      pair.connect();
      VIP_DESCRIPTOR* s = pair.b.host.make(0, 0, 8);
      c.spoil(pair.b.host, s);
      ASSERT_EQ(pair.b.post_send(s), VIP_SUCCESS);
      const std::uint32_t status = pair.b.sent(s);
      EXPECT_EQ(status & VIP_STATUS_ERROR_MASK, c.status) << c.name << ", level " << level;
      const bool reliable = level != VIP_SERVICE_UNRELIABLE;
      EXPECT_EQ(pair.b.state(), reliable ? VIP_STATE_ERROR : VIP_STATE_CONNECTED) << c.name;
      EXPECT_EQ(pair.b.errors.has(VIP_ERROR_POST_DESC), reliable) << c.name;
    }
  }
}

TEST(ViaSend, ATagThatIsAnothersIsAProtectionError) {
  Pair pair(VIP_SERVICE_UNRELIABLE);
  VIP_PROTECTION_HANDLE other = nullptr;
  ASSERT_EQ(VipCreatePtag(pair.b.host.nic, &other), VIP_SUCCESS);
  auto attributes = attributes_of(other, VIP_SERVICE_UNRELIABLE);
  ASSERT_EQ(VipSetViAttributes(pair.b.vi, &attributes), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE | VIP_STATUS_PROTECTION_ERROR);
  ASSERT_EQ(VipDisconnect(pair.b.vi), VIP_SUCCESS);
  attributes.Ptag = nullptr;  // none is enough
  ASSERT_EQ(VipSetViAttributes(pair.b.vi, &attributes), VIP_SUCCESS);
  ASSERT_EQ(VipDestroyPtag(pair.b.host.nic, other), VIP_SUCCESS);
  while (pair.a.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
  ASSERT_EQ(VipDisconnect(pair.a.vi), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE);
  EXPECT_EQ(pair.a.received(), kReceived);
}

TEST(ViaReceive, ABadDescriptorEndsInItsTurn) {
  Pair pair(VIP_SERVICE_UNRELIABLE);
  pair.connect();
  VIP_DESCRIPTOR* good = pair.a.host.make(0, 0, 8);
  VIP_DESCRIPTOR* bad = pair.a.host.make(1, 0, 8);
  pair.a.host.segment(bad, 0).Local.Handle = 0;
  VIP_DESCRIPTOR* last = pair.a.host.make(2, 0, 8);
  ASSERT_EQ(pair.a.post_recv(good), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_recv(bad), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_recv(last), VIP_SUCCESS);
  VIP_DESCRIPTOR* d = nullptr;
  EXPECT_EQ(VipRecvDone(pair.a.vi, &d), VIP_NOT_DONE);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
    EXPECT_EQ(pair.b.sent(), VIP_STATUS_DONE);
  }
  EXPECT_EQ(pair.a.received(good), kReceived);
  EXPECT_EQ(pair.a.received(bad), kReceived | VIP_STATUS_PROTECTION_ERROR);
  EXPECT_EQ(pair.a.received(last), kReceived);
}

TEST(ViaReceive, MayEndBehindItsMemoryAsLongAsNoMessageDoes) {
  Pair pair(VIP_SERVICE_UNRELIABLE, 20'000);
  // Up to the end of the last page.
  const auto end = reinterpret_cast<std::uintptr_t>(pair.a.host.memory) + pair.a.host.memory_bytes;
  const auto from = reinterpret_cast<std::uintptr_t>(pair.a.host.data + 4000);
  const auto room = static_cast<std::uint32_t>((end + 4095) / 4096 * 4096 - from);
  VIP_DESCRIPTOR* r = pair.a.host.make(0, 4000, 1 << 20);
  ASSERT_EQ(pair.a.post_recv(r), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(1, 4000, 1 << 20)), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 100)), VIP_SUCCESS);
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(1, 0, room + 1)), VIP_SUCCESS);
  EXPECT_EQ(pair.a.received(r), kReceived);
  EXPECT_EQ(pair.a.received(), kReceived | VIP_STATUS_LENGTH_ERROR);
}

TEST(ViaReceive, ADescriptorWhoseMemoryIsGoneCannotBeCompleted) {
  Pair pair;
  VIP_MEM_ATTRIBUTES attributes{pair.a.host.tag, 0, 0};
  VIP_MEM_HANDLE own = 0;
  VIP_DESCRIPTOR* r = pair.a.host.make(0, 0, 8);
  ASSERT_EQ(VipRegisterMem(pair.a.host.nic, r, kDescriptorBytes, &attributes, &own), VIP_SUCCESS);
  ASSERT_EQ(VipPostRecv(pair.a.vi, r, own), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(VipDeregisterMem(pair.a.host.nic, r, own), VIP_SUCCESS);
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  VIP_DESCRIPTOR* d = nullptr;
  EXPECT_EQ(VipRecvWait(pair.a.vi, kSoon, &d), VIP_DESCRIPTOR_ERROR);
  EXPECT_EQ(d, r);
  EXPECT_EQ(r->CS.Status, 0u);
  EXPECT_TRUE(pair.a.errors.has(VIP_ERROR_COMP_PROT));
}

// The thread that waits learns of the end, and calls the handler.
TEST(ViaReceive, AnErrorHandlerMayDestroyTheViOnWhichItsThreadWaits) {
  const auto destroy = [](VIP_PVOID end, VIP_ERROR_DESCRIPTOR* error) {
    EXPECT_EQ(VipDisconnect(error->ViHandle), VIP_SUCCESS);
    EXPECT_EQ(VipDestroyVi(error->ViHandle), VIP_SUCCESS);
    static_cast<End*>(end)->vi = nullptr;
  };
  for (const bool shares : {false, true}) {
    End a, b;
    VIP_CQ_HANDLE cq = nullptr;
    ASSERT_EQ(VipCreateCQ(a.host.nic, 8, &cq), VIP_SUCCESS);
    a.create(VIP_SERVICE_RELIABLE_DELIVERY, nullptr, shares ? cq : nullptr);
    b.create(VIP_SERVICE_RELIABLE_DELIVERY);
    ASSERT_EQ(a.post_recv(a.host.make(0, 0, 8)), VIP_SUCCESS);
    connect(a, b);
    ASSERT_EQ(VipErrorCallback(a.host.nic, &a, destroy), VIP_SUCCESS);
    std::thread waits([&] {
      VIP_DESCRIPTOR* d = nullptr;
      const VIP_RETURN rc = VipRecvWait(a.vi, kSoon, &d);
      EXPECT_TRUE(d != nullptr ? rc == VIP_DESCRIPTOR_ERROR : rc == VIP_INVALID_PARAMETER) << rc;
    });
    // It waits by then, most likely. If it does not, it takes the flushed descriptor.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_EQ(VipDisconnect(b.vi), VIP_SUCCESS);
    waits.join();
    EXPECT_EQ(a.vi, nullptr);
    EXPECT_EQ(VipDestroyCQ(cq), VIP_SUCCESS);
  }
}

TEST(ViaReceive, IsFlushedInOrderWhenTheConnectionEnds) {
  Pair pair;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(pair.a.post_recv(pair.a.host.make(i, 0, 8)), VIP_SUCCESS);
  pair.connect();
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  ASSERT_EQ(VipDisconnect(pair.b.vi), VIP_SUCCESS);
  EXPECT_EQ(pair.a.received(pair.a.host.descriptor(0)), kReceived) << "it was sent before";
  for (int i = 1; i < 10; ++i) {
    EXPECT_EQ(pair.a.received(pair.a.host.descriptor(i)),
              kReceived | VIP_STATUS_DESC_FLUSHED_ERROR);
  }
  EXPECT_EQ(pair.a.state(), VIP_STATE_ERROR);
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
  ASSERT_EQ(pair.a.post_send(pair.a.host.make(1, 0, 8)), VIP_SUCCESS);
  EXPECT_EQ(pair.a.received(), kReceived | VIP_STATUS_DESC_FLUSHED_ERROR);
  EXPECT_EQ(pair.a.sent(), VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR);
}

}  // namespace
}  // namespace clan::via::testing
