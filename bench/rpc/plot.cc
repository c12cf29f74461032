// Draws what `clan bench rpc --paper` measured, in the form of the plots of `clan bench`.
//
//     clan-rpc-plot TITLE SUBTITLE < rows > FILE.svg        a row: VARIANT <tab> BYTES <tab> MIN
//                                                           <tab> MEDIAN <tab> MAX
#include "support/plot.h"

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<clan::bench::Row> rows;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    clan::bench::Row row;
    row.unit = "us";
    std::getline(words, row.variant, '\t');
    if (!(words >> row.x >> row.stats.min >> row.stats.p50 >> row.stats.max)) return 1;
    row.stats.p99 = row.stats.max;
    rows.push_back(row);
  }
  std::cout << clan::bench::plot_svg(argv[1], rows, argv[2]);
  return rows.empty() ? 1 : 0;
}
