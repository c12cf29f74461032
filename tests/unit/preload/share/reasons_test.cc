#include "share/reasons.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <string>
#include <vector>

#include "clan/face/reason_text.h"
#include "preload/tcp_pair.h"
#include "state/hooks.h"
#include "state/withdraw.h"
#include "table/internal_fds.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

using reasons::Reason;
using reasons::reason_of;
using reasons::Why;

std::uint32_t inode(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 ? static_cast<std::uint32_t>(about.st_ino) : 0;
}

// What is said of a socket or of a process, in what others can read.
std::vector<Reason> said(std::uint32_t of, bool process) {
  std::vector<std::uint64_t> words(reasons::kWords);
  const auto bytes = static_cast<ssize_t>(words.size() * sizeof words[0]);
  EXPECT_EQ(::pread(passing_memfd.load(), words.data(), words.size() * sizeof words[0],
                    reasons::kSlotBytes),
            bytes);
  std::vector<Reason> found;
  for (const std::uint64_t word : words) {
    const Reason reason = reason_of(word);
    if (reason.why != Why::kNone && reason.of == of && reason.of_process == process)
      found.push_back(reason);
  }
  return found;
}

TEST(Reasons, OfASocketStandWhereOthersReadThemUntilItCloses) {
  std::uint32_t of = 0;
  {
    TcpPair pair;
    of = inode(pair.fd(0));
    stay(pair.fd(0), pair.socket(0), Why::kExcept);
    ASSERT_EQ(said(of, false).size(), 1u);
    EXPECT_EQ(said(of, false)[0].why, Why::kExcept);
    say_why(pair.fd(0), pair.socket(0), Why::kInq);
    ASSERT_EQ(said(of, false).size(), 1u);
    EXPECT_EQ(said(of, false)[0].why, Why::kInq);
  }
  EXPECT_TRUE(said(of, false).empty());
}

TEST(Reasons, ThatTellLessDoNotTakeThePlaceOfOthers) {
  TcpPair pair;
  const std::uint32_t of = inode(pair.fd(0));
  say_why(pair.fd(0), pair.socket(0), Why::kUnused, 5);
  say_why(pair.fd(0), pair.socket(0), Why::kUnused, 10);
  ASSERT_EQ(said(of, false).size(), 1u);
  EXPECT_EQ(said(of, false)[0].number, 10u);
  say_why(pair.fd(0), pair.socket(0), Why::kUrgent);
  say_why(pair.fd(0), pair.socket(0), Why::kTakenBack);
  say_why(pair.fd(0), pair.socket(0), Why::kUnused, 20);
  ASSERT_EQ(said(of, false).size(), 1u);
  EXPECT_EQ(said(of, false)[0].why, Why::kUrgent);
}

TEST(Reasons, GoWhenTheConnectionMoves) {
  TcpPair pair;
  const std::uint32_t of = inode(pair.fd(0));
  say_why(pair.fd(0), pair.socket(0), Why::kUnused, 5);
  ASSERT_EQ(said(of, false).size(), 1u);
  unsay(pair.socket(0));
  EXPECT_TRUE(said(of, false).empty());
}

TEST(Reasons, OfASocketThatAnotherProcessMayHaveOutliveIt) {
  std::uint32_t of = 0;
  {
    TcpPair pair;
    of = inode(pair.fd(0));
    stay(pair.fd(0), pair.socket(0), Why::kOnly);
    pair.socket(0).inherited = true;
  }
  EXPECT_EQ(said(of, false).size(), 1u);
}

TEST(Reasons, OfAProcessAreOneAtATime) {
  const auto us = static_cast<std::uint32_t>(::getpid());
  publish_of_process(Why::kUring, 0);
  publish_of_process(Why::kFilter, SYS_memfd_create);
  ASSERT_EQ(said(us, true).size(), 1u);
  EXPECT_EQ(said(us, true)[0].number, static_cast<std::uint32_t>(SYS_memfd_create));
  withdraw_of_process();
  EXPECT_TRUE(said(us, true).empty());
}

TEST(Reasons, OfAChildOfForkStandInItsParentsMemory) {
  publish_of_process(Why::kUring, 0);
  const pid_t child = ::fork();
  if (child == 0) {
    publish_of_process(Why::kBypass, 0);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto found = said(static_cast<std::uint32_t>(child), true);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].why, Why::kBypass);
  withdraw_of_process();
}

TEST(Reasons, MoreThanABucketHoldsTakeThePlaceOfConnectionsThatAreNotUsedEnough) {
  std::atomic<std::uint64_t>* words = reason_words();
  ASSERT_NE(words, nullptr);
  const auto us = static_cast<std::uint32_t>(::getpid());
  std::atomic<std::uint64_t>* bucket = words + reasons::bucket_of(us);
  std::uint64_t before[reasons::kWays];
  for (std::size_t i = 0; i < reasons::kWays; ++i) {
    const Why why = i == 5 ? Why::kUnused : Why::kExcept;
    const auto of = static_cast<std::uint32_t>(us + (i + 1) * reasons::kBuckets);
    before[i] = bucket[i].exchange(reasons::word_of({of, why, false, 0}));
  }
  publish_of_process(Why::kUring, 0);
  EXPECT_EQ(reason_of(bucket[5].load()).why, Why::kUring);
  for (std::size_t i = 0; i < reasons::kWays; ++i) bucket[i].store(before[i]);
}

TEST(Reasons, OfAnyWordAreOneThatIsKnownOrNone) {
  std::uint64_t word = 88172645463325252u;
  for (int i = 0; i < 100'000; ++i) {
    word ^= word << 13, word ^= word >> 7, word ^= word << 17;
    const Reason reason = reason_of(word);
    ASSERT_LT(reason.why, Why::kCount);
    char text[64];
    reasons::describe(reason, text, sizeof text);
    ASSERT_LT(std::strlen(text), sizeof text);
    if (reason.why != Why::kNone) {
      ASSERT_EQ(reasons::word_of(reason), word);
    }
  }
}

TEST(Reasons, AllHaveWords) {
  for (int i = 1; i < static_cast<int>(Why::kCount); ++i)
    EXPECT_STRNE(reasons::text_of(static_cast<Why>(i)), "") << i;
}

}  // namespace
}  // namespace clan::preload
