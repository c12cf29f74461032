#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "state/remote.h"

extern "C" const clan::preload::RemoteConnections* clan_remote_connections();

namespace clan::preload {
namespace {

TEST(NetTable, HasEveryCallAndItsVersion) {
  const RemoteConnections* table = clan_remote_connections();
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->version, kRemoteVersion);
  // All that follows the version are pointers.
  void* calls[(sizeof *table - sizeof(void*)) / sizeof(void*)];
  const auto* bytes = reinterpret_cast<const char*>(table);
  std::memcpy(calls, bytes + offsetof(RemoteConnections, start), sizeof calls);
  for (void* call : calls) EXPECT_NE(call, nullptr);
}

TEST(NetTable, SaysWhyThereIsNoNetworkAndSaysItAgain) {
  Settings settings;  // no key
  const char* first = clan_remote_connections()->start(settings, interposer);
  ASSERT_NE(first, nullptr);
  EXPECT_STREQ(clan_remote_connections()->start(settings, interposer), first);
}

}  // namespace
}  // namespace clan::preload
