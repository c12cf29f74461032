// The rules by which the provider's objects are made: references, and functions that find no
// memory.
#include "system/provider.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace clan::ofi {
namespace {

TEST(References, AreThereAsLongAsOneHoldsThem) {
  References references;
  EXPECT_FALSE(references.any());
  {
    const Held a(references);
    { const Held b(references); }
    EXPECT_TRUE(references.any());
  }
  EXPECT_FALSE(references.any());
}

TEST(References, GoWithTheHolderThatTheyWereMovedTo) {
  References references;
  Held kept;
  {
    Held a(references);
    kept = std::move(a);
  }
  EXPECT_TRUE(references.any());
  { const Held b(std::move(kept)); }
  EXPECT_FALSE(references.any());
}

TEST(References, OfTwoObjectsChangePlaces) {
  References first, second;
  Held a(first), b(second);
  a = std::move(b);
  EXPECT_TRUE(first.any());
  EXPECT_TRUE(second.any());
  a = Held();
  b = Held();
  EXPECT_FALSE(first.any() || second.any());
}

// What a holder has written is seen by a thread that finds none left, and deletes the object.
TEST(References, ThatAreDroppedPublishWhatTheirHolderHasDone) {
  for (int round = 0; round < 200; ++round) {
    References references;
    int written = 0;
    Held held(references);
    std::thread holder([&written, mine = std::move(held)]() mutable {
      written = 7;
      mine = Held();
    });
    while (references.any()) std::this_thread::yield();
    ASSERT_EQ(written, 7);
    holder.join();
  }
}

int fails(int) { throw std::bad_alloc(); }
int works(int number) { return number + 1; }

TEST(Guarded, AnswersThatThereIsNoMemory) {
  EXPECT_EQ(guarded<fails>(1), -FI_ENOMEM);
  EXPECT_EQ(guarded<works>(1), 2);
}

TEST(NotSupported, SaysSo) {
  EXPECT_EQ((not_supported<int, int>(1)), -FI_ENOSYS);
  EXPECT_EQ((not_supported<ssize_t>()), -FI_ENOSYS);
}

struct Thing : fid_domain {
  using Face = fid_domain;
  int number = 5;
};

TEST(ObjectOf, GoesBackFromWhatLibfabricKnows) {
  Thing thing;
  EXPECT_EQ(object_of<Thing>(&thing.fid).number, 5);
}

TEST(Lock, IsFreeOfChargeUntilItIsRequired) {
  Lock lock(false);
  lock.lock();
  lock.lock();  // a thread by itself: nothing to wait for
  lock.unlock();
  lock.require();
  lock.lock();
  lock.unlock();
}

TEST(Provider, ShowsItselfByItsNameAndTheVersionOfItsHeaders) {
  EXPECT_STREQ(g_provider.name, "clan");
  EXPECT_EQ(g_provider.fi_version, FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));
  EXPECT_NE(g_provider.getinfo, nullptr);
  EXPECT_NE(g_provider.fabric, nullptr);
}

}  // namespace
}  // namespace clan::ofi
