#include "unet_pages.h"

#include <clan/face/unet_face.h>

#include <algorithm>

#include "own_page.h"

namespace clan::tool {
namespace {

using unet::UnetPage;
using unet::UnetRow;

}  // namespace

std::vector<UnetEndpoint> read_unet_pages(const std::vector<pid_t>& pids) {
  std::vector<UnetEndpoint> found;
  for_own_pages<UnetPage>(pids, unet::kUnetMemfdName, [&](const UnetPage& page) {
    const std::uint32_t rows = std::min<std::uint32_t>(value_in(page.rows), UnetPage::kRows);
    for (std::uint32_t i = 0; i < rows; ++i) {
      const UnetRow& row = page.row[i];
      if (value_in(row.open) == 0) continue;
      found.push_back({.pid = page.pid,
                       .channels = value_in(row.channels),
                       .emulated = value_in(row.emulated),
                       .number = value_in(row.number),
                       .sent = value_in(row.sent),
                       .sent_bytes = value_in(row.sent_bytes),
                       .received = value_in(row.received),
                       .received_bytes = value_in(row.received_bytes),
                       .dropped_buffer = value_in(row.dropped_buffer),
                       .dropped_queue = value_in(row.dropped_queue),
                       .dropped_tag = value_in(row.dropped_tag),
                       .returned = value_in(row.returned),
                       .deferrals = value_in(row.deferrals),
                       .hostile = value_in(page.hostile)});
    }
  });
  return found;
}

}  // namespace clan::tool
