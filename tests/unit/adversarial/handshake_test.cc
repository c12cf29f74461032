// Peers that speak the control protocol badly, in another version, or not at all: refused in words,
// and nobody else notices.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/mapping.h"
#include "base/random.h"
#include "clan/aperture.h"
#include "clan/memory.h"
#include "engine/connection/connection.h"
#include "link/control.h"
#include "link/shm_link.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using link::ControlMessage;
using link::ControlType;
using Mode = WaitOptions::Mode;

std::string rendezvous_name(const std::string& service) {
  return "clan/" + std::to_string(::geteuid()) + "/" + service;
}

// The descriptors of an opening message: those of a real NIC, of which each test spoils one.
struct Opening {
  std::unique_ptr<nic::Nic> nic;
  Fd doorbell;
  std::vector<int> fds;
  ControlMessage message;

  explicit Opening(ControlType type) {
    const NodeId node{random_u64()};
    nic = must(nic::Nic::create(node, ::geteuid()));
    doorbell = must(create_eventfd());
    fds = {nic->tables_memfd(), nic->signals_memfd(), doorbell.get()};
    message.type = type;
    message.node = node.value;
    message.slot = 0;
  }
};

Status send_bytes(int socket, const ControlMessage& message, std::size_t bytes,
                  std::span<const int> fds) {
  std::vector<std::byte> all(std::max(bytes, sizeof message));
  std::memcpy(all.data(), &message, sizeof message);
  return send_datagram(socket, std::span(all).first(bytes), fds);
}

// The other side's answer within five seconds.
Result<ControlMessage> answer_of(int socket) {
  pollfd p{socket, POLLIN, 0};
  if (::poll(&p, 1, 5000) != 1) return Error{ETIMEDOUT, "no answer"};
  std::byte buffer[4096];
  auto datagram = receive_datagram(socket, buffer);
  if (!datagram) return datagram.error();
  if (datagram->bytes == 0) return Error{ECONNRESET, "closed without a word"};
  ControlMessage message;
  std::memcpy(static_cast<void*>(&message), buffer, std::min(sizeof message, datagram->bytes));
  return message;
}

class BadClient : public testing::Test {
 protected:
  BadClient() : honest_(), name_(unique_name("victim")) {
    listener_.emplace(must(Listener::create(honest_.server_context, name_)));
    descriptors_ = open_descriptors();
  }
  ~BadClient() override {
    // Whatever happened: an honest client still gets through, and the honest connection lives.
    auto client = Stream::connect(honest_.client_context, name_, 10'000);
    EXPECT_OK(client);
    while (listener_->try_accept().ok()) {
    }
    EXPECT_OK(honest_.client.send(text("honest"), 5000));
    EXPECT_EQ(receive_text(honest_.server), "honest");
    EXPECT_TRUE(eventually([&] { return honest_.server_context.counters().links == 1; }));
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors_; }))
        << open_descriptors() << " descriptors, were " << descriptors_;
  }
  // Sends a hello and gives the answer.
  Result<ControlMessage> hello(const Opening& opening, std::size_t bytes = sizeof(ControlMessage)) {
    Fd socket = must(connect_abstract(rendezvous_name(name_), kNoDeadline));
    if (auto s = send_bytes(socket.get(), opening.message, bytes, opening.fds); !s)
      return s.error();
    return answer_of(socket.get());
  }
  void expect_refused(const Opening& opening, int err, std::size_t bytes = sizeof(ControlMessage)) {
    auto answer = hello(opening, bytes);
    ASSERT_OK(answer);
    EXPECT_EQ(answer->type, ControlType::kRefuse);
    EXPECT_EQ(answer->err, err);
    EXPECT_EQ(answer->magic, link::kControlMagic);
  }
  std::uint64_t hostile() { return honest_.server_context.counters().hostile_peers; }

  StreamPair honest_;
  std::string name_;
  std::optional<Listener> listener_;
  std::size_t descriptors_ = 0;
};

TEST_F(BadClient, WithAGoodHelloIsAccepted) {  // or the other tests would prove nothing
  Opening opening(ControlType::kHello);
  auto answer = hello(opening);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->type, ControlType::kAccept);
  EXPECT_EQ(answer->node, honest_.server_context.node().value);
}

