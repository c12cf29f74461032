#include "net/node.h"

#include <gtest/gtest.h>

#include <string>

namespace clan::preload {
namespace {

TEST(CarrierNode, WithoutAKeyThereIsNone) {
  ContextOptions options;
  options.network.enabled = true;  // and no key file
  const CarrierCalls calls{};
  auto node = Node::start(options, calls);
  ASSERT_FALSE(node);
  EXPECT_NE(std::string(node.error().what).find("key"), std::string::npos) << node.error().what;
}

}  // namespace
}  // namespace clan::preload
