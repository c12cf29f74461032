#include "engine/context/service_table.h"

#include <gtest/gtest.h>

namespace clan::engine {
namespace {

// Reads the table when it is destroyed, which it can only if the lock is free.
class Destroyed final : public Pollable {
 public:
  Destroyed(ServiceTable& table, int& destroyed) : table_(table), destroyed_(destroyed) {}
  ~Destroyed() override {
    std::uint32_t endpoint = 0;
    (void)table_.find("echo", &endpoint);
    ++destroyed_;
  }
  void on_ready(std::uint32_t) override {}

 private:
  ServiceTable& table_;
  int& destroyed_;
};

class ServiceTableTest : public testing::Test {
 protected:
  OfferedService service(std::uint32_t endpoint) {
    return {std::make_shared<Destroyed>(table, destroyed), 9, endpoint, nullptr};
  }
  ServiceTable table;
  int destroyed = 0;
};

TEST_F(ServiceTableTest, FindsTheEndpointBehindAName) {
  std::uint32_t endpoint = 0;
  EXPECT_FALSE(table.find("echo", &endpoint));
  table.put("echo", service(3));
  table.put("time", service(4));
  EXPECT_TRUE(table.find("echo", &endpoint));
  EXPECT_EQ(endpoint, 3u);
}

TEST_F(ServiceTableTest, GivesAServiceToOneWhoTakesItOut) {
  table.put("echo", service(3));
  OfferedService taken, again;
  EXPECT_TRUE(table.take("echo", &taken));
  EXPECT_EQ(taken.endpoint, 3u);
  EXPECT_EQ(taken.fd, 9);
  EXPECT_NE(taken.listener, nullptr);
  EXPECT_EQ(destroyed, 0);
  EXPECT_FALSE(table.take("echo", &again));
  std::uint32_t endpoint = 0;
  EXPECT_FALSE(table.find("echo", &endpoint));
}

TEST_F(ServiceTableTest, DestroysNoServiceWithTheLockHeld) {
  table.put("echo", service(3));
  table.put("echo", service(4));
  EXPECT_EQ(destroyed, 1);
  std::uint32_t endpoint = 0;
  EXPECT_TRUE(table.find("echo", &endpoint));
  EXPECT_EQ(endpoint, 4u);
  table.clear();
  EXPECT_EQ(destroyed, 2);
  EXPECT_FALSE(table.find("echo", &endpoint));
}

}  // namespace
}  // namespace clan::engine
