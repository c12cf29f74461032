// Endpoints.
#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricEndpoints, DoNotShareAPort) {
  Node first;
  first.enable();
  const auto name = first.name();
  std::uint16_t port;
  std::memcpy(&port, name.data() + 2, 2);
  Node second({.port = ntohs(port)});
  EXPECT_EQ(fi_enable(second.ep.get()), -FI_EADDRINUSE);
}

}  // namespace
}  // namespace clan::test
