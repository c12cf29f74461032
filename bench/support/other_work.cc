#include "support/other_work.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "clan/detail/clock.h"

namespace clan::bench {
namespace {

double busy_so_far() {
  std::ifstream stat("/proc/stat");
  std::string line;
  std::getline(stat, line);
  return busy_seconds(line);
}

double own_so_far() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage spent{};
    (void)getrusage(who, &spent);
    for (const timeval& t : {spent.ru_utime, spent.ru_stime})
      seconds += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  }
  return seconds;
}

}  // namespace

double busy_seconds(const std::string& line) {
  std::istringstream words(line);
  std::string name;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft = 0, stolen = 0;
  words >> name >> user >> nice >> system >> idle >> waiting >> irq >> soft >> stolen;
  const double ticks = user + nice + system + irq + soft + stolen;
  return name == "cpu" ? ticks / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

OtherWork::OtherWork() : busy_(busy_so_far()), own_(own_so_far()), began_ns_(monotonic_ns()) {}

double OtherWork::processors() const {
  const double others = busy_so_far() - busy_ - (own_so_far() - own_);
  return std::max(0.0, others / (static_cast<double>(monotonic_ns() - began_ns_) / 1e9));
}

}  // namespace clan::bench
