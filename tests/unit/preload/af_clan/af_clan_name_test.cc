#include "af_clan/af_clan_name.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

namespace clan::preload {
namespace {

ClanName named(const char* text) {
  ClanName name;
  name.size = std::strlen(text);
  std::memcpy(name.text, text, name.size);
  return name;
}

TEST(AfClanName, HasAPlaceInTheLoopbackNetworkAboveTheServersPorts) {
  for (const char* text : {"jobs", "a", "another name"}) {
    std::set<std::uint64_t> places;
    for (unsigned attempt = 0; attempt < ClanName::kPlaces; ++attempt) {
      const sockaddr_in at = named(text).place(attempt);
      EXPECT_EQ(ntohl(at.sin_addr.s_addr) >> 24, 127u);
      EXPECT_GE(ntohs(at.sin_port), 32768);
      places.insert(std::uint64_t{at.sin_addr.s_addr} << 16 | at.sin_port);
    }
    EXPECT_EQ(places.size(), ClanName::kPlaces);
  }
}

TEST(AfClanName, OfMessagesIsTheSameThereAndBack) {
  sockaddr_un address;
  const socklen_t size = named("jobs").to_unix(SOCK_SEQPACKET, &address);
  ClanName back;
  back.from_unix(address, size);
  EXPECT_EQ(back.size, 4u);
  EXPECT_EQ(std::memcmp(back.text, "jobs", 4), 0);
  EXPECT_NE(named("jobs").to_unix(SOCK_DGRAM, &address), 0u);
  address.sun_path[1] = 'x';  // another program's
  back.from_unix(address, size);
  EXPECT_TRUE(back.empty());
}

TEST(AfClanName, IsReadOnlyFromAnAddressOfItsFamily) {
  sockaddr_un other{};
  other.sun_family = AF_UNIX;
  ClanName name;
  EXPECT_FALSE(name.read(reinterpret_cast<sockaddr*>(&other), sizeof other, EAFNOSUPPORT));
  EXPECT_EQ(errno, EAFNOSUPPORT);
}

TEST(AfClanName, MadeAtRandomDiffers) {
  const ClanName one = ClanName::random(), other = ClanName::random();
  EXPECT_FALSE(one.empty());
  EXPECT_NE(std::string_view(one.text, one.size), std::string_view(other.text, other.size));
}

}  // namespace
}  // namespace clan::preload
