#include "engine/context/endpoint_table.h"

#include <gtest/gtest.h>

#include <functional>

namespace clan::engine {
namespace {

struct Sink : OobSink {
  ~Sink() override {
    if (at_end) at_end();
  }
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage&) override {}
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
  std::function<void()> at_end;
};

TEST(EndpointTable, FindsASinkByItsNumberUntilItIsRemoved) {
  EndpointTable table;
  const auto sink = std::make_shared<Sink>();
  const std::uint32_t endpoint = *table.add(sink);
  EXPECT_NE(endpoint, 0u);
  EXPECT_EQ(table.find(endpoint), sink);
  table.remove(endpoint);
  EXPECT_EQ(table.find(endpoint), nullptr);
}

TEST(EndpointTable, GivesNoNumberTwice) {
  EndpointTable table;
  const auto sink = std::make_shared<Sink>();
  const std::uint32_t first = *table.add(sink);
  table.remove(first);
  EXPECT_NE(*table.add(sink), first);
}

TEST(EndpointTable, ForgetsASinkThatHasEnded) {
  EndpointTable table;
  const std::uint32_t endpoint = *table.add(std::make_shared<Sink>());
  EXPECT_EQ(table.find(endpoint), nullptr);
  EXPECT_TRUE(table.all().empty());
}

TEST(EndpointTable, KeepsASinkAlive) {
  EndpointTable table;
  std::weak_ptr<Sink> watched;
  std::uint32_t endpoint = 0;
  {
    const auto sink = std::make_shared<Sink>();
    watched = sink;
    endpoint = *table.add(sink);
    table.keep(endpoint, sink);
  }
  EXPECT_EQ(table.find(endpoint), watched.lock());
  EXPECT_EQ(table.all().size(), 1u);
  table.remove(endpoint);
  EXPECT_TRUE(watched.expired());
}

TEST(EndpointTable, DestroysASinkThatLooksIntoTheTable) {
  EndpointTable table;
  const auto first = std::make_shared<Sink>();
  const std::uint32_t endpoint = *table.add(first);
  bool ended = false;
  auto last = std::make_shared<Sink>();
  last->at_end = [&] { ended = table.find(endpoint) == nullptr; };
  table.keep(endpoint, std::move(last));
  table.remove(endpoint);  // with the lock held this would hang
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace clan::engine
