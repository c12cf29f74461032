#include "ip_pages.h"

#include <clan/face/ip_face.h>

#include <algorithm>

#include "own_page.h"

namespace clan::tool {

std::vector<IpDevice> read_ip_pages(const std::vector<pid_t>& pids) {
  std::vector<IpDevice> found;
  for_own_pages<ip::IpPage>(pids, ip::kIpMemfdName, [&](const ip::IpPage& page) {
    IpDevice& device = found.emplace_back();
    device.pid = page.pid;
    device.name = text_in(page.device);
    device.addresses = text_in(page.addresses);
    device.peers = std::min<std::uint32_t>(value_in(page.rows), ip::IpPage::kRows);
    device.dropped_sent = value_in(page.nobody) + value_in(page.groups);
    device.strangers = value_in(page.strangers);
    for (std::uint64_t i = 0; i < device.peers; ++i) {
      const ip::IpRow& row = page.row[i];
      device.peers_up += value_in(row.up) != 0 ? 1 : 0;
      device.sent += value_in(row.sent);
      device.sent_bytes += value_in(row.sent_bytes);
      device.received += value_in(row.received);
      device.received_bytes += value_in(row.received_bytes);
      device.waits += value_in(row.waits);
      device.dropped_sent += value_in(row.unreachable) + value_in(row.too_big);
      device.dropped_received +=
          value_in(row.bad_source) + value_in(row.malformed) + value_in(row.refused);
    }
  });
  return found;
}

}  // namespace clan::tool
