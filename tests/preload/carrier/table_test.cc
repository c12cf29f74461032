// The carrier's table, as the interposer finds it.
#include <gtest/gtest.h>

#include "far/carrier_table.h"

extern "C" const clan::preload::CarrierTable* clan_carrier_table();

namespace clan::preload {
namespace {

TEST(CarrierTable, HasEveryCallAndItsVersion) {
  const CarrierTable* table = clan_carrier_table();
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->version, kCarrierVersion);
  EXPECT_NE(table->start, nullptr);
  EXPECT_NE(table->dial, nullptr);
  EXPECT_NE(table->await, nullptr);
  EXPECT_NE(table->look, nullptr);
  EXPECT_NE(table->begin_sleep, nullptr);
  EXPECT_NE(table->end_sleep, nullptr);
  EXPECT_NE(table->after_fork, nullptr);
}

TEST(CarrierTable, SaysWhyThereIsNoNetworkAndSaysItAgain) {
  Settings settings;  // no key
  const CarrierCalls calls{};
  const char* first = clan_carrier_table()->start(settings, "", calls);
  ASSERT_NE(first, nullptr);
  EXPECT_STREQ(clan_carrier_table()->start(settings, "", calls), first);
}

}  // namespace
}  // namespace clan::preload
