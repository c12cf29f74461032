// SharedTable: a table of addresses that the processes of a user share, by its name.
#include "system/shared_table.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <memory>
#include <string>

#include "support/hand_over.h"

namespace clan::ofi {
namespace {

std::string fresh_name() {
  static int number = 0;
  return "table-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

SocketAddress address_at(std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(port);
  return read_address(&a, sizeof a);
}

std::unique_ptr<SharedTable> open_table(const std::string& name, bool read_only = false) {
  std::unique_ptr<SharedTable> table;
  EXPECT_EQ(SharedTable::open(name, read_only, 10, &table), 0);
  return table;
}

/// number -> port, 0 where it is not used any more.
std::map<fi_addr_t, int> changes(const SharedTable& table, std::uint32_t* seen) {
  std::map<fi_addr_t, int> found;
  *seen = table.changes(*seen, [&](fi_addr_t number, const SocketAddress* a) {
    found[number] = a != nullptr ? a->port() : 0;
  });
  return found;
}

TEST(SharedTable, IsNotThereForReadersBeforeSomebodyHasMadeIt) {
  std::unique_ptr<SharedTable> table;
  EXPECT_EQ(SharedTable::open(fresh_name(), true, 10, &table), -FI_ENOENT);
}

TEST(SharedTable, TakesNoEmptyNameNorOneThatIsTooLong) {
  std::unique_ptr<SharedTable> table;
  EXPECT_EQ(SharedTable::open("", false, 10, &table), -FI_EINVAL);
  EXPECT_EQ(SharedTable::open(std::string(300, 'x'), false, 10, &table), -ENAMETOOLONG);
}

TEST(SharedTable, ShowsWhatOthersHaveInsertedAndRemoved) {
  const std::string name = fresh_name();
  auto a = open_table(name), b = open_table(name, true);
  std::uint32_t seen = 0;
  fi_addr_t number[3];
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(a->insert(address_at(static_cast<std::uint16_t>(100 + i)), &number[i]), 0);
    EXPECT_EQ(number[i], static_cast<fi_addr_t>(i));
  }
  EXPECT_EQ(changes(*b, &seen), (std::map<fi_addr_t, int>{{0, 100}, {1, 101}, {2, 102}}));
  EXPECT_TRUE(changes(*b, &seen).empty());
  ASSERT_EQ(a->remove(1), 0);
  EXPECT_EQ(changes(*b, &seen), (std::map<fi_addr_t, int>{{1, 0}}));
  EXPECT_EQ(seen, b->generation().load());
}

TEST(SharedTable, GivesTheNumberOfALineThatIsFreeAgain) {
  auto table = open_table(fresh_name());
  fi_addr_t number;
  for (int i = 0; i < 4; ++i) ASSERT_EQ(table->insert(address_at(1), &number), 0);
  ASSERT_EQ(table->remove(2), 0);
  EXPECT_EQ(table->remove(2), -FI_EINVAL);
  EXPECT_EQ(table->remove(4), -FI_EINVAL);
  ASSERT_EQ(table->insert(address_at(9), &number), 0);
  EXPECT_EQ(number, 2u);
  ASSERT_EQ(table->insert(address_at(9), &number), 0);
  EXPECT_EQ(number, 4u);
}

TEST(SharedTable, OfAnotherNameIsAnother) {
  auto a = open_table(fresh_name()), b = open_table(fresh_name());
  fi_addr_t number;
  ASSERT_EQ(a->insert(address_at(1), &number), 0);
  std::uint32_t seen = 0;
  EXPECT_TRUE(changes(*b, &seen).empty());
}

TEST(SharedTable, ShowsItsNumbersInTheirOrder) {
  auto table = open_table(fresh_name());
  fi_addr_t number;
  for (int i = 0; i < 5; ++i) ASSERT_EQ(table->insert(address_at(1), &number), 0);
  const auto* numbers = static_cast<const fi_addr_t*>(table->numbers());
  for (fi_addr_t i = 0; i < 5; ++i) EXPECT_EQ(numbers[i], i);
}

TEST(SharedTable, ShowsAThreadWhatAnotherOneHasRemoved) {
  auto table = open_table(fresh_name());
  fi_addr_t number;
  ASSERT_EQ(table->insert(address_at(7), &number), 0);
  std::uint32_t seen = 0;
  EXPECT_EQ(changes(*table, &seen), (std::map<fi_addr_t, int>{{0, 7}}));
  test::hand_over([&] { EXPECT_EQ(table->remove(0), 0); },
                  [&] { EXPECT_EQ(changes(*table, &seen), (std::map<fi_addr_t, int>{{0, 0}})); });
}

TEST(SharedTable, ShowsAThreadWhatAnotherOneHasInserted) {
  auto table = open_table(fresh_name());
  std::uint32_t seen = 0;
  fi_addr_t number = 9;
  test::hand_over([&] { EXPECT_EQ(table->insert(address_at(7), &number), 0); },
                  [&] { EXPECT_EQ(changes(*table, &seen), (std::map<fi_addr_t, int>{{0, 7}})); });
}

// Its lock is the kernel's to give back, and each step of an insertion leaves a whole table.
TEST(SharedTable, IsWholeWhenAProcessThatChangesItIsKilled) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a child of a process with threads makes none under ThreadSanitizer";
#endif
  const std::string name = fresh_name();
  auto mine = open_table(name);
  for (int round = 0; round < 10; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      std::unique_ptr<SharedTable> theirs;
      if (SharedTable::open(name, false, 10, &theirs) != 0) ::_exit(1);
      (void)!::write(ready[1], "x", 1);
      fi_addr_t number;
      for (;;) {
        if (theirs->insert(address_at(77), &number) == 0) (void)theirs->remove(number);
      }
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::usleep(2000);
    ::kill(child, SIGKILL);
    int status;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(ready[0]);
    ::close(ready[1]);
    fi_addr_t number;
    ASSERT_EQ(mine->insert(address_at(static_cast<std::uint16_t>(1000 + round)), &number), 0);
    std::uint32_t seen = mine->generation().load() - 1;
    EXPECT_EQ(changes(*mine, &seen)[number], 1000 + round);
  }
}

}  // namespace
}  // namespace clan::ofi
