// A domain's own progress.
#include <chrono>
#include <thread>

#include "libfabric/node.h"

namespace clan::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(FabricProgress, IsMadeByAThreadWhereProgramsWantThat) {
  NodeOptions automatic{.progress = FI_PROGRESS_AUTO};
  Two two({}, automatic);
  std::uint64_t target = 5;
  fid_mr* mr = nullptr;
  MUST(fi_mr_reg(two.b.domain.get(), &target, sizeof target, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 1,
                 0, &mr, nullptr));
  Object<fid_mr> held(mr);
  const std::uint64_t one = 1;
  std::uint64_t found = 0;
  // The target's program does nothing.
  ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), &one, 1, nullptr, &found, nullptr, two.to_b, 0, 1,
                            FI_UINT64, FI_SUM, nullptr),
            0);
  fi_cq_tagged_entry entry;
  ASSERT_TRUE(eventually([&] { return fi_cq_read(two.a.cq.get(), &entry, 1) == 1; }));
  EXPECT_EQ(found, 5u);
  EXPECT_EQ(__atomic_load_n(&target, __ATOMIC_SEQ_CST), 6u);
}

}  // namespace
}  // namespace clan::test
