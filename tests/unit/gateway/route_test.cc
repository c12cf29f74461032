#include "route.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace clan::gateway {
namespace {

struct Routes {
  std::unique_ptr<GatewayPage> page = std::make_unique<GatewayPage>();
  Route route;

  explicit Routes(const std::string& more = "")
      : route(read_text("listen=127.0.0.1:1 to=clan:a,clan:b,clan:c " + more).rules.at(0), *page,
              std::make_shared<Counts>()) {}
  std::string choose(std::uint64_t tried = 0, std::uint64_t now = 0) {
    const Target* target = route.choose(tried, now);
    return target == nullptr ? "" : target->name.text.substr(5);
  }
};

TEST(GatewayRoute, TargetsTakeTurns) {
  Routes routes;
  for (const char* name : {"a", "b", "c", "a"}) EXPECT_EQ(name, routes.choose());
}

TEST(GatewayRoute, TheFirstThatWorksIsTaken) {
  Routes routes("balance=first retry=2");
  EXPECT_EQ("a", routes.choose());
  routes.route.failed(routes.route.targets()[0], 100);
  EXPECT_EQ("b", routes.choose(0, 101));
  EXPECT_EQ("a", routes.choose(0, 2100));
  routes.route.failed(routes.route.targets()[0], 3000);
  routes.route.worked(routes.route.targets()[0]);
  EXPECT_EQ("a", routes.choose(0, 3001));
}

TEST(GatewayRoute, TheOneWithTheFewestConnectionsIsTaken) {
  Routes routes("balance=least");
  routes.route.targets()[0].connections = 2;
  routes.route.targets()[1].connections = 1;
  routes.route.targets()[2].connections = 1;
  EXPECT_EQ("b", routes.choose());
}

TEST(GatewayRoute, EachTargetIsTriedOnceTheFailedOnesLast) {
  Routes routes("balance=first");
  routes.route.failed(routes.route.targets()[0], 10);
  EXPECT_EQ("b", routes.choose(0, 11));
  EXPECT_EQ("c", routes.choose(2, 11));
  EXPECT_EQ("a", routes.choose(6, 11));
  EXPECT_EQ("", routes.choose(7, 11));
}

TEST(GatewayRoute, AClientHasNoMoreConnectionsThanItMay) {
  Routes routes("max-per-source=2 max=1");
  const Ip one{1}, other{2};
  EXPECT_TRUE(routes.route.enter_source(one));
  EXPECT_TRUE(routes.route.enter_source(one));
  EXPECT_FALSE(routes.route.enter_source(one));
  EXPECT_TRUE(routes.route.enter_source(other));
  routes.route.leave_source(one);
  EXPECT_TRUE(routes.route.enter_source(one));
  EXPECT_FALSE(routes.route.full());
  routes.route.enter();
  EXPECT_TRUE(routes.route.full());
}

}  // namespace
}  // namespace clan::gateway
