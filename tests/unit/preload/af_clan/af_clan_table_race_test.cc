// A read of a descriptor's entry takes no lock: ThreadSanitizer sees whether it finds what was
// entered.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "af_clan/af_clan_table.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

TEST(AfClanTable, OneThatFindsADescriptorSeesWhatWasEnteredForIt) {
  constexpr int kFd = 900'001;  // nobody opens so many
  test::hand_over([&] { EXPECT_TRUE(af_clan_appear(kFd, SOCK_SEQPACKET, {})); },
                  [&] { EXPECT_EQ(af_clan_type(kFd), SOCK_SEQPACKET); });
  forget_af_clan(kFd);
}

}  // namespace
}  // namespace clan::preload
