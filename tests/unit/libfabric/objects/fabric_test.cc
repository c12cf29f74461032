// Which objects keep which.
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricObjects, AreNotClosedWhileOthersNeedThem) {
  Node node;
  EXPECT_EQ(fi_close(&node.fabric->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.domain->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.cq->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&node.av->fid), -FI_EBUSY);
}

}  // namespace
}  // namespace clan::test
