// The bars CLAN has to clear: ratios of rows measured in one run.
#pragma once

#include <string>

#include "support/results.h"

namespace clan::bench {

/// Whether a question's rows are needed for a bar.
bool bars_need(const std::string& question);

/// One line per bar: what was measured, what is wanted, whether it holds or wasn't measured. A bar
/// against a kernel socket that blocks also shows the ratio to one that polls, where that was
/// measured.
std::string bars_table(const Results& results);

}  // namespace clan::bench
