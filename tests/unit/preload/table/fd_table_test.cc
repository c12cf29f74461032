#include "table/fd_table.h"

#include <thread>

#include "preload/tcp_pair.h"
#include "state/hooks.h"

namespace clan::preload {
namespace {

TEST(FdTable, FindsTheSocketBehindADescriptor) {
  TcpPair pair;
  EXPECT_TRUE(known(pair.fd(0)));
  EXPECT_TRUE(pair.held(0));
  EXPECT_TRUE(pair.socket(0).client);
  EXPECT_FALSE(pair.socket(1).client);
  EXPECT_FALSE(is_the_kernels(pair.fd(0)));
  EXPECT_TRUE(is_the_kernels(STDIN_FILENO));
  EXPECT_FALSE(acquire(-1));
  EXPECT_FALSE(acquire(1 << 30));
}

TEST(FdTable, GivesDuplicatesOneSocketUntilTheLastIsForgotten) {
  TcpPair pair;
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  EXPECT_EQ(acquire(copy).get(), &pair.socket(0));
  EXPECT_EQ(pair.socket(0).fds.load(), 2);
  forget(copy);
  ::close(copy);
  EXPECT_FALSE(acquire(copy));
  EXPECT_EQ(pair.socket(0).fds.load(), 1);
}

// Between the two nobody may read there.
TEST(FdTable, KeepsOtherThreadsFromADescriptorUntilTheKernelHasClosedIt) {
  TcpPair pair;
  pair.migrate();
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  {
    const Closing closing(copy);
    forget(copy);
    EXPECT_FALSE(known(copy));
    EXPECT_FALSE(acquire(copy)) << "the thread that closes it does not wait for itself";
    EXPECT_FALSE(is_the_kernels(copy)) << "a call looks for it";
    bool found = true;
    std::thread under_a_lock([&] { found = static_cast<bool>(acquire(copy, false)); });
    under_a_lock.join();
    EXPECT_FALSE(found);
    EXPECT_FALSE(is_the_kernels(copy)) << "it has waited";
    found = true;
    std::thread other([&] { found = static_cast<bool>(acquire(copy)); });
    other.join();
    EXPECT_FALSE(found);
    EXPECT_TRUE(is_the_kernels(copy)) << "it has waited for too long";
    forget(copy);
    ::close(copy);
  }
  EXPECT_TRUE(is_the_kernels(copy));
  EXPECT_TRUE(pair.held(0));
}

TEST(FdTable, GivesANumberToTheNextSocketWhileItIsStillBeingClosed) {
  TcpPair pair;
  pair.migrate();
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  {
    const Closing closing(copy);
    forget(copy);
    ASSERT_TRUE(duplicate_entry(pair.fd(1), copy));
    EXPECT_EQ(acquire(copy).get(), &pair.socket(1));
  }
  EXPECT_EQ(acquire(copy).get(), &pair.socket(1));
  forget(copy);
  ::close(copy);
}

TEST(FdTable, ForgetsARange) {
  TcpPair pair;
  const unsigned first = static_cast<unsigned>(std::min(pair.fd(0), pair.fd(1)));
  const unsigned last = static_cast<unsigned>(std::max(pair.fd(0), pair.fd(1)));
  forget_range(first, last);
  EXPECT_FALSE(known(pair.fd(0)));
  EXPECT_FALSE(known(pair.fd(1)));
}

int closes = 0;

TEST(FdTable, TellsOfTheLastDescriptorOfASocketThatHasMigrated) {
  TcpPair pair;
  pair.migrate();
  const auto before = hooks.last_close;
  hooks.last_close = [](int, Socket&, bool) { ++closes; };
  const int copy = ::dup(pair.fd(0));
  ASSERT_TRUE(duplicate_entry(pair.fd(0), copy));
  forget(copy);
  ::close(copy);
  EXPECT_EQ(closes, 0);
  pair.close(0);
  EXPECT_EQ(closes, 1);
  hooks.last_close = before;
}

TEST(FdTable, KeepsASocketForACallUnderWay) {
  TcpPair pair;
  const SocketRef call = pair.held(0);
  forget(pair.fd(0));
  EXPECT_FALSE(known(pair.fd(0)));
  EXPECT_EQ(call->refs.load(), 1);
  EXPECT_TRUE(call->client);
}

}  // namespace
}  // namespace clan::preload
