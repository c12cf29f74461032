#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "state/socket_migration.h"

namespace clan::preload {
namespace {

TEST(Bells, AreClosedTogether) {
  Bells bells;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  bells.bell.keep(ends[0]);
  bells.others_bell.keep(ends[1]);
  bells.reset();
  for (const int fd : ends) EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  EXPECT_LT(bells.bell.get(), 0);
  bells.reset();
}

}  // namespace
}  // namespace clan::preload
