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

TEST(Results, HaveTheCpuTimeInTheTable) {
  Results results;
  results.add(throughput("bulk", "GB/s", 512));
  results.add(throughput("small", "M msg/s", 123.4));
  results.add(throughput("latency", "ns", 0));
  const std::string table = results.table("rate");
  EXPECT_NE(table.find("CPU time"), std::string::npos) << table;
  EXPECT_NE(line_of(table, "bulk").find("0.500 s/GB"), std::string::npos) << table;
  EXPECT_NE(line_of(table, "small").find("123.4 ns"), std::string::npos) << table;
  EXPECT_EQ(line_of(table, "latency").find("/GB"), std::string::npos) << table;
}

TEST(Results, AreWrittenInTheFormOfTheReports) {
  Results results;
  results.add(throughput("bulk", "GB/s", 512));
  Row trip = throughput("clan", "ns", 0);
  trip.probe_ns = 100;
  trip.op_ns = 250;
  results.add(trip);
  results.skip({"rate", "ucx", "not installed"});
  results.skip({"rate", "tcp", "no memory", true});
  results.judge({{"a bar", "at least 2", "missed", "1.00", {{"CPU time", "3 ns"}}}});
  const auto data = nlohmann::json::parse(results.json({}, {"some", "once", {0, 1}}));
  EXPECT_EQ(data["bench"], "some");
  EXPECT_EQ(data["skipped"]["rate, ucx"], "not installed");
  EXPECT_EQ(data["failed"]["rate, tcp"], "no memory");
  EXPECT_EQ(data["missed"], 1);
  EXPECT_EQ(data["items"]["bars"]["lines"][0]["more"]["CPU time"], "3 ns");
  const auto& rows = data["items"]["rate"]["rows"];
  EXPECT_DOUBLE_EQ(rows[0]["cpu"], 0.512);
  EXPECT_DOUBLE_EQ(rows[0]["value"], 2);
  EXPECT_EQ(rows[1]["unit"], "us");
  EXPECT_DOUBLE_EQ(rows[1]["value"], 0.002);
  EXPECT_DOUBLE_EQ(rows[1]["trips"], 2.5);
  EXPECT_TRUE(rows[1]["cpu"].is_null());
}

}  // namespace
}  // namespace clan::bench