TEST_F(BadClient, OfAnotherVersionIsToldSoWhateverTheSizeOfItsMessages) {
  for (std::size_t bytes : {std::size_t{24}, std::size_t{100}, sizeof(ControlMessage),
                            sizeof(ControlMessage) + 8, std::size_t{4000}}) {
    Opening opening(ControlType::kHello);
    opening.message.version = shm::kLayoutVersion + 1;
    expect_refused(opening, EPROTONOSUPPORT, bytes);
  }
  EXPECT_EQ(hostile(), 0u) << "another version is no offence";
}

TEST_F(BadClient, OfOurVersionWithAnotherSizeIsRefused) {
  Opening opening(ControlType::kHello);
  expect_refused(opening, EPROTO, sizeof(ControlMessage) - 8);
  expect_refused(opening, EPROTO, sizeof(ControlMessage) + 8);
}

TEST_F(BadClient, ThatSpeaksAnotherProtocolIsRefusedAndCounted) {
  Opening opening(ControlType::kHello);
  opening.message.magic = 0x20544547;  // "GET "
  expect_refused(opening, EPROTO);
  EXPECT_TRUE(eventually([&] { return hostile() == 1; }));
  expect_refused(opening, EPROTO, 3);
}

TEST_F(BadClient, ThatDoesNotBeginWithAHelloIsRefused) {
  for (auto type : {ControlType::kAccept, ControlType::kOob, ControlType::kMemory,
                    ControlType::kCopy, static_cast<ControlType>(12345)}) {
    Opening opening(type);
    expect_refused(opening, EPROTO);
  }
  Opening refusing(ControlType::kRefuse);
  EXPECT_TRUE(hello(refusing).ok());
}

TEST_F(BadClient, WithAnImpossibleSlotIsRefused) {
  Opening opening(ControlType::kHello);
  opening.message.slot = shm::kMaxPeers;
  expect_refused(opening, EPROTO);
}

TEST_F(BadClient, WithoutItsThreeDescriptorsIsRefused) {
  for (std::size_t n : {0, 1, 2}) {
    Opening opening(ControlType::kHello);
    opening.fds.resize(n);
    expect_refused(opening, EPROTO);
  }
  Opening opening(ControlType::kHello);
  opening.fds.push_back(opening.doorbell.get());
  expect_refused(opening, EPROTO);
}

TEST_F(BadClient, WithMemoryThatCouldShrinkIsRefused) {
  for (std::size_t which : {0, 1}) {
    Opening opening(ControlType::kHello);
    Fd unsealed(::memfd_create("clan-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    const std::size_t bytes = which == 0 ? shm::kTablesBytes : shm::kSignalsBytes;
    ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(bytes)), 0);
    std::memset(opening.message.oob.payload.data(), 0, 1);
    ASSERT_EQ(
        ::pwrite(unsealed.get(),
                 &reinterpret_cast<const shm::NicTables*>(opening.nic->image().tables)->header,
                 sizeof(shm::NicHeader), 0),
        static_cast<ssize_t>(sizeof(shm::NicHeader)));
    opening.fds[which] = unsealed.get();
    expect_refused(opening, EPERM);
  }
}

TEST_F(BadClient, WithMemoryThatIsTooSmallIsRefused) {
  for (std::size_t which : {0, 1}) {
    Opening opening(ControlType::kHello);
    Fd small = must(create_memfd("clan-test", 4096));
    opening.fds[which] = small.get();
    expect_refused(opening, EINVAL);
  }
}

TEST_F(BadClient, WithDescriptorsThatAreNoMemoryIsRefused) {
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  Fd r(fds[0]), w(fds[1]);
  for (std::size_t which : {0, 1}) {
    Opening opening(ControlType::kHello);
    opening.fds[which] = r.get();
    auto answer = hello(opening);
    ASSERT_OK(answer);
    EXPECT_EQ(answer->type, ControlType::kRefuse);
  }
}

TEST_F(BadClient, WithANicOfAnotherLayoutOrNodeIsRefused) {
  Opening opening(ControlType::kHello);
  opening.message.node ^= 1;
  expect_refused(opening, EPROTONOSUPPORT);
  Opening other(ControlType::kHello);
  Fd tables = must(create_memfd("clan-test", shm::kTablesBytes));  // all zeros
  other.fds[0] = tables.get();
  expect_refused(other, EPROTONOSUPPORT);
}

