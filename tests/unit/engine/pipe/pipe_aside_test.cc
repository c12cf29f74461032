#include <gtest/gtest.h>

#include <string>

#include "support/pipe_pair.h"

namespace clan {
namespace {

std::string aside(const Pipe& p, PipeAside& place, std::uint64_t from, std::size_t most) {
  std::string text(most, '\0');
  const long n = p.copy_aside(&place, from, text.data(), most);
  EXPECT_GE(n, 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

TEST(PipeAside, IsWhatHasNotBeenReceived) {
  PipePair p;
  put(p.a, {'a', 'b', 'c', 'd'});
  put(p.a, {'e', 'f', 'g'});
  EXPECT_EQ(get(p.b, 1).size(), 1u);
  p.a.leave();
  EXPECT_EQ(p.b.set_aside(), 0);
  EXPECT_EQ(p.b.set_aside(), EALREADY);
  PipeAside place, other;
  EXPECT_EQ(aside(p.b, place, 0, 100), "bcdefg");
  EXPECT_EQ(aside(p.b, place, 4, 1), "f");
  EXPECT_EQ(aside(p.b, place, 1, 3), "cde") << "back again";
  EXPECT_EQ(aside(p.b, other, 3, 100), "efg");
  EXPECT_EQ(aside(p.b, other, 6, 100), "");
  EXPECT_EQ(aside(p.b, other, 7, 100), "");
}

TEST(PipeAside, IsReceivedByNobody) {
  PipePair p;
  put(p.a, {'a', 'b'});
  p.a.leave();
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(p.b.set_aside(), 0);
  EXPECT_EQ(p.b.front(), PipeFront::kLeave);
  EXPECT_EQ(p.b.readable_bytes(), 0u);
  char bytes[4];
  const iovec io{bytes, sizeof bytes};
  const Pipe::Done done = p.b.receive(&io, 1, false);
  EXPECT_EQ(done.err, 0);
  EXPECT_EQ(done.bytes, 0u);
}

TEST(PipeAside, IsNothingUntilItIsSetAside) {
  PipePair p;
  put(p.a, {'a'});
  PipeAside place;
  char byte;
  EXPECT_EQ(p.b.copy_aside(&place, 0, &byte, 1), -1);
  EXPECT_EQ(p.b.set_aside(), 0);
  EXPECT_EQ(p.b.copy_aside(&place, std::uint64_t{1} << 40, &byte, 1), -1) << "more than a ring";
  EXPECT_EQ(p.b.copy_aside(&place, 0, &byte, 1), 1);
}

}  // namespace
}  // namespace clan
