#include "gateway_pages.h"

#include <clan/face/gateway_face.h>

#include <algorithm>
#include <cstddef>

#include "own_page.h"

namespace clan::tool {

using gateway::GatewayPage;

std::vector<GatewayCounters> read_gateway_pages(const std::vector<pid_t>& pids) {
  std::vector<GatewayCounters> found;
  for_own_pages<GatewayPage>(pids, gateway::kGatewayMemfdName, [&](const GatewayPage& page) {
    found.push_back({.pid = page.pid,
                     .draining = value_in(page.draining) != 0,
                     .connections = value_in(page.connections),
                     .accepted = value_in(page.accepted),
                     .ended = value_in(page.ended),
                     .reset = value_in(page.reset),
                     .bytes_in = value_in(page.bytes_in),
                     .bytes_out = value_in(page.bytes_out),
                     .refused_source = value_in(page.refused_source),
                     .refused_header = value_in(page.refused_header),
                     .refused_target = value_in(page.refused_target),
                     .failed_connects = value_in(page.failed_connects),
                     .accept_errors = value_in(page.accept_errors),
                     .reloads = value_in(page.reloads),
                     .failed_reloads = value_in(page.failed_reloads),
                     .targets = {}});
    const std::size_t known =
        std::min<std::size_t>(value_in(page.targets_known), GatewayPage::kMostTargets);
    for (std::size_t i = 0; i < known; ++i) {
      const GatewayPage::Target& target = page.targets[i];
      found.back().targets.push_back({text_in(target.name), value_in(target.works) != 0,
                                      value_in(target.connections), value_in(target.served),
                                      value_in(target.failures)});
    }
  });
  return found;
}

}  // namespace clan::tool
