#include "os/real.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Real, FindsEachFunctionOfTheCLibrary) {
  const Real& below = real();
#define CLAN_CALL(result, name, parameters, test) EXPECT_NE(below.name, nullptr) << #name;
#include "calls.def"
}

TEST(Real, CallsIt) {
  int ends[2];
  ASSERT_EQ(real().pipe(ends), 0);
  EXPECT_EQ(real().write(ends[1], "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(real().read(ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  for (const int fd : ends) real().close(fd);
}

}  // namespace
}  // namespace clan::preload
