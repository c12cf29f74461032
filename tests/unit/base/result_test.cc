// Result: both forms give their value through const too, and say why there is none before they
// abort.
#include <clan/result.h>
#include <gtest/gtest.h>

#include <string>

namespace clan {
namespace {

struct Large {
  std::string text;
  int number = 0;
};

TEST(Result, OfAConstantCanBeDereferenced) {
  const Result<int> small = 7;
  const Result<Large> large = Large{"seven", 7};
  EXPECT_EQ(*small, 7);
  EXPECT_EQ(*small.operator->(), 7);
  EXPECT_EQ(large->text, "seven");
  EXPECT_EQ((*large).number, 7);
}

TEST(ResultDeathTest, UsedThoughItFailedSaysWhatHadFailed) {
  Result<int> small = Error{ECONNREFUSED, "connect"};
  Result<Large> large = Error{ECONNREFUSED, "connect"};
  const auto wanted = "clan: value of a failed Result used: connect: Connection refused";
  EXPECT_DEATH((void)*small, wanted);
  EXPECT_DEATH((void)small.value(), wanted);
  EXPECT_DEATH((void)large->number, wanted);
  EXPECT_DEATH((void)std::as_const(large)->number, wanted);
}

}  // namespace
}  // namespace clan
