// What other processes see of a device: `clan ip status`, `clan ip down`.
#include <clan/face/counter_page.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../clan/stat/pages/own_page.h"
#include "page.h"

namespace clan::ip {
namespace {

using tool::value_in;

/// The pages of the devices in this network namespace, or of one of them.
tool::Pages<IpPage> pages_of(const std::string& device) {
  const std::string own = tool::read_link("/proc/self/ns/net");
  auto pages = tool::own_pages<IpPage>({}, kIpMemfdName);
  std::erase_if(pages, [&](const auto& page) {
    const std::string its = "/proc/" + std::to_string(page->pid) + "/ns/net";
    const std::string name(page->device, ::strnlen(page->device, sizeof page->device));
    return tool::read_link(its) != own || (!device.empty() && device != name);
  });
  return pages;
}

// As tool::text_in(), and for JSON.
template <std::size_t size>
std::string text(const char (&bytes)[size]) {
  std::string text = tool::text_in(bytes);
  for (char& c : text) {
    if (c == '"' || c == '\\') c = '?';
  }
  return text;
}

struct Counter {
  const char* name;
  std::atomic<std::uint64_t> IpRow::*place;
};
constexpr Counter kCounters[] = {
    {"sent", &IpRow::sent},
    {"sent_bytes", &IpRow::sent_bytes},
    {"received", &IpRow::received},
    {"received_bytes", &IpRow::received_bytes},
    {"unreachable", &IpRow::unreachable},
    {"too_big", &IpRow::too_big},
    {"waits", &IpRow::waits},
    {"bad_source", &IpRow::bad_source},
    {"malformed", &IpRow::malformed},
    {"refused", &IpRow::refused},
};

std::uint32_t rows_of(const IpPage& page) {
  return std::min<std::uint32_t>(value_in(page.rows), IpPage::kRows);
}

void print_json(const IpPage& page, bool first) {
  std::printf(
      "%s{\"device\": \"%s\", \"pid\": %u, \"addresses\": \"%s\", \"mtu\": %u, "
      "\"offloads\": %u, \"steered\": %s, \"nobody\": %lu, \"groups\": %lu, "
      "\"strangers\": %lu, \"peers\": [",
      first ? "" : ", ", text(page.device).c_str(), page.pid, text(page.addresses).c_str(),
      page.mtu, value_in(page.offloads), page.steered != 0 ? "true" : "false",
      value_in(page.nobody), value_in(page.groups), value_in(page.strangers));
  for (std::uint32_t i = 0; i < rows_of(page); ++i) {
    const IpRow& row = page.row[i];
    std::printf(
        "%s{\"address\": \"%s\", \"service\": \"%s\", \"up\": %s, \"mtu\": %u, "
        "\"offloads\": %u",
        i == 0 ? "" : ", ", text(row.address).c_str(), text(row.service).c_str(),
        value_in(row.up) != 0 ? "true" : "false", value_in(row.mtu), value_in(row.offloads));
    for (const Counter& counter : kCounters)
      std::printf(", \"%s\": %lu", counter.name, value_in(row.*counter.place));
    std::printf("}");
  }
  std::printf("]}");
}

void print_text(const IpPage& page) {
  std::printf("%s: %s, MTU %u, offloads 0x%x%s, process %u\n", text(page.device).c_str(),
              text(page.addresses).c_str(), page.mtu, value_in(page.offloads),
              page.steered != 0 ? "" : ", one queue for all peers", page.pid);
  std::printf("  packets to nobody %lu, to groups %lu; strangers %lu\n", value_in(page.nobody),
              value_in(page.groups), value_in(page.strangers));
  for (std::uint32_t i = 0; i < rows_of(page); ++i) {
    const IpRow& row = page.row[i];
    std::printf("  %s at %s: %s", text(row.address).c_str(), text(row.service).c_str(),
                value_in(row.up) != 0 ? "up" : "down");
    for (const Counter& counter : kCounters) {
      if (const auto value = value_in(row.*counter.place); value != 0)
        std::printf(", %s %lu", counter.name, value);
    }
    std::printf("\n");
  }
}

}  // namespace

IpPage& own_page() {
  static IpPage* const page = make_counter_page<IpPage>(kIpMemfdName);
  return *page;
}

int print_status(const std::string& device, bool json) {
  const auto pages = pages_of(device);
  if (json) std::printf("[");
  for (const auto& page : pages) {
    json ? print_json(*page, page == pages.front()) : print_text(*page);
  }
  if (json) std::printf("]\n");
  if (pages.empty() && !json) std::printf("no device of clan ip is up here\n");
  return pages.empty() && !device.empty() ? 1 : 0;
}

int take_down(const std::string& device) {
  constexpr int kMostMs = 10'000;
  int process = -1;
  for (const auto& page : pages_of(device)) {
    if (process < 0) process = static_cast<int>(::syscall(SYS_pidfd_open, page->pid, 0));
  }
  if (process < 0) {
    std::fprintf(stderr, "clan ip: %s is no device of clan ip in this network namespace\n",
                 device.c_str());
    return 1;
  }
  pollfd ended{process, POLLIN, 0};
  const bool down = ::syscall(SYS_pidfd_send_signal, process, SIGTERM, nullptr, 0) == 0 &&
                    ::poll(&ended, 1, kMostMs) == 1;
  if (!down) std::fprintf(stderr, "clan ip: %s does not end\n", device.c_str());
  ::close(process);
  return down ? 0 : 1;
}

}  // namespace clan::ip
