#include "icmp.h"

#include <gtest/gtest.h>

#include "frames.h"

namespace clan::ip {
namespace {

/// The ones' complement sum of all, which is 0xffff where a checksum among it is right.
unsigned sum_of(std::span<const std::byte> bytes, unsigned sum = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += static_cast<unsigned>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

TEST(IpIcmp, ComesFromTheAddressThatWasNotReachedAndHasRightChecksums) {
  for (const bool v6 : {false, true}) {
    const Frame f = frame(v6, IPPROTO_UDP, 2001);
    const auto answer = unreachable(*f.parsed(), f.ip);
    const auto packet = parse(answer, answer.size());
    ASSERT_TRUE(packet);
    EXPECT_EQ(packet->source, f.parsed()->destination);
    EXPECT_EQ(packet->destination, f.parsed()->source);
    const std::span icmp = std::span(answer).subspan(v6 ? 40 : 20);
    EXPECT_EQ(icmp[0], std::byte(v6 ? 1 : 3));
    EXPECT_EQ(icmp[1], std::byte(v6 ? 3 : 1));
    if (v6) {
      const unsigned pseudo = static_cast<unsigned>(icmp.size()) + IPPROTO_ICMPV6;
      EXPECT_EQ(sum_of(icmp, sum_of({answer.data() + 8, 32}, pseudo)), 0xffffu);
    } else {
      EXPECT_EQ(sum_of(icmp), 0xffffu);
      EXPECT_EQ(sum_of({answer.data(), 20}), 0xffffu);
    }
    EXPECT_EQ(answer.size(), v6 ? 1280u : 576u);
    EXPECT_EQ(std::memcmp(icmp.data() + 8, f.ip.data(), 64), 0) << "quotes the packet";
  }
}

TEST(IpIcmp, SaysWhichMtuWouldDo) {
  const Frame f = frame(false, IPPROTO_UDP, 2000), f6 = frame(true, IPPROTO_UDP, 2000);
  const auto a = too_big(*f.parsed(), f.ip, 1400), a6 = too_big(*f6.parsed(), f6.ip, 1400);
  EXPECT_EQ(a[20], std::byte{3});
  EXPECT_EQ(a[21], std::byte{4});
  EXPECT_EQ(a6[40], std::byte{2});
  for (const std::byte* mtu : {&a[26], &a6[46]}) {
    EXPECT_EQ(mtu[0], std::byte{1400 >> 8});
    EXPECT_EQ(mtu[1], std::byte{1400 & 0xff});
  }
}

TEST(IpIcmp, DoesNotAnswerErrorsLaterFragmentsAndSendersWithoutAnAddress) {
  Frame error = frame(false, IPPROTO_ICMP, 60), error6 = frame(true, IPPROTO_ICMPV6, 80);
  error.ip[20] = std::byte{3};
  error6.ip[40] = std::byte{1};
  EXPECT_TRUE(unreachable(*error.parsed(), error.ip).empty());
  EXPECT_TRUE(unreachable(*error6.parsed(), error6.ip).empty());
  error.ip[20] = std::byte{8};  // an echo request
  error6.ip[40] = std::byte{128};
  EXPECT_FALSE(unreachable(*error.parsed(), error.ip).empty());
  EXPECT_FALSE(unreachable(*error6.parsed(), error6.ip).empty());
  Frame fragment = frame(false, IPPROTO_UDP, 60);
  fragment.set16(6, 8);
  EXPECT_TRUE(unreachable(*fragment.parsed(), fragment.ip).empty());
  Frame nobody = frame(false, IPPROTO_UDP, 60);
  std::memset(nobody.ip.data() + 12, 0, 4);
  EXPECT_TRUE(unreachable(*nobody.parsed(), nobody.ip).empty());
}

}  // namespace
}  // namespace clan::ip
