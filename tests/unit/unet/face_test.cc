// The C++ face, clan/unet.h.
#include <clan/unet.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace clan::unet {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(UnetFace, SendsAndReceives) {
  auto first = Node::open(), second = Node::open();
  ASSERT_TRUE(first.ok() && second.ok());
  unet_endpoint_options options{};
  options.area_bytes = 1 << 16;
  auto a = Endpoint::create(*first, options), b = Endpoint::create(*second, options);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_TRUE(b->accept(1, 5).ok());
  ASSERT_TRUE(a->connect(2, b->address(), 1, 5).ok());
  ASSERT_TRUE(a->send(2, bytes_of("short"), 7));
  std::memcpy(a->area().data(), "from pieces", 11);
  const std::array<unet_piece, 2> pieces{{{0, 5, 0}, {5, 6, 0}}};
  ASSERT_TRUE(a->send(2, pieces));
  EXPECT_FALSE(a->send(2, bytes_of(std::string(49, 'x'))));
  ASSERT_TRUE(a->doorbell().ok());
  ASSERT_NE(a->done(), nullptr);
  EXPECT_EQ(a->done()->cookie, 7u);
  a->take_done();
  ASSERT_TRUE(b->wait(20'000).ok());
  for (const std::string& text : {std::string("short"), std::string("from pieces")}) {
    const unet_receive* d = nullptr;
    while ((d = b->next()) == nullptr) {
    }
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(d->u.data), d->bytes), text);
    b->take();
  }
  EXPECT_EQ(b->counters().received, 2u);
  const Status again = b->accept(1, 5);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().err, EEXIST);
}

}  // namespace
}  // namespace clan::unet
