#include "support/results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace clan::bench {
namespace {

Row throughput(const std::string& variant, const std::string& unit, double cpu_ns) {
  Row row;
  row.benchmark = "rate";
  row.variant = variant;
  row.x = 1024;
  row.unit = unit;
  row.stats.p50 = 2;
  row.cpu_ns = cpu_ns;
  return row;
}

/// The line of the table that begins with this variant's row.
std::string line_of(const std::string& table, const std::string& variant) {
  const std::size_t at = table.find(" " + variant + " ");
  return at == std::string::npos ? "" : table.substr(at, table.find('\n', at) - at);
}

TEST(CpuTime, OfBytesIsSecondsOfAGigabyteAndOfMessagesNanoseconds) {
  EXPECT_EQ(format_cpu_time(throughput("clan", "GB/s", 512)), "0.500 s/GB");
  EXPECT_EQ(format_cpu_time(throughput("clan", "M msg/s", 123.4)), "123.4 ns");
  EXPECT_EQ(format_cpu_time(throughput("clan", "M msg/s", 0)), "-");
}

TEST(Results, HaveTheCpuTimeInTheTableAndInJson) {
  Results results;
  results.add(throughput("bulk", "GB/s", 512));
  results.add(throughput("small", "M msg/s", 123.4));
  results.add(throughput("latency", "ns", 0));
  const std::string table = results.table("rate");
  EXPECT_NE(table.find("CPU time"), std::string::npos) << table;
  EXPECT_NE(line_of(table, "bulk").find("0.500 s/GB"), std::string::npos) << table;
  EXPECT_NE(line_of(table, "small").find("123.4 ns"), std::string::npos) << table;
  EXPECT_EQ(line_of(table, "latency").find("/GB"), std::string::npos) << table;

  const auto rows = nlohmann::json::parse(results.json({}))["results"];
  EXPECT_DOUBLE_EQ(rows[0]["cpu"], 0.5);
  EXPECT_EQ(rows[0]["cpu_unit"], "s/GB");
  EXPECT_DOUBLE_EQ(rows[1]["cpu"], 123.4);
  EXPECT_EQ(rows[1]["cpu_unit"], "ns");
  EXPECT_TRUE(rows[2]["cpu"].is_null() && rows[2]["cpu_unit"].is_null());
}

}  // namespace
}  // namespace clan::bench
