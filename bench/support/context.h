// What a benchmark is given: the options of the run, the cores to use, and a place for its rows.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/process_group.h"
#include "support/results.h"

namespace clan::bench {

/// More of other work than this, in processors, disturbs what is measured.
inline constexpr double kOtherWork = 0.2;

/// Seconds since the machine has started that its processors were at work, or taken from it by the
/// host, by the first line of /proc/stat. 0: it is no such line.
double busy_seconds(const std::string& line);

/// How much of the processors other work than this process and the children it has waited for had
/// in the meantime: beside it no figure is what it would be alone.
class OtherWork {
 public:
  OtherWork();
  /// In processors, since this was made.
  double processors() const;

 private:
  double busy_, own_;
  std::uint64_t began_ns_;
};

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

  /// Two members, one per core; both on one core; `n` members free on both cores.
  GroupOptions across_cores() const { return group({{options_.core_a}, {options_.core_b}}); }
  GroupOptions on_one_core() const { return group({{options_.core_a}, {options_.core_a}}); }
  GroupOptions on_two_cores(std::size_t n) const {
    return group({n, std::vector{options_.core_a, options_.core_b}});
  }

  /// The full list, or what a short run takes of it.
  std::vector<std::size_t> sizes(const std::vector<std::size_t>& full,
                                 const std::vector<std::size_t>& quick,
                                 const std::vector<std::size_t>& smoke) const {
    return options_.smoke ? smoke : options_.quick ? quick : full;
  }

  /// Measures one row. Nothing when the variant was skipped or failed, which it has reported.
  using Variant = std::function<std::optional<Row>(Context&)>;

  /// Measures the variants of one point of one benchmark, and all of them again (twice at most)
  /// when the machine changed its regime between them, or other work ran beside them: rows of one
  /// point are comparable.
  void point(const std::vector<Variant>& variants);

  /// Runs a group for a row, unless `why_not` says why it cannot be measured. Nothing when it was
  /// skipped or failed, which is reported; what is not `required` counts as skipped.
  std::optional<Outcome> run(const std::string& benchmark, const std::string& variant,
                             const std::string& why_not, const GroupOptions& group,
                             const std::function<bool(Member&)>& body, bool required = true);

  void skip(const std::string& benchmark, const std::string& variant, const std::string& reason);
  int failures() const { return failures_; }

 private:
  GroupOptions group(std::vector<std::vector<int>> cores) const;

  Options options_;
  Results results_;
  int failures_ = 0;
};

/// A row with what every benchmark takes from an outcome. The median is the time of an operation.
Row make_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome);

/// A row of rates: `per_ns` over the nanoseconds of an operation, a figure for each sample.
Row rate_row(const std::string& benchmark, const std::string& variant, double x,
             const std::string& unit, const Outcome& outcome, double per_ns);

}  // namespace clan::bench
