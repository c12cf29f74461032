#include "engine/context/own_endpoint.h"

#include <gtest/gtest.h>

#include "support/streams.h"

namespace clan::engine {
namespace {

struct Sink : OobSink {};

TEST(OwnEndpoint, IsTheContextsAsLongAsItLives) {
  const auto context = *ContextCore::create({});
  const auto sink = std::make_shared<Sink>();
  std::uint32_t number = 0;
  {
    OwnEndpoint endpoint(context);
    EXPECT_EQ(endpoint.number(), 0u);
    ASSERT_TRUE(endpoint.begin(sink).ok());
    number = endpoint.number();
    EXPECT_EQ(context->endpoints().find(number), sink);
    EXPECT_EQ(endpoint.address().endpoint, number);
  }
  EXPECT_EQ(context->endpoints().find(number), nullptr);
}

TEST(OwnEndpoint, GivesItsNameBack) {
  const auto context = *ContextCore::create({});
  const auto sink = std::make_shared<Sink>();
  const std::string name = test::unique_name("own");
  OwnEndpoint first(context), second(context);
  ASSERT_TRUE(first.offer(sink, name).ok());
  EXPECT_EQ(second.offer(sink, name).error().err, EADDRINUSE);
  first.end();
  second.end();
  EXPECT_TRUE(second.offer(sink, name).ok());
}

}  // namespace
}  // namespace clan::engine
