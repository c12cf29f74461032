#include <gtest/gtest.h>

#include <string>

#include "support/pipe_pair.h"

namespace clan {
namespace {

std::string taken(Pipe& p, std::size_t most = 100) {
  std::string text(most, '\0');
  const iovec io{text.data(), most};
  const Pipe::Done done = p.receive(&io, 1, false);
  EXPECT_EQ(done.err, 0);
  text.resize(done.bytes);
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
  auto there = p.a.at_other_end();
  ASSERT_TRUE(there);
  ASSERT_TRUE(there->take_aside());
  EXPECT_EQ(taken(*there, 4), "bcde");
  EXPECT_EQ(taken(*there), "fg");
  EXPECT_EQ(taken(*there), "");
}

TEST(PipeAside, IsReceivedByNoCallOfItsEndAlsoWhenSomeHasBeenTaken) {
  PipePair p;
  put(p.a, {'a', 'b'});
  put(p.a, {'c', 'd'});
  p.a.leave();
  EXPECT_EQ(p.b.front(), PipeFront::kBytes);
  EXPECT_EQ(p.b.set_aside(), 0);
  auto there = p.a.at_other_end();
  ASSERT_TRUE(there && there->take_aside());
  for (const char* next : {"a", "b", "cd"}) {
    EXPECT_EQ(p.b.front(), PipeFront::kLeave);
    EXPECT_EQ(p.b.readable_bytes(), 0u);
    EXPECT_EQ(taken(p.b), "");
    EXPECT_EQ(taken(*there, std::string(next).size()), next);
  }
}

TEST(PipeAside, IsNothingUntilItIsSetAside) {
  PipePair p;
  put(p.a, {'a'});
  auto there = p.a.at_other_end();
  ASSERT_TRUE(there);
  EXPECT_FALSE(there->take_aside());
  EXPECT_EQ(p.b.set_aside(), 0);
  EXPECT_TRUE(there->take_aside());
  EXPECT_EQ(taken(*there), "a");
}

}  // namespace
}  // namespace clan