TEST_F(BadClient, ThatSaysNothingDoesNotHoldUpOthers) {
  std::vector<Fd> silent;
  for (int i = 0; i < 100; ++i)
    silent.push_back(must(connect_abstract(rendezvous_name(name_), kNoDeadline)));
  auto fresh = must(Context::create());
  auto stream = Stream::connect(fresh, name_, 5000);
  ASSERT_OK(stream);
  // One of them speaks at last.
  Opening opening(ControlType::kHello);
  ASSERT_TRUE(send_bytes(silent[50].get(), opening.message, sizeof opening.message, opening.fds));
  auto answer = answer_of(silent[50].get());
  ASSERT_OK(answer);
  EXPECT_EQ(answer->type, ControlType::kAccept);
}

TEST_F(BadClient, ThatHangsUpAtOnceIsForgotten) {
  for (int i = 0; i < 200; ++i) {
    Fd socket = must(connect_abstract(rendezvous_name(name_), kNoDeadline));
    if (i % 3 == 0) {
      Opening opening(ControlType::kHello);
      (void)send_bytes(socket.get(), opening.message, sizeof opening.message, opening.fds);
    }
  }
}

// --- after a good handshake
// ------------------------------------------------------------------------

class BadPeer : public BadClient {
 protected:
  BadPeer() : opening_(ControlType::kHello) {}
  void link_up() {
    socket_ = must(connect_abstract(rendezvous_name(name_), kNoDeadline));
    ASSERT_TRUE(send_bytes(socket_.get(), opening_.message, sizeof opening_.message, opening_.fds));
    auto answer = answer_of(socket_.get());
    ASSERT_OK(answer);
    ASSERT_EQ(answer->type, ControlType::kAccept);
    endpoint_ = answer->endpoint;
  }
  void send(const ControlMessage& message, std::size_t bytes = sizeof(ControlMessage),
            std::span<const int> fds = {}) {
    (void)send_bytes(socket_.get(), message, bytes, fds);
  }
  bool hung_up() {
    for (;;) {
      auto answer = answer_of(socket_.get());
      if (!answer.ok()) return answer.error().err == ECONNRESET;
    }
  }
  ControlMessage oob(std::uint32_t type, std::uint32_t to) {
    ControlMessage message;
    message.type = ControlType::kOob;
    message.oob.type = type;
    message.oob.to = to;
    message.oob.from = 77;
    return message;
  }

  Opening opening_;
  Fd socket_;
  std::uint32_t endpoint_ = 0;
};

TEST_F(BadPeer, WithMalformedControlMessagesIsResetAndCounted) {
  struct Bad {
    ControlMessage message;
    std::size_t bytes;
  };
  std::vector<Bad> all;
  all.push_back({oob(1, 1), 10});
  all.push_back({oob(1, 1), sizeof(ControlMessage) - 1});
  all.push_back({oob(1, 1), sizeof(ControlMessage) + 1});
  all.push_back({oob(1, 1), sizeof(ControlMessage)});
  all.back().message.magic = 1;
  all.push_back({oob(1, 1), sizeof(ControlMessage)});
  all.back().message.version = 99;
  all.push_back({oob(1, 1), sizeof(ControlMessage)});
  all.back().message.type = static_cast<ControlType>(4711);
  std::uint64_t count = hostile();
  for (const Bad& bad : all) {
    link_up();
    send(bad.message, bad.bytes);
    EXPECT_TRUE(hung_up());
    EXPECT_EQ(hostile(), ++count);
  }
}

TEST_F(BadPeer, WithImpossibleConnectionRequestsIsRefused) {
  link_up();
  auto request = [&](const engine::ConnectRecord& record,
                     std::uint32_t length = sizeof(engine::ConnectRecord)) {
    ControlMessage message = oob(engine::kOobConnect, endpoint_);
    std::memcpy(message.oob.payload.data(), &record, sizeof record);
    message.oob.length = length;
    send(message);
    for (;;) {
      auto answer = answer_of(socket_.get());
      ASSERT_OK(answer);
      if (answer->type != ControlType::kOob) continue;  // kMemory: its arena
      EXPECT_EQ(answer->oob.type, engine::kOobRefuse);
      EXPECT_EQ(answer->oob.to, 77u);
      return;
    }
  };
  engine::ConnectRecord record;
  request(record);
  request(record, 3);
  request(record, 0xffffffff);
  for (std::uint32_t lines : {1u, 15u, 17u, 0x80000000u}) {
    record.ring_lines = lines;
    record.region.length = engine::kRegionRing + std::uint64_t{lines} * 64;
    record.region.node = {opening_.message.node};
    request(record);
  }
  // A real aperture whose entry says that it reaches beyond its memory.
  record.ring_lines = 1u << 20;
  record.region.length = engine::kRegionRing + (std::uint64_t{1} << 26);
  record.region.aperture = 0xffffffff;
  request(record);
  EXPECT_ERR(listener_->try_accept(), EAGAIN);
}

