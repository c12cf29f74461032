// Draws one benchmark's rows as an SVG: lines over a logarithmic axis where the benchmark varies
// something, horizontal bars where it doesn't. Medians, with whiskers from min to p99.
#pragma once

#include <string>
#include <vector>

#include "support/results.h"

namespace clan::bench {

std::string plot_svg(const std::string& title, const std::vector<Row>& rows,
                     const std::string& subtitle);

}  // namespace clan::bench
