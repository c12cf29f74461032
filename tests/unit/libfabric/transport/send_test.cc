// Steps of sending, with a ring that is an array.
#include "transport/send.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

namespace clan::ofi {
namespace {

struct Wire {
  std::vector<std::byte> memory = std::vector<std::byte>(128);
  std::size_t sent = 0;

  Result<std::span<std::byte>> reserve(PeerIndex, std::size_t bytes) {
    if (bytes > memory.size() - sent) return Error{EAGAIN, "no room"};
    return std::span(memory).subspan(sent, bytes);
  }
  void commit(PeerIndex, std::size_t bytes) { sent += bytes; }
  Status try_send(PeerIndex to, std::span<const std::byte> header,
                  std::span<const std::byte> bytes) {
    auto room = reserve(to, header.size() + bytes.size());
    if (!room) return room.error();
    std::memcpy(room->data(), header.data(), header.size());
    std::memcpy(room->data() + header.size(), bytes.data(), bytes.size());
    commit(to, room->size());
    return {};
  }
  std::string body(std::size_t bytes) const {
    return std::string(reinterpret_cast<const char*>(memory.data()) + sizeof(WireHeader), bytes);
  }
};

struct SendTest : testing::Test {
  Wire wire;
  char a[3] = {'a', 'b', 'c'}, b[2] = {'d', 'e'};
  iovec pieces[2] = {{a, sizeof a}, {b, sizeof b}};
  SendRequest request;
  SendTest() {
    request.header = {.op = Op::kTagged, .tag = 99};
    request.iov = pieces;
    request.count = 2;
    request.length = 5;
  }
};

TEST_F(SendTest, GathersPiecesBehindTheHeader) {
  ASSERT_TRUE(send_request(wire, 1, request).ok());
  EXPECT_EQ(wire.sent, sizeof(WireHeader) + 5);
  WireHeader header;
  std::memcpy(&header, wire.memory.data(), sizeof header);
  EXPECT_EQ(header.tag, 99u);
  EXPECT_EQ(wire.body(5), "abcde");
}

TEST_F(SendTest, SendsOnePieceAndNoneTheSameWay) {
  request.count = 1;
  request.length = 3;
  ASSERT_TRUE(send_request(wire, 1, request).ok());
  EXPECT_EQ(wire.body(3), "abc");
  wire.sent = 0;
  request.count = 0;
  request.length = 0;
  ASSERT_TRUE(send_request(wire, 1, request).ok());
  EXPECT_EQ(wire.sent, sizeof(WireHeader));
}

TEST_F(SendTest, SendsNothingWhereThereIsNoRoom) {
  wire.sent = wire.memory.size() - sizeof(WireHeader);
  const std::size_t before = wire.sent;
  EXPECT_EQ(send_request(wire, 1, request).error().err, EAGAIN);
  request.count = 1;
  EXPECT_EQ(send_request(wire, 1, request).error().err, EAGAIN);
  EXPECT_EQ(wire.sent, before);
}

TEST_F(SendTest, CopiesOnlyBytesThatDoNotLast) {
  OperationTable operations([](const Operation&, int) {});
  Peer peer;
  Operation& operation = operations.make(nullptr, peer, request);
  const auto in_pieces = lasting_bytes(operations, operation, request);
  EXPECT_EQ(in_pieces.data(), operation.gathered.data());
  EXPECT_EQ(in_pieces.size(), 5u);
  request.count = 1;
  request.length = 3;
  const auto in_place = lasting_bytes(operations, operation, request);
  EXPECT_EQ(static_cast<const void*>(in_place.data()), a);
  request.inject = true;
  const auto injected = lasting_bytes(operations, operation, request);
  EXPECT_EQ(injected.data(), operation.gathered.data());
}

}  // namespace
}  // namespace clan::ofi
