#include "benchmarks.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace clan::bench {
namespace {

Row rate(const std::string& variant, double median, double cpu_ns) {
  Row row;
  row.benchmark = "message_rate";
  row.variant = variant;
  row.x = 8;
  row.unit = "M msg/s";
  row.higher_is_better = true;
  row.stats.p50 = median;
  row.probe_ns = 100;
  row.cpu_ns = cpu_ns;
  return row;
}

TEST(Bars, HaveTheCpuTimeOfClanAndOfTheBestOfTheOthersBesideThem) {
  Results results;
  results.add(rate("clan", 15, 134));
  results.add(rate("bare", 10, 198));
  results.add(rate("bare, prefetch", 20, 101));
  const std::string table = bars_table(bars(results));
  const std::size_t at = table.find("8 B messages/s against the bare bound");
  ASSERT_NE(at, std::string::npos);
  const std::string line = table.substr(at, table.find('\n', at) - at);
  EXPECT_NE(line.find("0.75"), std::string::npos) << line;
  EXPECT_NE(line.find("at least 0.6 "), std::string::npos) << line;
  EXPECT_NE(line.find("134.0 ns / 101.0 ns"), std::string::npos) << line;
  EXPECT_NE(table.substr(0, table.find('\n')).find("CPU time"), std::string::npos);
}

const Verdict& bar_of(const std::vector<Verdict>& bars, const std::string& text) {
  for (const Verdict& bar : bars) {
    if (bar.text == text) return bar;
  }
  throw std::out_of_range(text);
}

TEST(Bars, AreMetMissedOrNotJudged) {
  const std::string text = "8 B messages/s against the bare bound";
  Results results;
  EXPECT_EQ(bar_of(bars(results), text).verdict, "not judged");
  results.add(rate("bare", 10, 0));
  results.add(rate("clan", 7, 0));
  EXPECT_EQ(bar_of(bars(results), text).verdict, "met");
  results.add(rate("bare, prefetch", 20, 0));
  EXPECT_EQ(bar_of(bars(results), text).verdict, "missed");
  Row apart = rate("bare, prefetch", 30, 0);
  apart.probe_ns = 200;
  Results mixed;
  mixed.add(rate("clan", 7, 0));
  mixed.add(apart);
  EXPECT_EQ(bar_of(bars(mixed), text).verdict, "not judged");
}

}  // namespace
}  // namespace clan::bench
