// The bars CLAN has to clear: ratios of rows measured in one run.
#pragma once

#include <string>
#include <vector>

#include "support/results.h"

namespace clan::bench {

/// Whether a question's rows are needed for a bar.
bool bars_need(const std::string& question);

/// What is wanted of each bar, and whether it is met. A bar against a kernel socket that blocks
/// also has the ratio to one that polls, where that was measured.
std::vector<Verdict> bars(const Results& results);

/// One line per bar.
std::string bars_table(const std::vector<Verdict>& bars);

}  // namespace clan::bench
