// What a benchmark is given: the options of the run, the cores to use, and a place for its rows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/process_group.h"
#include "support/results.h"

namespace clan::bench {

struct Options {
  int core_a = 0;
  int core_b = 1;
  int samples = 9;
  double sample_ms = 20;
  double deadline_s = 60;  ///< per row
  bool smoke = false;      ///< a few iterations of everything: does it run, not how fast
  bool quick = false;      ///< fewer points
  std::string output;      ///< directory for JSON and plots; empty: table only
};

class Context {
 public:
  explicit Context(Options options) : options_(std::move(options)) {}

  const Options& options() const { return options_; }
  Results& results() { return results_; }
  bool short_run() const { return options_.smoke || options_.quick; }

  /// Two members, one per core; both on one core; `n` members free on both cores.
  GroupOptions across_cores() const;
  GroupOptions on_one_core() const;
  GroupOptions on_two_cores(std::size_t members) const;

  /// The full list, or what a short run takes of it.
  std::vector<std::size_t> sizes(const std::vector<std::size_t>& full,
                                 const std::vector<std::size_t>& quick,
                                 const std::vector<std::size_t>& smoke = {64}) const;

  /// Measures one row. Nothing when the variant was skipped or failed, which it has reported.
  using Variant = std::function<std::optional<Row>(Context&)>;

  /// Measures the variants of one point of one benchmark, and all of them again (twice at most)
  /// when the machine changed its regime between them, or other work ran beside them: rows of one
  /// point are comparable.
  void point(const std::vector<Variant>& variants);

  void skip(const std::string& benchmark, const std::string& variant, const std::string& reason);

  /// A failed measurement is an error of the run, a skipped one is not.
  void failed(const std::string& benchmark, const std::string& variant, const std::string& why);
  int failures() const { return failures_; }

 private:
  GroupOptions group(std::vector<std::vector<int>> cores) const;

  Options options_;
  Results results_;
  int failures_ = 0;
};

/// A row with what every benchmark takes from an outcome. `op_ns` is left to the caller.
Row make_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome);

}  // namespace clan::bench
