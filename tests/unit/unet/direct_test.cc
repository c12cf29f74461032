// Direct access: sends that name an offset in the peer's area.
#include <gtest/gtest.h>

#include "ends.h"

namespace clan::unet::testing {
namespace {

int send_direct(End& end, std::uint32_t tag, std::uint64_t offset, const std::string& text) {
  unet_send* const d = unet_send_next(end.e);
  *d = {};
  d->tag = tag;
  d->flags = UNET_DIRECT;
  d->offset = offset;
  if (text.size() <= UNET_INLINE) {
    d->bytes = static_cast<std::uint32_t>(text.size());
    std::memcpy(d->u.data, text.data(), text.size());
  } else {
    d->pieces = 1;
    d->u.piece[0] = {0, static_cast<std::uint32_t>(text.size()), 0};
    std::memcpy(end.e->area, text.data(), text.size());
  }
  unet_send_push(end.e);
  for (;;) {
    EXPECT_EQ(unet_doorbell(end.e), 0);
    if (const int status = end.taken_status(); status != UNET_PENDING) return status;
    (void)unet_poll(end.e);  // the peer's answer
  }
}

// The peer has to accept before its area is known.
void meet(Pair& p) {
  EXPECT_EQ(p.a.send(2, "hello"), 0);
  EXPECT_EQ(p.b.text_of(p.b.receive()), "hello");
}

TEST(UnetDirect, DataGoToAnOffsetOfThePeersArea) {
  Pair p(in_area(), in_area(UNET_DIRECT_AREA));
  meet(p);
  for (const std::string& text : {std::string("short"), std::string(100'000, 'l')}) {
    EXPECT_EQ(send_direct(p.a, 2, 12345, text), 0);
    const unet_receive d = p.b.receive();
    EXPECT_EQ(d.flags, UNET_DIRECT);
    EXPECT_EQ(d.tag, 1u);
    EXPECT_EQ(d.bytes, text.size());
    EXPECT_EQ(d.u.buffer[0], 12345u);
    EXPECT_EQ(std::string(reinterpret_cast<char*>(p.b.e->area) + 12345, text.size()), text);
  }
  EXPECT_EQ(p.b.counters().received, 3u);
}

TEST(UnetDirect, OffsetsBeyondTheAreaAreRefused) {
  Pair p(in_area(), in_area(UNET_DIRECT_AREA));
  meet(p);
  EXPECT_EQ(send_direct(p.a, 2, p.b.e->area_bytes - 4, "12345"), ERANGE);
  EXPECT_EQ(send_direct(p.a, 2, ~0ull, "1"), ERANGE);
  EXPECT_EQ(send_direct(p.a, 2, p.b.e->area_bytes - 5, "12345"), 0);
}

TEST(UnetDirect, APeerWithoutADirectAreaRefusesIt) {
  Pair p;
  meet(p);
  EXPECT_EQ(send_direct(p.a, 2, 0, "x"), EOPNOTSUPP);
}

TEST(UnetDirect, TheAcceptingEndWritesTheOthersArea) {
  Pair p(in_area(UNET_DIRECT_AREA), in_area());
  meet(p);
  EXPECT_EQ(send_direct(p.b, 1, 64, "back"), 0);
  EXPECT_EQ(p.a.receive().u.buffer[0], 64u);
  EXPECT_EQ(std::memcmp(p.a.e->area + 64, "back", 4), 0);
}

TEST(UnetDirect, AnAreaThatIsGoneIsAnError) {
  Pair p(in_area(), in_area(UNET_DIRECT_AREA));
  meet(p);
  EXPECT_EQ(send_direct(p.a, 2, 0, "x"), 0);
  p.b.destroy();
  EXPECT_EQ(p.a.receive().flags, UNET_CLOSED);
  EXPECT_EQ(send_direct(p.a, 2, 0, "x"), EPIPE);
}

}  // namespace
}  // namespace clan::unet::testing
