// Order statistics of a set of measurements.
#pragma once

#include <cstddef>
#include <vector>

namespace clan::bench {

/// Plain data: the measuring process writes it into shared memory for the one that reports.
struct Stats {
  double min = 0;
  double p50 = 0;
  double p99 = 0;
  double max = 0;
  double mad = 0;  ///< median absolute deviation of the runs' medians
  std::size_t count = 0;
  std::size_t runs = 0;
};

double median(std::vector<double> values);

/// `values` pools every measurement of every kept run; `run_medians` has one entry per run.
Stats summarise(std::vector<double> values, const std::vector<double>& run_medians);

/// Statistics where each run gave one figure.
Stats summarise_runs(const std::vector<double>& runs);

}  // namespace clan::bench
