#include "rpc_pages.h"

#include <clan/face/rpc_face.h>

#include "own_page.h"

namespace clan::tool {

std::vector<RpcCounters> read_rpc_pages(const std::vector<pid_t>& pids) {
  std::vector<RpcCounters> found;
  for_own_pages<RpcPage>(pids, kRpcMemfdName, [&](const RpcPage& page) {
    found.push_back({.pid = page.pid,
                     .handles = value_in(page.handles),
                     .met = value_in(page.met),
                     .calls_clan = value_in(page.calls_clan),
                     .calls_stock = value_in(page.calls_stock),
                     .lost = value_in(page.lost),
                     .clients = value_in(page.clients),
                     .served = value_in(page.served_clan),
                     .replies_stock = value_in(page.replies_stock),
                     .hostile = value_in(page.hostile),
                     .sleeps = value_in(page.sleeps),
                     .calls_far = value_in(page.calls_far),
                     .served_far = value_in(page.served_far)});
  });
  return found;
}

}  // namespace clan::tool
