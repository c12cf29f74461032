#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/pipe_pair.h"

namespace clan {
namespace {

TEST(Pipe, BreaksOnHopsThatLeadNowhere) {
  constexpr std::uint64_t kTag = std::uint64_t{0xc1} << 56, kSkip = std::uint64_t{0xff} << 32,
                          kJump = std::uint64_t{0xfe} << 32;
  const std::uint64_t bad[][2] = {{kTag | kSkip, 0},                  // to itself
                                  {kTag | kJump, 0},                  // to itself
                                  {kTag | kJump | 5000, 0},           // out of the ring
                                  {kTag | kJump | 1, kTag | kSkip}};  // to and fro
  for (const auto& heads : bad) {
    PipePair p(4096);
    auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
    for (int line = 0; line < 2; ++line) std::memcpy(ring + line * 64, &heads[line], 8);
    EXPECT_EQ(error_of_receiving(p.b), EPROTO);
    EXPECT_EQ(p.b.front(), PipeFront::kBroken);
  }
}

TEST(Pipe, EndsBehindItsBytes) {
  PipePair p;
  put(p.a, {'x'});
  EXPECT_EQ(p.a.end_sending().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(get(p.b, 5).size(), 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  EXPECT_EQ(get(p.b, 5).size(), 0u);
  EXPECT_EQ(p.b.front(), PipeFront::kEnd);
  put(p.b, {'y'});  // the other way is still open
  EXPECT_EQ(get(p.a, 5).size(), 1u);
}

TEST(Pipe, HasRoomForItsEndHoweverFullItIs) {
  for (const std::uint32_t ring : {4096u, 65536u}) {
    for (std::size_t size : {1, 56, 57, 500, 5000}) {
      for (const bool leaves : {false, true}) {
        PipePair p(ring);
        std::size_t sent = 0;
        for (std::size_t n; (n = put(p.a, bytes_from(size, sent)).bytes) > 0;) sent += n;
        EXPECT_EQ((leaves ? p.a.leave() : p.a.end_sending()).bytes, 1u) << size;
        EXPECT_EQ(get(p.b, sent + 1).size(), sent);
        EXPECT_EQ(p.b.front(), leaves ? PipeFront::kLeave : PipeFront::kEnd);
      }
    }
  }
}

TEST(Pipe, TakesNothingAfterItsEnd) {
  PipePair p;
  p.a.end_sending();
  EXPECT_EQ(put(p.a, {'x'}).err, EPIPE);
  EXPECT_EQ(p.a.end_sending().err, EPIPE);
  EXPECT_EQ(p.a.leave().err, EPIPE);
}

TEST(Pipe, LeavesBehindItsBytes) {
  PipePair p;
  put(p.a, {'x'});
  EXPECT_EQ(p.a.leave().bytes, 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(get(p.b, 5).size(), 1u);
  EXPECT_EQ(p.b.front(), PipeFront::kLeave);
  EXPECT_EQ(get(p.b, 5).size(), 0u);
}

TEST(Pipe, StopsBeforeABufferThatItsGuardCouldNotCopyAndGoesOn) {
  PipePair p;
  static int copies;
  copies = 0;
  Pipe::guard_copies([](void (*copy)(void*), void* argument) {
    if (++copies == 3) return false;
    copy(argument);
    return true;
  });
  const std::vector<char> much = bytes_from(3 * 16384, 0);  // three records or more
  const Pipe::Done sent = put(p.a, much);
  EXPECT_EQ(sent.err, EFAULT);
  EXPECT_GT(sent.bytes, 0u);
  EXPECT_LT(sent.bytes, much.size());
  EXPECT_EQ(put(p.a, much, sent.bytes).bytes, much.size() - sent.bytes);
  copies = 2;
  std::vector<char> got(much.size());
  const iovec io{got.data(), got.size()};
  const Pipe::Done none = p.b.receive(&io, 1, false);
  EXPECT_EQ(none.err, EFAULT);
  EXPECT_EQ(none.bytes, 0u);
  EXPECT_EQ(get(p.b, much.size()), much);
  Pipe::guard_copies(nullptr);
}

TEST(Pipe, BreaksOnEmptyRecordsWithoutEnd) {
  PipePair p(4096);
  auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
  for (std::size_t line = 0; line < 4096 / 64; ++line) {
    // 0 bytes, type 1
    const std::uint64_t head = std::uint64_t{0xc1} << 56 | std::uint64_t{1} << 32;
    std::memcpy(ring + line * 64, &head, sizeof head);
  }
  std::vector<char> v(100);
  const iovec io{v.data(), v.size()};
  EXPECT_EQ(p.b.receive(&io, 1, false).err, EPROTO);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
}

// Records of a byte each, and no end of them: their writer has gone.
TEST(Pipe, BreaksWhenAWriterThatHasGoneHasLeftMoreThanARing) {
  PipePair p(4096);
  auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
  for (std::size_t line = 0; line < 4096 / 64; ++line) {
    const std::uint64_t head =
        std::uint64_t{0xc1} << 56 | std::uint64_t{1} << 32 | (sizeof(PipeStamp) + 1);
    std::memcpy(ring + line * 64, &head, sizeof head);
  }
  EXPECT_EQ(get(p.b, 1000).size(), 1000u) << "it may be writing still";
  p.b.writer_has_gone();
  std::size_t got = 0;
  for (std::size_t n; got < 1000 && (n = get(p.b, 10).size()) > 0;) got += n;
  EXPECT_GE(got, 4096u / 64) << "a ring that was full";
  EXPECT_LT(got, 1000u);
  EXPECT_EQ(p.b.front(), PipeFront::kBroken);
}

// Four records fill the ring, and behind the last is the first again.
TEST(Pipe, CountsNoMoreThanARingHoweverManyRecordsFollowEachOther) {
  PipePair p(4096);
  auto* ring = reinterpret_cast<std::byte*>(&p.a.page()) + 4096;
  constexpr std::uint64_t kLines = 16, kLength = kLines * 64 - 8;
  for (std::uint64_t line = 0; line < 4096 / 64; line += kLines) {
    const std::uint64_t head = std::uint64_t{0xc1} << 56 | std::uint64_t{1} << 32 | kLength;
    std::memcpy(ring + line * 64, &head, sizeof head);
  }
  EXPECT_EQ(p.b.readable_bytes(), 4 * (kLength - sizeof(PipeStamp)));
}

}  // namespace
}  // namespace clan