// Its victim would fault, or lock the bus, when it stores there.
TEST_F(BadPeer, WithARingThatCannotBeWrittenIsRefused) {
  link_up();
  constexpr std::uint64_t kBytes = 2 * kPageSize;
  const auto offer = [&](bool read_only, std::uint64_t offset) {
    auto block = must(nic::MemoryBlock::create(kBytes));
    engine::ConnectRecord record;
    record.ring_lines = 32;
    const std::uint64_t length = engine::kRegionRing + std::uint64_t{record.ring_lines} * 64;
    const Rights rights = read_only ? Rights::kRead : Rights::kReadWrite;
    record.region =
        must(opening_.nic->export_aperture({block->data() + offset, length, rights, block}));
    auto grant = must(opening_.nic->check_cookie(record.region));
    ControlMessage memory;
    memory.type = ControlType::kMemory;
    memory.memory_id = grant.memory_id;
    memory.memory_bytes = grant.memory_bytes;
    memory.flags = read_only ? link::kMemoryReadOnly : 0;
    send(memory, sizeof memory, {&grant.memfd, 1});
    ControlMessage message = oob(engine::kOobConnect, endpoint_);
    engine::put_payload(message.oob, record);
    send(message);
    for (;;) {
      auto answer = must(answer_of(socket_.get()));
      if (answer.type == ControlType::kOob) return answer.oob.type;
    }
  };
  EXPECT_EQ(offer(true, 0), engine::kOobRefuse);
  EXPECT_EQ(offer(false, 60), engine::kOobRefuse);
  EXPECT_EQ(offer(false, 128), engine::kOobAccept) << "or the others would prove nothing";
}

TEST_F(BadPeer, ThatNamesEndpointsOfOthersReachesNobody) {
  link_up();
  for (std::uint32_t endpoint = 0; endpoint < 20; ++endpoint) {
    for (std::uint32_t type :
         {engine::kOobClose, engine::kOobRefuse, engine::kOobAccept, 7u, 0x80000063u}) {
      if (endpoint == endpoint_) continue;
      send(oob(type, endpoint));
    }
  }
  ControlMessage probe = oob(engine::kOobConnect, 0xfffffff0);
  send(probe);
  auto answer = answer_of(socket_.get());
  ASSERT_OK(answer);
  EXPECT_EQ(answer->oob.type, engine::kOobRefuse) << "all before it have been handled";
  ASSERT_OK(honest_.client.send(text("alive"), 1000));
  EXPECT_EQ(receive_text(honest_.server), "alive");
}

TEST_F(BadPeer, WithoutTheKeyGetsAtNoMemory) {
  link_up();
  Fd staging = must(create_memfd("clan-test", 4096));
  ControlMessage memory;
  memory.type = ControlType::kMemory;
  memory.memory_id = 5;
  memory.memory_bytes = 4096;
  int fd = staging.get();
  send(memory, sizeof memory, {&fd, 1});
  for (auto type : {ControlType::kImport, ControlType::kCopy}) {
    for (std::uint32_t aperture = 0; aperture < 4; ++aperture) {
      for (std::uint32_t generation = 0; generation < 6; ++generation) {
        ControlMessage message;
        message.type = type;
        message.request = 1;
        message.memory_id = 5;
        message.length = 64;
        message.flags =
            static_cast<std::uint32_t>(generation % 2 == 0 ? RdmaOp::kWrite : RdmaOp::kRead);
        message.cookie.node = honest_.server_context.node();
        message.cookie.aperture = aperture;
        message.cookie.generation = generation;
        message.cookie.rights = Rights::kReadWrite;
        message.cookie.length = engine::kRegionRing + honest_.server_context.options().ring_bytes;
        send(message);
        auto answer = answer_of(socket_.get());
        ASSERT_OK(answer);
        EXPECT_NE(answer->err, 0);
      }
    }
  }
}

