// Event queues.
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricEventQueues, KeepWhatIsWrittenInOrder) {
  Node node;
  fi_eq_attr attr{};
  attr.flags = FI_WRITE;
  attr.wait_obj = FI_WAIT_FD;
  fid_eq* eq = nullptr;
  MUST(fi_eq_open(node.fabric.get(), &attr, &eq, nullptr));
  Object<fid_eq> held(eq);
  fi_eq_entry entry{};
  std::uint32_t event = 0;
  EXPECT_EQ(fi_eq_read(eq, &event, &entry, sizeof entry, 0), -FI_EAGAIN);
  for (std::uint64_t i = 0; i < 100; ++i) {
    entry.data = i;
    ASSERT_EQ(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof entry, 0),
              static_cast<ssize_t>(sizeof entry));
  }
  ASSERT_EQ(fi_eq_read(eq, &event, &entry, sizeof entry, FI_PEEK),
            static_cast<ssize_t>(sizeof entry));
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(fi_eq_sread(eq, &event, &entry, sizeof entry, 1000, 0),
              static_cast<ssize_t>(sizeof entry));
    EXPECT_EQ(event, static_cast<std::uint32_t>(FI_NOTIFY));
    EXPECT_EQ(entry.data, i);
  }
  EXPECT_EQ(fi_eq_sread(eq, &event, &entry, sizeof entry, 30, 0), -FI_EAGAIN);
}

}  // namespace
}  // namespace clan::test
