#include "engine/context/context_tables.h"

#include <gtest/gtest.h>

#include <string>

namespace clan::engine {
namespace {

// Reads the table when it is destroyed, which it can only if the lock is free.
struct Destroyed;
using Table = NameTable<std::string, std::shared_ptr<Destroyed>>;
struct Destroyed {
  Destroyed(Table& in, int& how_many) : table(in), destroyed(how_many) {}
  ~Destroyed() {
    (void)table.find("echo");
    ++destroyed;
  }
  Table& table;
  int& destroyed;
};

class NameTableTest : public testing::Test {
 protected:
  void TearDown() override { table.clear(); }
  std::shared_ptr<Destroyed> make() { return std::make_shared<Destroyed>(table, destroyed); }
  Table table;
  int destroyed = 0;
};

TEST_F(NameTableTest, FindsWhatHasAName) {
  EXPECT_FALSE(table.find("echo"));
  const auto echo = make();
  EXPECT_TRUE(table.add("echo", echo));
  EXPECT_TRUE(table.add("time", make()));
  EXPECT_EQ(table.find("echo"), echo);
}

TEST_F(NameTableTest, GivesANameOnce) {
  const auto echo = make();
  EXPECT_TRUE(table.add("echo", echo));
  EXPECT_FALSE(table.add("echo", make()));
  EXPECT_EQ(table.find("echo"), echo);
}

TEST_F(NameTableTest, GivesAValueToOneWhoTakesItOut) {
  EXPECT_TRUE(table.add("echo", make()));
  const auto taken = table.take("echo");
  EXPECT_TRUE(taken);
  EXPECT_EQ(destroyed, 0);
  EXPECT_FALSE(table.take("echo"));
  EXPECT_FALSE(table.find("echo"));
}

TEST_F(NameTableTest, DestroysNoValueWithTheLockHeld) {
  EXPECT_TRUE(table.add("echo", make()));
  table.clear();
  EXPECT_EQ(destroyed, 1);
  EXPECT_FALSE(table.find("echo"));
}

}  // namespace
}  // namespace clan::engine
