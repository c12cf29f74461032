#include "transport/far_message.h"

#include <gtest/gtest.h>

#include <cstring>

#include "transport/peer.h"

namespace clan::ofi {
namespace {

constexpr std::uint64_t kReceiver = 77;

RdmaCookie place(std::uint64_t length) {
  RdmaCookie cookie;
  cookie.node = {kReceiver};
  cookie.length = length;
  cookie.rights = Rights::kWrite;
  return cookie;
}

class ReadPlaces : public testing::Test {
 protected:
  ReadPlaces() { receiver_.node = kReceiver; }
  bool read(std::uint64_t length, const std::vector<RdmaCookie>& cookies, std::size_t cut_off = 0) {
    const PlaceReply reply{.receive = 1, .count = static_cast<std::uint32_t>(cookies.size())};
    const auto bytes = std::as_bytes(std::span(cookies));
    return read_places(receiver_, length, reply, bytes.first(bytes.size() - cut_off), &places_);
  }
  Peer receiver_;
  Places places_;
};

TEST_F(ReadPlaces, TakesAsManyBytesAsTheMessageHasAndNoMore) {
  EXPECT_TRUE(read(100, {place(60), place(40)}));
  EXPECT_EQ(places_.count, 2u);
  EXPECT_EQ(places_.cookies[1].length, 40u);
  EXPECT_TRUE(read(100, {place(99)})) << "the receive is shorter";
  EXPECT_FALSE(read(100, {place(101)}));
  EXPECT_FALSE(read(100, {place(60), place(41)}));
  EXPECT_FALSE(read(100, {place(~std::uint64_t{0}), place(102)})) << "their sum is 101";
  EXPECT_FALSE(read(100, {place(0)}));
}

TEST_F(ReadPlaces, RefusesMemoryThatIsNotTheReceivers) {
  RdmaCookie others = place(8);
  others.node = {kReceiver + 1};
  EXPECT_FALSE(read(100, {place(8), others}));
  RdmaCookie read_only = place(8);
  read_only.rights = Rights::kRead;
  EXPECT_FALSE(read(100, {read_only}));
}

TEST_F(ReadPlaces, RefusesMorePiecesThanAReceiveHasAndWhatIsCutOff) {
  EXPECT_TRUE(read(100, std::vector(kIovLimit, place(1))));
  EXPECT_FALSE(read(100, std::vector(kIovLimit + 1, place(1))));
  EXPECT_FALSE(read(100, {place(8)}, 1));
}

}  // namespace
}  // namespace clan::ofi
