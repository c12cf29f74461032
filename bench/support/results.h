// What was measured: rows, skipped variants, and how they are written (table, JSON, plots).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/machine.h"
#include "support/stats.h"

namespace clan::bench {

struct Row {
  std::string benchmark;
  std::string variant;  ///< clan, tcp, unix, seqpacket, bare, ucx, …; "-poll" when it never blocks
  double x = 0;         ///< what the benchmark varies
  std::string x_name = "bytes";
  std::string unit;  ///< ns, us, M msg/s, GB/s, …
  bool higher_is_better = false;
  Stats stats;
  double op_ns = 0;     ///< time of one operation at the median, for the ratio to the probe
  double probe_ns = 0;  ///< bare cache-line round trip around the samples; 0: not probed
  double cpu_ns = 0;    ///< CPU time of all processes for an operation; 0: unknown
  int dropped = 0;      ///< samples repeated because the machine changed its regime
  std::string note;

  double to_probe() const { return probe_ns > 0 ? op_ns / probe_ns : 0; }
};

/// As it is printed beside a throughput.
struct CpuTime {
  double value;
  const char* unit;
};
/// Seconds of a gigabyte where the row counts bytes, else nanoseconds of an operation; nothing
/// where it is not known.
std::optional<CpuTime> cpu_time(const Row& row);
/// As text; "-" where it is not known.
std::string format_cpu_time(const Row& row);

struct Skip {
  std::string benchmark;
  std::string variant;
  std::string reason;
  bool failed = false;  ///< it should have been measured
};

/// What is wanted of rows, and whether they reach it.
struct Verdict {
  std::string text, wanted = {};
  std::string verdict = "not judged";  ///< or met, or missed
  std::string figure = "not measured";
  std::vector<std::pair<std::string, std::string>> more = {};  ///< by heading
};

/// What a file of results says about its run.
struct About {
  std::string name;  ///< of the question: the file is NAME.json
  std::string how;
  std::vector<int> cores;
};

class Results {
 public:
  void add(Row row) { rows_.push_back(std::move(row)); }
  /// The same reason for the same variant is kept once.
  void skip(Skip skip);
  void judge(std::vector<Verdict> verdicts) { verdicts_ = std::move(verdicts); }

  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Skip>& skips() const { return skips_; }
  const std::vector<Verdict>& verdicts() const { return verdicts_; }
  const Row* find(const std::string& benchmark, const std::string& variant, double x) const;

  /// The aligned table of one benchmark.
  std::string table(const std::string& benchmark) const;
  /// In the form of report.py, which describes it.
  std::string json(const Machine& machine, const About& about) const;

  /// Writes NAME.json and one plot per benchmark into a directory. False: see errno.
  bool write(const std::string& directory, const Machine& machine, const About& about) const;

 private:
  std::vector<std::string> benchmarks() const;

  std::vector<Row> rows_;
  std::vector<Skip> skips_;
  std::vector<Verdict> verdicts_;
};

/// Columns as wide as their widest cell; the first `left` columns left-aligned.
std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left);

/// 64 → "64 B", 1048576 → "1 MB"; other axes as plain numbers.
std::string format_x(double x, const std::string& x_name);
/// Three significant digits or so, without exponents.
std::string format_value(double value);

}  // namespace clan::bench
