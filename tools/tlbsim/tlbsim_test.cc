#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "generators.h"
#include "replay.h"
#include "trace.h"

namespace clan::tlbsim {
namespace {

// A workload, replayed with both sizes of figure 3. Made once, each takes a while.
struct Figure3 {
  Replay large = std::move(*Replay::create(1024, 16));
  Replay small = std::move(*Replay::create(256, 16));
};

Figure3& replayed(const std::string& kind) {
  static std::map<std::string, Figure3> done;
  auto [it, fresh] = done.try_emplace(kind);
  if (fresh) {
    Figure3& both = it->second;
    Status status = run_workload(kind, Workload{}, [&both](const Access& access) {
      both.large.access(access);
      both.small.access(access);
    });
    EXPECT_TRUE(status.ok()) << kind << ": " << status.error().message();
  }
  return it->second;
}

TEST(Figure3, NoWorkloadMissesAPageTwiceWith1024Entries) {
  for (const Kind& kind : kinds()) {
    OpCounts total = replayed(std::string(kind.name)).large.total();
    EXPECT_GT(total.accesses, 500u) << kind.name;
    EXPECT_EQ(total.non_compulsory, 0u) << kind.name;
  }
}

TEST(Figure3, MatricesAndSmallMessageSampleSortFit256Entries) {
  for (const char* kind : {"matmul-128", "matmul-16", "sample-small"}) {
    EXPECT_EQ(replayed(kind).small.total().non_compulsory, 0u) << kind;
  }
}

TEST(Figure3, TheOthersDoNotFit256Entries) {
  for (const char* kind : {"radix-small", "radix-bulk", "sample-bulk", "sockets"}) {
    const Replay& small = replayed(kind).small;
    EXPECT_GT(small.total().non_compulsory, 0u) << kind;
    EXPECT_LE(small.stats().pinned_high_water, 256u + 16u + 1u) << kind;
  }
}

TEST(Figure3, EverySocketServerFirstTouchesItsReceiveBuffers) {
  EXPECT_EQ(replayed("sockets").large.counts(Op::kReceive).compulsory, 32u * 64u);
}

TEST(Figure3, SmallMessagesComeFromOnePage) {
  EXPECT_EQ(replayed("sample-small").large.counts(Op::kRead).compulsory, 1u);
}

TEST(Figure3, MatricesTouchAboutAsManyPagesAsInThePaper) {
  // 82 in the paper: here 8 of A, 8 of B, 64 receive buffers, 1 of small messages.
  EXPECT_EQ(replayed("matmul-16").large.total().compulsory, 81u);
}

TEST(Generators, GiveTheSameTraceForTheSameSeed) {
  Workload workload;
  workload.keys_per_node = 2000;
  workload.nodes = 3;
  auto trace = [&](std::string_view kind, std::uint64_t seed) {
    workload.seed = seed;
    std::vector<Access> accesses;
    EXPECT_TRUE(run_workload(kind, workload, [&](const Access& a) { accesses.push_back(a); }).ok());
    return accesses;
  };
  for (const char* kind : {"radix-small", "radix-bulk", "sample-small", "sample-bulk", "sockets"}) {
    EXPECT_EQ(trace(kind, 5), trace(kind, 5)) << kind;
    EXPECT_NE(trace(kind, 5), trace(kind, 6)) << kind;
  }
}

TEST(Generators, RefuseWhatTheyCannotRun) {
  Sink ignore = [](const Access&) {};
  EXPECT_EQ(run_workload("no-such", {}, ignore).error().err, ENOENT);
  Workload workload;
  workload.nodes = 1;
  EXPECT_EQ(run_workload("radix-bulk", workload, ignore).error().err, EINVAL);
  workload.nodes = 8;
  workload.keys_per_node = ~std::size_t{0};
  EXPECT_EQ(run_workload("radix-bulk", workload, ignore).error().err, EINVAL);
}

TEST(Trace, ReadsWhatItWrites) {
  std::vector<Access> accesses{{1, Op::kRead, 0x1000, 64},
                               {2, Op::kWrite, ~std::uint64_t{0}, 1},
                               {4294967295u, Op::kReceive, 0, 4096}};
  std::string text = "# comment\n\n";
  for (const Access& access : accesses) text += to_line(access) + "  # and more\r\n";
  std::istringstream in(text);
  std::vector<Access> read;
  std::size_t line = 0;
  EXPECT_TRUE(read_trace(
                  in, [&](const Access& access) { read.push_back(access); }, line)
                  .ok());
  EXPECT_EQ(read, accesses);
}

TEST(Trace, RefusesLinesThatMeanNothing) {
  for (const char* line :
       {"1", "1 r 5", "1 x 5 5", "1 r 5 5 5", "-1 r 5 5", "4294967296 r 5 5", "1 r 0x 5", "1 r 5 0",
        "1 r 5 0x40000001", "1 r 0xffffffffffffffff 2", "1 r 5g 5", "r 1 5 5"}) {
    EXPECT_FALSE(parse_line(line).ok()) << line;
  }
  std::istringstream in("1 r 5 5\n# fine\nnonsense\n");
  std::size_t line = 0;
  EXPECT_FALSE(read_trace(
                   in, [](const Access&) {}, line)
                   .ok());
  EXPECT_EQ(line, 3u);
}

TEST(Replay, SplitsWhatIsLongerThanTheTlb) {
  Replay replay = std::move(*Replay::create(4, 0));
  replay.access({1, Op::kWrite, 0x1010, 100 * 4096});
  EXPECT_EQ(replay.total().compulsory, 101u);
  EXPECT_EQ(replay.total().accesses, 1u);
}

}  // namespace
}  // namespace clan::tlbsim
