#include "via_pages.h"

#include <clan/face/via_face.h>

#include <algorithm>

#include "own_page.h"

namespace clan::tool {
namespace {

using via::ViaPage;
using via::ViaRow;

}  // namespace

std::vector<ViaConnection> read_via_pages(const std::vector<pid_t>& pids) {
  std::vector<ViaConnection> found;
  for_own_pages<ViaPage>(pids, via::kViaMemfdName, [&](const ViaPage& page) {
    const std::uint32_t rows = std::min<std::uint32_t>(value_in(page.rows), ViaPage::kRows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      const ViaRow& row = page.row[i];
      if (value_in(row.open) == 0) continue;
      found.push_back({.pid = page.pid,
                       .peer_pid = value_in(row.peer_pid),
                       .number = value_in(row.connection),
                       .sent = value_in(row.sent),
                       .sent_bytes = value_in(row.sent_bytes),
                       .received = value_in(row.received),
                       .received_bytes = value_in(row.received_bytes),
                       .rdma = value_in(row.rdma),
                       .rdma_bytes = value_in(row.rdma_bytes),
                       .moved = value_in(row.moved),
                       .dropped = value_in(row.dropped),
                       .hostile = value_in(page.hostile)});
    }
  });
  return found;
}

}  // namespace clan::tool
