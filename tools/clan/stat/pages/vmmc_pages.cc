#include "vmmc_pages.h"

#include <clan/face/vmmc_face.h>

#include "own_page.h"

namespace clan::tool {

using vmmc::VmmcPage;

std::vector<VmmcCounters> read_vmmc_pages(const std::vector<pid_t>& pids) {
  std::vector<VmmcCounters> found;
  for_own_pages<VmmcPage>(pids, vmmc::kVmmcMemfdName, [&](const VmmcPage& page) {
    found.push_back({.pid = page.pid,
                     .buffers = value_in(page.buffers),
                     .remotes = value_in(page.remotes),
                     .bindings = value_in(page.bindings),
                     .sends = value_in(page.sends),
                     .sent_bytes = value_in(page.sent_bytes),
                     .notified = value_in(page.notified),
                     .delivered = value_in(page.delivered),
                     .ignored = value_in(page.ignored),
                     .lost = value_in(page.lost),
                     .flushes = value_in(page.flushes),
                     .compared_bytes = value_in(page.compared_bytes),
                     .mirrored_bytes = value_in(page.mirrored_bytes),
                     .hostile = value_in(page.hostile)});
  });
  return found;
}

}  // namespace clan::tool