TEST_F(BadPeer, WithMemoryOfImpossibleSizeIsIgnored) {
  link_up();
  Fd small = must(create_memfd("clan-test", 4096));
  Fd unsealed(::memfd_create("clan-test", MFD_CLOEXEC));
  const int fds[] = {small.get(), unsealed.get(), opening_.doorbell.get()};
  std::uint64_t id = 100;
  for (std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{8192}, ~std::uint64_t{0}, std::uint64_t{1} << 46}) {
    for (const int& fd : fds) {
      for (auto type : {ControlType::kMemory, ControlType::kImportReply}) {
        ControlMessage message;
        message.type = type;
        message.memory_id = ++id;
        message.memory_bytes = bytes;
        send(message, sizeof message, {&fd, 1});
        send(message);
      }
    }
  }
  ControlMessage queue;
  queue.type = ControlType::kQueueFd;
  queue.slot = 0xffffffff;
  send(queue, sizeof queue, {&fds[2], 1});
  send(oob(engine::kOobConnect, 0xfffffff0));
  auto answer = answer_of(socket_.get());
  ASSERT_OK(answer);
  EXPECT_EQ(answer->oob.type, engine::kOobRefuse);
}

TEST_F(BadPeer, ThatSharesMoreThanTheMachineHasIsNotMapped) {
  link_up();
  const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  Fd sparse = must(create_memfd("clan-test", 4 * pages * kPageSize));
  const int fd = sparse.get();
  const std::uint64_t before = mapped_bytes();
  ControlMessage memory;
  memory.type = ControlType::kMemory;
  memory.memory_id = 1;
  memory.memory_bytes = 4 * pages * kPageSize;
  send(memory, sizeof memory, {&fd, 1});
  memory.memory_id = 2;
  memory.memory_bytes = 4096;
  send(memory, sizeof memory, {&fd, 1});
  EXPECT_TRUE(eventually([&] { return mapped_bytes() == before + 4096; }))
      << mapped_bytes() - before;
}

TEST_F(BadPeer, CannotSealWhatItsVictimSharesWithOthers) {
  auto memory = must(Memory::allocate(4096));
  auto aperture =
      must(Aperture::export_memory(honest_.server_context, memory, 0, 4096, Rights::kReadWrite));
  Fd socket = must(connect_abstract(rendezvous_name(name_), kNoDeadline));
  ASSERT_OK(send_bytes(socket.get(), opening_.message, sizeof opening_.message, opening_.fds));
  ControlMessage import;
  import.type = ControlType::kImport;
  import.cookie = aperture.cookie();
  ASSERT_OK(send_bytes(socket.get(), import, sizeof import, {}));
  int seen = 0;
  for (int i = 0; i < 2; ++i) {  // accept + {tables, signals, doorbell}, import_reply + {memory}
    pollfd p{socket.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 5000), 1);
    std::byte buffer[4096];
    auto datagram = receive_datagram(socket.get(), buffer);
    ASSERT_OK(datagram);
    for (std::size_t k = 0; k < datagram->fd_count; ++k) {
      const int memfd = datagram->fds[k].get();
      if (::fcntl(memfd, F_GET_SEALS) < 0) continue;  // the doorbell
      ++seen;
      for (int seal : {F_SEAL_FUTURE_WRITE, F_SEAL_WRITE, F_SEAL_SEAL}) {
        EXPECT_EQ(::fcntl(memfd, F_ADD_SEALS, seal), -1) << seal;
      }
    }
  }
  EXPECT_EQ(seen, 3);
}

