#include "engine/pipe/application_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace clan {
namespace {

iovec io(char* at, std::size_t n) { return {at, n}; }

std::byte* bytes(char* at) { return reinterpret_cast<std::byte*>(at); }

TEST(ApplicationBuffers, AreGatheredAcrossTheirEndsAndPastEmptyOnes) {
  char first[] = "abc", second[] = "defgh";
  const iovec buffers[] = {io(first, 3), io(nullptr, 0), io(second, 5)};
  EXPECT_EQ(total(buffers, 3), 8u);
  char to[9] = {};
  Cursor cursor(buffers, 3);
  cursor.gather(bytes(to), 2);
  cursor.gather(bytes(to) + 2, 4);
  cursor.gather(bytes(to) + 6, 2);
  EXPECT_STREQ(to, "abcdefgh");
}

TEST(ApplicationBuffers, AreFilledInOrder) {
  char first[2], second[3];
  const iovec buffers[] = {io(first, 2), io(second, 3)};
  char from[] = "12345";
  Cursor cursor(buffers, 2);
  cursor.scatter(bytes(from), 3);
  cursor.scatter(bytes(from) + 3, 2);
  EXPECT_EQ(std::string(first, 2), "12");
  EXPECT_EQ(std::string(second, 3), "345");
}

TEST(ApplicationBuffers, DiscardWhatIsForANullOne) {
  char last[2];
  const iovec buffers[] = {io(nullptr, 3), io(last, 2)};
  char from[] = "12345";
  Cursor cursor(buffers, 2);
  cursor.scatter(bytes(from), 5);
  EXPECT_EQ(std::string(last, 2), "45");
}

TEST(ApplicationBuffers, AreCopiedUnderTheGuardWhenThereIsOne) {
  static int guarded_copies = 0;
  int copies = 0;
  auto copy = [&] { ++copies; };
  EXPECT_TRUE(guarded(copy));
  Pipe::guard_copies([](void (*run)(void*), void* argument) {
    ++guarded_copies;
    run(argument);
    return false;
  });
  EXPECT_FALSE(guarded(copy));
  Pipe::guard_copies(nullptr);
  EXPECT_EQ(copies, 2);
  EXPECT_EQ(guarded_copies, 1);
}

}  // namespace
}  // namespace clan
