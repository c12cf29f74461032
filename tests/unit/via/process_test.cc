// Peers that are other processes: they are killed, they fork, they lie.
#include <clan/stream.h>
#include <sys/wait.h>

#include "address.h"
#include "ends.h"
#include "provider.h"
#include "support/waiting_child.h"
#include "wire.h"

namespace clan::via::testing {
namespace {

using test::WaitingChild;

TEST(ViaDeath, OfThePeerFlushesReceivesAndIsTold) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(end.post_recv(end.host.make(i, 0, 8)), VIP_SUCCESS);
  const std::string name = unique_name();
  WaitingChild child([&](auto ready) {
    End other;
    other.create(VIP_SERVICE_RELIABLE_DELIVERY);
    if (request(other.host.nic, other.vi, name) != VIP_SUCCESS) ::_exit(1);
    if (other.post_send(other.host.make(0, 0, 8)) != VIP_SUCCESS) ::_exit(1);
    ready();
    for (;;) ::pause();
  });
  ASSERT_EQ(serve(end.host.nic, end.vi, name), VIP_SUCCESS);
  child.await();
  child.kill();
  EXPECT_EQ(end.received(end.host.descriptor(0)), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE)
      << "it had been sent";
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(end.received(end.host.descriptor(i)),
              VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
  }
  ASSERT_TRUE(end.errors.has(VIP_ERROR_CONN_LOST));
  EXPECT_EQ(end.errors.all.front().ResourceCode, VIP_RESOURCE_VI);
  EXPECT_EQ(end.errors.all.front().ViHandle, end.vi);
}

TEST(ViaDeath, InTheMiddleOfTransfersLeavesAWholeConnectionOrAnError) {
  for (int round = 0; round < 12; ++round) {
    End end(4 << 20);
    end.create(VIP_SERVICE_RELIABLE_DELIVERY);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(end.post_recv(end.host.make(i, 0, 1 << 20)), VIP_SUCCESS);
    const std::string name = unique_name();
    WaitingChild child([&](auto ready) {
      End other(4 << 20);
      other.create(VIP_SERVICE_RELIABLE_DELIVERY);
      if (request(other.host.nic, other.vi, name) != VIP_SUCCESS) ::_exit(1);
      ready();
      for (int i = 0;; ++i) {
        VIP_DESCRIPTOR* d = nullptr;
        const std::uint32_t bytes = i % 2 == 0 ? 1 << 20 : 100;
        (void)other.post_send(other.host.make(i % 8, 0, bytes));
        (void)VipSendDone(other.vi, &d);
      }
    });
    ASSERT_EQ(serve(end.host.nic, end.vi, name), VIP_SUCCESS);
    child.await();
    int received = 0;
    for (bool lost = false; !lost;) {
      if (received == round * 3) child.kill();
      VIP_DESCRIPTOR* d = nullptr;
      const VIP_RETURN rc = VipRecvWait(end.vi, kSoon, &d);
      ASSERT_NE(d, nullptr) << rc;
      lost = rc == VIP_DESCRIPTOR_ERROR;
      EXPECT_EQ((d->CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR) != 0, lost);
      if (!lost) {
        ++received;
        EXPECT_TRUE(d->CS.Length == 1 << 20 || d->CS.Length == 100);
        (void)end.post_recv(d);
      }
    }
  }
}

// Where the transfer finds out, and where this process knows before it.
TEST(ViaDeath, OfTheTargetEndsRdmaWithATransportError) {
  struct Where {
    unsigned char* data;
    VIP_MEM_HANDLE handle;
    NodeId node;
  };
  auto* const where = static_cast<Where*>(
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (const bool known : {false, true}) {
    End end;
    end.create(VIP_SERVICE_RELIABLE_DELIVERY);
    const std::string name = unique_name();
    WaitingChild child([&](auto ready) {
      End other;
      other.create(VIP_SERVICE_RELIABLE_DELIVERY);
      if (request(other.host.nic, other.vi, name) != VIP_SUCCESS) ::_exit(1);
      *where = {other.host.data, other.host.handle, provider()->context.node()};
      ready();
      for (;;) ::pause();
    });
    ASSERT_EQ(serve(end.host.nic, end.vi, name), VIP_SUCCESS);
    child.await();
    VIP_DESCRIPTOR* d = end.host.make(0, 0, 0, VIP_CONTROL_OP_RDMAWRITE);
    end.host.segment(d, 0).Remote.Data.Address = where->data;
    end.host.segment(d, 0).Remote.Handle = where->handle;
    end.host.add(d, 0, 8);
    ASSERT_EQ(end.post_send(d), VIP_SUCCESS);
    EXPECT_EQ(end.sent(d), VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE);
    const auto found = RemoteAperture::look_up(provider()->context, where->node, where->handle);
    ASSERT_TRUE(found.ok());
    const auto memory = RemoteAperture::import(provider()->context, found->cookie);
    ASSERT_TRUE(memory.ok());
    ::kill(child.pid(), SIGKILL);
    ::siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT);
    while (known && memory->check()) std::this_thread::yield();
    ASSERT_EQ(end.post_send(d), VIP_SUCCESS);
    EXPECT_EQ(end.sent(d), VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE | VIP_STATUS_TRANSPORT_ERROR);
    EXPECT_EQ(end.state(), VIP_STATE_ERROR);
    ASSERT_FALSE(end.errors.all.empty());
    EXPECT_EQ(end.errors.all.front().ErrorCode, VIP_ERROR_RDMA_TRANSPORT);
    EXPECT_EQ(end.errors.all.front().DescriptorPtr, d);
  }
  ::munmap(where, 4096);
}

TEST(ViaFork, TheChildHasNothingOfItsParents) {
  Pair pair;
  pair.connect();
  ASSERT_EQ(pair.a.post_recv(pair.a.host.make(0, 0, 8)), VIP_SUCCESS);
  const pid_t pid = ::fork();
  if (pid == 0) {
    VIP_DESCRIPTOR* d = nullptr;
    VIP_NIC_ATTRIBUTES attributes;
    bool right = VipRecvDone(pair.a.vi, &d) == VIP_INVALID_STATE &&
                 VipPostSend(pair.b.vi, pair.b.host.make(0, 0, 8), 1) == VIP_INVALID_STATE &&
                 VipDisconnect(pair.b.vi) == VIP_INVALID_STATE &&
                 VipQueryNic(pair.a.host.nic, &attributes) == VIP_INVALID_STATE;
    VIP_NIC_HANDLE own = nullptr;
    right = right && VipOpenNic("own", &own) == VIP_SUCCESS && VipCloseNic(own) == VIP_SUCCESS;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(pair.b.post_send(pair.b.host.make(0, 0, 8)), VIP_SUCCESS);
  EXPECT_EQ(pair.a.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
}

// --- a peer that speaks the wire itself ----------------------------------------------------------

struct Liar {
  explicit Liar(End& end, const WireAttributes& said = {}, VIP_RETURN answer = VIP_SUCCESS) {
    const std::string name = unique_name();
    std::thread server([&] { EXPECT_EQ(serve(end.host.nic, end.vi, name), answer); });
    NetAddress address;
    EXPECT_TRUE(read_address(Net(end.host.nic, name), &address));
    while (!stream) {
      auto made = Stream::connect(provider()->context, service_of(address), 1000);
      if (!made) continue;
      Hello hello;
      hello.attributes = said;
      hello.attributes.level = VIP_SERVICE_RELIABLE_DELIVERY;
      hello.attributes.max_transfer = 1 << 24;
      std::memcpy(hello.host, address.host.data(), kHostBytes);
      say(*made, hello);
      if (answer != VIP_SUCCESS) break;
      if (made->wait_readable(2000) && made->peek().ok() && !made->peek()->empty()) {
        stream = std::move(*made);
      }
    }
    server.join();
  }
  template <typename Record>
  static void say(Stream& to, const Record& record, std::size_t bytes = sizeof(Record)) {
    auto room = to.reserve(bytes);
    ASSERT_TRUE(room.ok());
    std::memset(room->data(), 0, bytes);
    std::memcpy(room->data(), &record, std::min(bytes, sizeof record));
    to.commit(bytes);
  }
  std::optional<Stream> stream;
};

// So a client that sends at once finds them.
TEST(ViaConnect, TheAnswerComesBehindTheBuffers) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  ASSERT_EQ(end.post_recv(end.host.make(0, 0, 8)), VIP_SUCCESS);
  Liar client(end);
  for (const Kind kind : {Kind::kRegion, Kind::kBuffer, Kind::kAnswer}) {
    const auto record = client.stream->peek();
    ASSERT_TRUE(record.ok() && !record->empty());
    EXPECT_EQ(static_cast<Kind>(record->front()), kind);
    client.stream->consume(record->size());
  }
}

// And so does a server that sends at once.
TEST(ViaConnect, TheRequestComesBehindTheBuffers) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  ASSERT_EQ(end.post_recv(end.host.make(0, 0, 8)), VIP_SUCCESS);
  Net local(end.host.nic, "c"), remote(end.host.nic, unique_name());
  NetAddress address;
  ASSERT_TRUE(read_address(remote, &address));
  auto listener = Listener::create(provider()->context, service_of(address));
  ASSERT_TRUE(listener.ok());
  std::thread client(
      [&] { EXPECT_EQ(VipConnectRequest(end.vi, local, remote, kSoon, nullptr), VIP_SUCCESS); });
  auto stream = listener->accept(10'000);
  ASSERT_TRUE(stream.ok());
  for (const Kind kind : {Kind::kRegion, Kind::kBuffer, Kind::kHello}) {
    ASSERT_TRUE(stream->wait_readable(10'000).ok());
    const auto record = stream->peek();
    ASSERT_TRUE(record.ok() && !record->empty());
    EXPECT_EQ(static_cast<Kind>(record->front()), kind);
    stream->consume(record->size());
  }
  Answer answer;
  answer.accepted = 1;
  Liar::say(*stream, answer);
  client.join();
}

TEST(ViaBuffers, OfOneSizeAreOnlyCounted) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  WireAttributes said;
  said.copy_limit = 1000;
  Liar peer(end, said);
  std::vector<Kind> heard;
  Answer answer;
  const auto hear = [&] {
    heard.clear();
    for (auto record = peer.stream->peek(); record.ok(); record = peer.stream->peek()) {
      heard.push_back(static_cast<Kind>(record->front()));
      if (heard.back() == Kind::kAnswer)
        std::memcpy(static_cast<void*>(&answer), record->data(), sizeof answer);
      peer.stream->consume(record->size());
    }
    return heard;
  };
  EXPECT_EQ(hear(), std::vector{Kind::kAnswer});
  auto counts = RemoteAperture::import(provider()->context, answer.attributes.counts);
  ASSERT_TRUE(counts.ok());
  const auto* const count = PostedCounts::at(*counts, answer.attributes.count);
  ASSERT_NE(count, nullptr);
  int posted = 0;
  const auto post = [&](std::uint32_t bytes) {
    ASSERT_EQ(end.post_recv(end.host.make(posted++, 0, bytes)), VIP_SUCCESS);
    EXPECT_EQ(words::load_acquire(*count), static_cast<std::uint32_t>(posted));
  };
  post(100);
  EXPECT_EQ(hear(), (std::vector{Kind::kRegion, Kind::kBuffer}));
  post(100);
  post(100);
  EXPECT_EQ(hear(), std::vector<Kind>());
  post(200);
  EXPECT_EQ(hear(), std::vector{Kind::kBuffer}) << "of another size";
  for (int i = 0; i < 2; ++i) {
    post(1001);
    EXPECT_EQ(hear(), std::vector{Kind::kBuffer}) << "the peer does not copy what is so long";
  }
}

TEST(ViaHostile, ACountOfAnotherProcessIsNoConnection) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  WireAttributes said;
  said.counts.node = NodeId{17};
  Liar liar(end, said, VIP_TIMEOUT);
  said.counts = provider()->counts.cookie();
  said.count = ~0u;
  Liar beyond(end, said, VIP_TIMEOUT);
  EXPECT_EQ(end.state(), VIP_STATE_IDLE);
}

// A peer that keeps the cookie of a buffer, and writes once more.
TEST(ViaOptions, StrictProtectionRefusesAWriteBehindTheCompletion) {
  for (const bool strict : {false, true}) {
    End end;
    end.create(VIP_SERVICE_RELIABLE_DELIVERY);
    VIP_CLAN_VI_OPTIONS options{};
    options.StrictProtection = strict;
    ASSERT_EQ(VipClanSetVi(end.vi, &options), VIP_SUCCESS);
    ASSERT_EQ(end.post_recv(end.host.make(0, 0, 8)), VIP_SUCCESS);
    Liar peer(end);
    RegionRecord region;
    const auto record = peer.stream->peek();
    ASSERT_TRUE(record.ok() && record->size() == sizeof region);
    std::memcpy(static_cast<void*>(&region), record->data(), sizeof region);
    peer.stream->consume(sizeof region);
    const auto buffer = peer.stream->peek();
    ASSERT_TRUE(buffer.ok() && buffer->size() == sizeof(BufferRecord) + sizeof(Piece));
    Piece piece;
    std::memcpy(&piece, buffer->data() + sizeof(BufferRecord), sizeof piece);
    auto memory = RemoteAperture::import(provider()->context, region.cookie);
    ASSERT_TRUE(memory.ok());
    EXPECT_TRUE(memory->write(piece.offset, "before", 6).ok());
    Liar::say(*peer.stream, MessageRecord{});
    EXPECT_EQ(end.received(), VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    std::memset(end.host.data, 'd', 8);
    EXPECT_EQ(memory->write(piece.offset, "behind", 6).ok(), !strict);
    EXPECT_EQ(end.host.data[0] == 'd', strict);
  }
}

TEST(ViaHostile, NonsenseEndsTheConnectionAndNothingElse) {
  using Say = void (*)(Stream&);
  const Say lies[] = {
      [](Stream& s) { Liar::say(s, std::uint8_t{0}); },
      [](Stream& s) { Liar::say(s, std::uint8_t{99}); },
      [](Stream& s) { Liar::say(s, Hello{}); },
      [](Stream& s) { Liar::say(s, RegionRecord{}, 8); },
      [](Stream& s) {
        RegionRecord r;
        r.slot = 7;
        Liar::say(s, r);
      },
      [](Stream& s) {
        BufferRecord r;
        r.segments = 17;
        Liar::say(s, r, sizeof r + 17 * sizeof(Piece));
      },
      [](Stream& s) {
        BufferRecord r;
        r.segments = 2;
        Liar::say(s, r, sizeof r + sizeof(Piece));
      },
      [](Stream& s) {
        BufferRecord r;
        r.posted = 0;  // there is none
        Liar::say(s, r);
      },
      [](Stream& s) {
        struct {
          BufferRecord head;
          Piece piece{};
        } r;
        r.head.segments = 1;
        r.piece.bytes = 8;
        r.piece.slot = 3;  // never reported
        Liar::say(s, r);
      },
      [](Stream& s) {
        struct {
          BufferRecord head;
          Piece piece{};
        } r;
        RegionRecord region;
        region.cookie.length = 100;
        Liar::say(s, region);
        r.head.segments = 1;
        r.piece.offset = ~std::uint64_t{0} - 3;
        r.piece.bytes = 8;
        Liar::say(s, r);
      },
      [](Stream& s) {
        MessageRecord r;
        r.flags = MessageRecord::kCopied;
        r.length = 1000;  // and they are not there
        Liar::say(s, r);
      },
      [](Stream& s) {
        MessageRecord r;
        r.flags = MessageRecord::kCopied;
        r.length = 100;  // more than the descriptor has room for
        Liar::say(s, r, sizeof r + 100);
      },
      [](Stream& s) {
        MessageRecord r;
        r.length = 1u << 31;
        Liar::say(s, r);
      },
      [](Stream& s) {
        Liar::say(s, MessageRecord{});
        Liar::say(s, MessageRecord{});  // one descriptor is posted
      },
      [](Stream& s) {
        FailureRecord r;
        r.code = 200;
        Liar::say(s, r);
      },
      [](Stream& s) {
        BufferRecord r;
        r.posted = kMostDescriptors + 1;
        Liar::say(s, r);
      },
      [](Stream& s) {
        MessageRecord r;
        r.posted = kMostDescriptors + 1;
        Liar::say(s, r);
      },
  };
  for (const Say lie : lies) {
    End end;
    end.create(VIP_SERVICE_RELIABLE_DELIVERY);
    ASSERT_EQ(end.post_recv(end.host.make(0, 0, 8)), VIP_SUCCESS);
    Liar liar(end);
    lie(*liar.stream);
    while (end.state() == VIP_STATE_CONNECTED) std::this_thread::yield();
    EXPECT_TRUE(end.errors.has(VIP_ERROR_CATASTROPHIC)) << "lie " << &lie - lies;
  }
}

// Its cookie is of another process's memory, or is none: the sender has an error, and no more.
TEST(ViaHostile, AMadeUpCookieFailsTheSend) {
  End end;
  end.create(VIP_SERVICE_RELIABLE_DELIVERY);
  Liar liar(end);
  RegionRecord region;
  region.cookie.node = provider()->context.node();
  region.cookie.length = 1 << 20;
  region.cookie.rights = Rights::kWrite;
  region.cookie.aperture = 5;
  region.cookie.generation = 1;
  Liar::say(*liar.stream, region);
  struct {
    BufferRecord head;
    Piece piece{};
  } buffer;
  buffer.head.segments = 1;
  buffer.piece.bytes = 1 << 20;
  Liar::say(*liar.stream, buffer);
  ASSERT_EQ(end.post_send(end.host.make(0, 0, 100'000)), VIP_SUCCESS);
  EXPECT_NE(end.sent() & VIP_STATUS_ERROR_MASK, 0u);
  EXPECT_EQ(end.state(), VIP_STATE_ERROR);
}

}  // namespace
}  // namespace clan::via::testing
