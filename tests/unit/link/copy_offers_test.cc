#include "link/copy_offers.h"

#include <gtest/gtest.h>

namespace clan::link {
namespace {

/// Offers until there is none, all of them ended like this; at most 1000.
int offered(CopyOffers& offers, bool helped) {
  int count = 0;
  while (count < 1000 && offers.next()) {
    offers.ended(helped);
    ++count;
  }
  return count;
}

TEST(CopyOffers, GoOnWhileThePeerTakesItsPart) {
  CopyOffers offers;
  EXPECT_EQ(offered(offers, true), 1000);
}

TEST(CopyOffers, PauseAfterSomeThatThePeerLeftAloneAndThenTryOnce) {
  CopyOffers offers;
  EXPECT_EQ(offered(offers, false), 8);
  int alone = 1;  // the one that ended the loop
  while (!offers.next()) ++alone;
  EXPECT_EQ(alone, 32);
  offers.ended(false);
  EXPECT_FALSE(offers.next()) << "one more left alone is enough";
}

TEST(CopyOffers, AreAsManyAsBeforeOnceThePeerHasHelped) {
  CopyOffers offers;
  (void)offered(offers, false);
  while (!offers.next()) {
  }
  offers.ended(true);
  EXPECT_EQ(offered(offers, false), 8);
}

}  // namespace
}  // namespace clan::link
