#include "carrier/name_answer.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace clan::preload {
namespace {

TEST(NameAnswer, SaysThatItIsThroughOrWhyNot) {
  EXPECT_EQ(error_in(answer_of(0)), 0);
  EXPECT_EQ(error_in(answer_of(ECONNREFUSED)), ECONNREFUSED);
  EXPECT_EQ(error_in(answer_of(EACCES)), EACCES);
}

TEST(NameAnswer, OfAnErrnoThatConnectDoesNotSayIsARefusal) {
  for (const int error : {EINPROGRESS, EINTR, EMFILE, 0x1234, 0xffff})
    EXPECT_EQ(error_in(answer_of(error)), ECONNREFUSED) << error;
}

TEST(NameAnswer, ThatDiffersInAnyBitIsNone) {
  for (std::size_t at = 0; at < 6; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      NameAnswer answer = answer_of(0);
      answer[at] ^= std::byte(1 << bit);
      EXPECT_EQ(error_in(answer), EPROTO) << at << ", " << bit;
    }
  }
  EXPECT_EQ(error_in(NameAnswer{}), EPROTO);
}

}  // namespace
}  // namespace clan::preload
