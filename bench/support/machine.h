// What machine, kernel and commit a result belongs to.
#pragma once

#include <string>
#include <vector>

namespace clan::bench {

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

/// One line for a plot's subtitle, several for a report.
std::string machine_line(const Machine& machine);
std::string machine_report(const Machine& machine);

/// The cores this process may use, in ascending order.
std::vector<int> allowed_cores();

}  // namespace clan::bench