TEST_F(BadPeer, ThatAsksForMemoryAndNeverReadsCostsFewDescriptors) {
  auto memory = must(Memory::allocate(4096));
  auto aperture =
      must(Aperture::export_memory(honest_.server_context, memory, 0, 4096, Rights::kReadWrite));
  link_up();
  ControlMessage import;
  import.type = ControlType::kImport;
  import.cookie = aperture.cookie();
  for (int i = 0; i < 20'000; ++i) send(import);
  ControlMessage last = oob(engine::kOobConnect, 0xfffffff0);
  send(last);
  EXPECT_TRUE(eventually([&] { return honest_.server_context.counters().links == 2; }));
  EXPECT_LE(open_descriptors(), descriptors_ + 300);
}

TEST_F(BadPeer, ThatFloodsIsServedAndSoAreTheOthers) {
  link_up();
  std::atomic<bool> over{false};
  std::thread flood([&] {
    ControlMessage message = oob(7, 0xfffffff0);
    while (!over) (void)send_datagram(socket_.get(), std::as_bytes(std::span(&message, 1)), {});
  });
  for (int i = 0; i < 20; ++i) {
    auto stream = Stream::connect(honest_.client_context, name_, 10'000);
    EXPECT_OK(stream);
  }
  EXPECT_EQ(send_pattern(honest_.client, 1, 0, 50'000), 50'000u);
  EXPECT_EQ(receive_pattern(honest_.server, 1, 0, 50'000).bytes, 50'000u);
  over = true;
  flood.join();
  while (listener_->try_accept().ok()) {
  }
}

TEST_F(BadPeer, WithRandomMessagesDoesNoHarm) {
  Random random(99);
  Fd memory = must(create_memfd("clan-test", 1 << 16));
  const std::uint64_t seeds[] = {0, 1, 2, 16, 4096, 65535, 65536, 0x7fffffff, ~std::uint64_t{0}};
  auto value = [&] {
    return random.below(3) == 0 ? random.next() : seeds[random.below(std::size(seeds))];
  };
  for (int round = 0; round < 60; ++round) {
    link_up();
    for (int i = 0; i < 50; ++i) {
      ControlMessage m;
      m.type = static_cast<ControlType>(random.below(random.below(20) == 0 ? 30 : 13));
      m.err = static_cast<std::int32_t>(value());
      m.request = value();
      m.memory_id = value();
      m.memory_bytes = value();
      m.offset = value();
      m.length = value();
      m.staging = value();
      m.slot = static_cast<std::uint32_t>(value());
      m.flags = static_cast<std::uint32_t>(value());
      m.cookie = {honest_.server_context.node(),
                  value(),
                  value(),
                  value(),
                  static_cast<std::uint32_t>(value() % 8),
                  static_cast<std::uint32_t>(value() % 8),
                  static_cast<Rights>(value()),
                  0};
      m.oob.to = static_cast<std::uint32_t>(random.below(2) == 0 ? endpoint_ : value());
      m.oob.from = static_cast<std::uint32_t>(value());
      m.oob.type = static_cast<std::uint32_t>(random.below(2) == 0 ? kOobInternal | random.below(6)
                                                                   : value());
      m.oob.length = static_cast<std::uint32_t>(value());
      engine::ConnectRecord record;
      record.region = {{opening_.message.node},
                       value(),
                       value(),
                       value(),
                       static_cast<std::uint32_t>(value()),
                       static_cast<std::uint32_t>(value()),
                       static_cast<Rights>(value()),
                       0};
      record.ring_lines = static_cast<std::uint32_t>(value());
      if (random.below(2) == 0) {
        std::memcpy(m.oob.payload.data(), &record, sizeof record);
        m.oob.length = sizeof record;
      }
      int fds[4] = {memory.get(), memory.get(), opening_.doorbell.get(), memory.get()};
      if (!send_datagram(socket_.get(), std::as_bytes(std::span(&m, 1)),
                         std::span(fds).first(random.below(5)))) {
        break;
      }
    }
    socket_.reset();
  }
  while (listener_->try_accept().ok()) {
  }
}

// --- servers that answer badly
// ---------------------------------------------------------------------

// Answers one client's hello with what `reply` makes of an honest accept.
template <typename Reply>
void expect_client_error(int err, const char* words, Reply&& reply) {
  const std::string name = unique_name("bad-server");
  Fd listener = must(listen_abstract(rendezvous_name(name)));
  std::thread server([&] {
    pollfd p{listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 5000), 1);
    Fd client(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_OK(answer_of(client.get()));
    Opening opening(ControlType::kAccept);
    reply(client.get(), opening);
    std::byte b[8];
    pollfd gone{client.get(), POLLIN, 0};
    (void)::poll(&gone, 1, 5000);
    (void)::recv(client.get(), b, sizeof b, MSG_DONTWAIT);
  });
  auto context = must(Context::create());
  const std::size_t before = open_descriptors();
  auto stream = Stream::connect(context, name, 5000);
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.error().err, err) << stream.error().message();
  EXPECT_NE(std::string(stream.error().what).find(words), std::string::npos) << stream.error().what;
  server.join();
  EXPECT_LE(open_descriptors(), before + 4);
  EXPECT_EQ(context.counters().links, 0u);
}

TEST(BadServer, OfAnotherVersionIsReportedInWords) {
  for (std::size_t bytes : {std::size_t{24}, sizeof(ControlMessage), std::size_t{2000}}) {
    expect_client_error(EPROTONOSUPPORT, "version", [&](int socket, Opening& o) {
      o.message.version = shm::kLayoutVersion + 3;
      (void)send_bytes(socket, o.message, bytes, o.fds);
    });
    expect_client_error(EPROTONOSUPPORT, "version", [&](int socket, Opening& o) {
      o.message.version = shm::kLayoutVersion + 3;
      o.message.type = ControlType::kRefuse;
      o.message.err = EPROTONOSUPPORT;
      (void)send_bytes(socket, o.message, bytes, {});
    });
  }
}

TEST(BadServer, ThatRefusesByPolicyIsReportedInWords) {
  expect_client_error(EACCES, "policy", [](int socket, Opening& o) {
    o.message.type = ControlType::kRefuse;
    o.message.err = EACCES;
    (void)send_bytes(socket, o.message, sizeof o.message, {});
  });
}

TEST(BadServer, ThatAnswersNonsenseIsAnError) {
  expect_client_error(EPROTO, "protocol", [](int socket, Opening& o) {
    o.message.magic = 7;
    (void)send_bytes(socket, o.message, sizeof o.message, o.fds);
  });
  expect_client_error(EPROTO, "protocol", [](int socket, Opening& o) {
    (void)send_bytes(socket, o.message, 5, o.fds);
  });
  expect_client_error(EPROTO, "nonsense", [](int socket, Opening& o) {
    o.message.type = ControlType::kCopyDone;
    (void)send_bytes(socket, o.message, sizeof o.message, o.fds);
  });
  expect_client_error(EPROTO, "descriptors", [](int socket, Opening& o) {
    (void)send_bytes(socket, o.message, sizeof o.message, {});
  });
  expect_client_error(EINVAL, "smaller", [](int socket, Opening& o) {
    Fd small = must(create_memfd("clan-test", 4096));
    o.fds[1] = small.get();
    (void)send_bytes(socket, o.message, sizeof o.message, o.fds);
  });
}

TEST(BadServer, ThatHangsUpRefuses) {
  expect_client_error(ECONNREFUSED, "closed",
                      [](int socket, Opening&) { ::shutdown(socket, SHUT_RDWR); });
}

TEST(BadServer, ThatSaysNothingIsATimeOut) {
  const std::string name = unique_name("mute");
  Fd listener = must(listen_abstract(rendezvous_name(name)));
  auto context = must(Context::create());
  EXPECT_ERR(Stream::connect(context, name, 50), ETIMEDOUT);
}

// --- too few descriptors
// -----------------------------------------------------------------------------

// A process without room for what an honest peer passes says so, and is served again when it has
// room.
TEST(OutOfDescriptors, LosesNoLinkAndGoesOnWhenThereIsRoom) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP()
      << "the sanitizer looks at memory through a pipe, for which there would be no descriptors";
#endif
  const std::string name = unique_name("poor");
  Gate full, drain, drained;
  auto child = Process::start([&] {
    ContextOptions options;
    options.backlog = 4096;
    auto own = Context::create(options);
    CHILD_OK(own);
    auto listener = Listener::create(*own, name);
    CHILD_OK(listener);
    auto first = listener->accept(20'000);
    CHILD_OK(first);
    const rlimit few{200, 200};
    CHILD_CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    std::vector<Fd> filling;
    for (int fd; (fd = ::dup(0)) >= 0;) filling.emplace_back(fd);
    full.open();
    CHILD_CHECK(receive_text(*first) == "still here");
    CHILD_CHECK(drain.wait());
    filling.clear();
    drained.open();
    CHILD_CHECK(receive_text(*first) == "done");
    return 0;
  });
  ContextOptions options;
  // our memory is used up before the child's: what it loses is what we pass
  options.ring_bytes = 4 << 20;
  auto context = must(Context::create(options));
  Result<Stream> first = Error{ECONNREFUSED, ""};
  ASSERT_TRUE(eventually([&] { return (first = Stream::connect(context, name, 10'000)).ok(); }));
  ASSERT_TRUE(full.wait());
  std::vector<Stream> streams;
  Error error{0, ""};
  while (streams.size() < 1000 && error.err == 0) {
    auto stream = Stream::connect(context, name, 10'000);
    if (stream.ok()) {
      streams.push_back(std::move(*stream));
    } else {
      error = stream.error();
    }
  }
  EXPECT_EQ(error.err, ENOBUFS) << error.message() << " after " << streams.size();
  ASSERT_OK(first->send(text("still here"), 5000));
  drain.open();
  ASSERT_TRUE(drained.wait());
  EXPECT_OK(Stream::connect(context, name, 10'000));
  ASSERT_OK(first->send(text("done"), 5000));
  EXPECT_TRUE(child.wait(20'000).clean());
}

// --- users
// -----------------------------------------------------------------------------------------

constexpr uid_t kNobody = 65534;

bool become_nobody() {
  return ::setresgid(kNobody, kNobody, kNobody) == 0 && ::setresuid(kNobody, kNobody, kNobody) == 0;
}

TEST(OtherUser, IsRefusedUnlessAllowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  auto context = must(Context::create());
  const std::string name = unique_name("private");
  auto listener = must(Listener::create(context, name));
  auto child = Process::start([&] {
    CHILD_CHECK(become_nobody());
    auto own = Context::create();
    CHILD_OK(own);
    auto stream = Stream::connect(*own, name, 5000, 0);
    CHILD_CHECK(!stream.ok() && stream.error().err == EACCES);  // our policy refuses root's node
    ContextOptions options;
    options.allow_uids = {0};
    auto open = Context::create(options);
    CHILD_OK(open);
    stream = Stream::connect(*open, name, 5000, 0);
    CHILD_CHECK(!stream.ok() && stream.error().err == EACCES);  // theirs refuses us, in words
    return 0;
  });
  EXPECT_TRUE(child.wait(20'000).clean());
  EXPECT_EQ(context.counters().links, 0u);
  EXPECT_ERR(listener.try_accept(), EAGAIN);
}

TEST(OtherUser, ThatIsAllowedHasALaneOfItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  ContextOptions options = with_mode(Mode::kAdaptive, 4096);
  options.allow_uids = {kNobody};
  auto context = must(Context::create(options));
  const std::string name = unique_name("shared");
  auto listener = must(Listener::create(context, name));
  auto queue = must(EventQueue::create(context));
  ASSERT_OK(listener.register_with(queue, 1));
  Gate waiting;
  auto child = Process::start([&] {
    CHILD_CHECK(become_nobody());
    CHILD_CHECK(waiting.wait());
    ::usleep(30'000);  // let the other side sleep on the queue before our lane exists
    ContextOptions own_options = with_mode(Mode::kAdaptive, 4096);
    own_options.allow_uids = {0};
    auto own = Context::create(own_options);
    CHILD_OK(own);
    auto stream = Stream::connect(*own, name, 10'000, 0);
    CHILD_OK(stream);
    CHILD_CHECK(send_pattern(*stream, 4, 0, 100'000) == 100'000);
    CHILD_CHECK(receive_text(*stream) == "enough");
    return 0;
  });
  waiting.open();
  Event e[1];
  ASSERT_OK(queue.wait(e, 10'000));
  auto stream = must(listener.accept(10'000));
  EXPECT_EQ(stream.peer().uid, kNobody);
  ASSERT_OK(stream.register_with(queue, 2));
  std::uint64_t at = 0;
  std::byte buffer[1000];
  while (at < 100'000) {  // through the queue: events of a second lane
    auto got = stream.try_recv(buffer);
    if (got.ok()) {
      ASSERT_TRUE(is_pattern({buffer, *got}, 4, at));
      at += *got;
      continue;
    }
    ASSERT_EQ(got.error().err, EAGAIN);
    ASSERT_OK(queue.wait(e, 10'000));
  }
  ASSERT_OK(stream.send(text("enough")));
  EXPECT_TRUE(child.wait(20'000).clean());
}

}  // namespace
}  // namespace clan
