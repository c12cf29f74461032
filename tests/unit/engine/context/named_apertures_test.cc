#include "engine/context/named_apertures.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace clan::engine {
namespace {

class NamedAperturesTest : public testing::Test {
 protected:
  void SetUp() override {
    nic_ = *nic::Nic::create(NodeId{1}, ::geteuid());
    other_ = *nic::Nic::create(NodeId{1}, ::geteuid() + 1);
    aperture_.cookie.length = 4096;
  }
  std::unique_ptr<nic::Nic> nic_, other_;
  NamedAperture aperture_;
  NamedApertures names_;
};

TEST_F(NamedAperturesTest, AreFoundUntilTheyAreRemoved) {
  ASSERT_TRUE(names_.add(7, nic_.get(), aperture_));
  NamedAperture found;
  ASSERT_TRUE(names_.find(7, nic_.get(), &found));
  EXPECT_EQ(found.cookie.length, 4096u);
  names_.remove(7);
  EXPECT_FALSE(names_.find(7, nic_.get(), &found));
}

TEST_F(NamedAperturesTest, TakeANameOnce) {
  ASSERT_TRUE(names_.add(7, nic_.get(), aperture_));
  EXPECT_FALSE(names_.add(7, other_.get(), aperture_));
}

TEST_F(NamedAperturesTest, AreNotShownToPeersOfAnotherUser) {
  ASSERT_TRUE(names_.add(7, nic_.get(), aperture_));
  NamedAperture found;
  EXPECT_FALSE(names_.find(7, other_.get(), &found));
}

}  // namespace
}  // namespace clan::engine
