// What was measured: rows, skipped variants, and how they are written (table, JSON, plots).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/stats.h"

namespace clan::bench {

/// What machine, kernel and commit a result belongs to.
struct Machine {
  std::string cpu_model;
  int cores = 0;  ///< cores this process may use
  std::string kernel;
  std::string governor;  ///< "none" where the kernel shows no frequency scaling
  std::string clock;
  std::string date;
  std::string commit;
  std::string compiler;
  std::string load_average;
};

Machine describe_machine();

/// Several lines.
std::string machine_report(const Machine& machine);

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

/// How many times as good the median of one row is as another's: above 1 it is better.
double times_better(const Row& mine, const Row& other);

/// As it is printed beside a throughput: seconds of a gigabyte where the row counts bytes, else
/// nanoseconds of an operation; "-" where it is not known.
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
  /// The best of some variants at a point; null: none was measured.
  const Row* best(const std::string& benchmark, const std::vector<std::string>& variants,
                  double x) const;

  /// The aligned table of one benchmark.
  std::string table(const std::string& benchmark) const;
  /// In the form of report.py, which describes it.
  std::string json(const Machine& machine, const About& about) const;

  /// Writes NAME.json into a directory. False: see errno.
  bool write(const std::string& directory, const Machine& machine, const About& about) const;

 private:
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
