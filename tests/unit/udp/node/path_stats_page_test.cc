#include "link/udp/node/path_stats_page.h"

#include <clan/context.h>
#include <clan/face/network.h>
#include <clan/stream.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/context/context_core.h"
#include "link/udp/node/udp_link.h"
#include "support/pattern.h"
#include "support/streams.h"

namespace clan::test {
namespace {

ContextOptions with_paths() {
  ContextOptions options;
  options.network.enabled = true;
  options.network.mode = NetworkOptions::Mode::kOff;
  options.network.directory_port = 0;
  return options;
}

/// The pages of this process, read as `clan stat` reads them: for each context of it one.
std::vector<std::unique_ptr<PathPage>> pages() {
  std::vector<std::unique_ptr<PathPage>> found;
  DIR* directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    const std::string link = std::string("/proc/self/fd/") + entry->d_name;
    char target[256] = {};
    if (::readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::strstr(target, kPathMemfdName) == nullptr) continue;
    auto page = std::make_unique<PathPage>();
    const int fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(::pread(fd, static_cast<void*>(page.get()), sizeof *page, 0),
              static_cast<ssize_t>(sizeof *page));
    ::close(fd);
    found.push_back(std::move(page));
  }
  ::closedir(directory);
  return found;
}

/// The rows in use of the context at that port.
std::vector<PathValues> rows_of(std::uint16_t port) {
  std::vector<PathValues> rows;
  for (const auto& page : pages()) {
    EXPECT_EQ(page->magic, PathPage::kMagic);
    EXPECT_EQ(page->pid, static_cast<std::uint64_t>(::getpid()));
    if (page->port.load(std::memory_order_relaxed) != port) continue;
    for (const PathRow& row : page->rows) {
      PathValues values;
      if (read_row(row, &values) && values.port != 0) rows.push_back(values);
    }
  }
  return rows;
}

template <typename Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST(PathStatsPage, APeerIsShownWhileThereIsALinkWithIt) {
  auto a = must(Context::create(with_paths()));
  std::optional<Context> b(must(Context::create(with_paths())));
  EXPECT_TRUE(rows_of(a.network_port()).empty());
  auto listener = must(Listener::create(a, "paths"));
  const std::string name = "udp:127.0.0.1:" + std::to_string(a.network_port()) + "/paths";
  std::optional<Stream> stream(must(Stream::connect(*b, name, 10'000)));
  auto served = must(listener.accept(10'000));
  for (int i = 0; i < 50; ++i) {
    std::array<std::byte, 64> bytes{};
    ASSERT_TRUE(stream->send(bytes, 10'000).ok());
    ASSERT_TRUE(served.recv(bytes, 10'000).ok());
  }
  // Also when both have fallen silent, the figures are the last ones.
  ASSERT_TRUE(eventually([&] {
    const auto rows = rows_of(b->network_port());
    return rows.size() == 1 && rows[0].packets_sent >= 50 && rows[0].round_trip_ns > 0;
  }));
  const PathValues row = rows_of(b->network_port())[0];
  EXPECT_EQ(row.port, a.network_port());
  const std::uint8_t loopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  EXPECT_EQ(std::memcmp(row.ip, loopback, sizeof loopback), 0);
  EXPECT_EQ(row.pid, static_cast<std::uint64_t>(::getpid()));
  EXPECT_EQ(row.packets, static_cast<std::uint64_t>(PacketPath::kSockets));
  EXPECT_GE(row.packet_bytes, 1200u);
  EXPECT_GE(row.window_bytes, row.packet_bytes);
  stream.reset();
  b.reset();
  EXPECT_TRUE(eventually([&] { return rows_of(a.network_port()).empty(); }));
  EXPECT_EQ(pages().size(), 1u) << "that of the context that has ended is left";
}

TEST(PathStatsPage, APeerThatFindsNoRowIsCounted) {
  auto stats = must(udp::PathStatsPage::create(udp::Mode::kIntegrity));
  stats->set_port(4791);
  auto a = must(Context::create(with_paths()));
  auto b = must(Context::create(with_paths()));
  auto listener = must(Listener::create(a, "paths-many"));
  const std::string name = "udp:127.0.0.1:" + std::to_string(a.network_port()) + "/paths-many";
  auto stream = must(Stream::connect(b, name, 10'000));
  std::uint32_t endpoint = 0;
  auto link = b.core()->links().known(engine::service_name(::geteuid(), name), &endpoint);
  ASSERT_NE(link, nullptr);
  const auto* udp = static_cast<const udp::UdpLink*>(link.get());
  for (std::size_t i = 0; i <= PathPage::kRows; ++i) stats->add(udp);
  const auto count = [] {
    for (const auto& page : pages()) {
      if (page->port.load(std::memory_order_relaxed) != 4791) continue;
      EXPECT_EQ(page->mode, 1u);
      return page->not_shown.load(std::memory_order_relaxed);
    }
    return ~std::uint64_t{0};
  };
  EXPECT_EQ(rows_of(4791).size(), PathPage::kRows);
  EXPECT_EQ(count(), 1u);
  for (std::size_t i = 0; i <= PathPage::kRows; ++i) stats->remove(udp);
  EXPECT_EQ(rows_of(4791).size(), 0u);
  EXPECT_EQ(count(), 0u);
}

TEST(PathStatsPage, ACopyMadeWhileARowIsWrittenIsKnown) {
  PathRow row;
  PathValues values;
  EXPECT_TRUE(read_row(row, &values));
  row.end.store(1, std::memory_order_relaxed);  // the writer has begun
  EXPECT_FALSE(read_row(row, &values));
  row.begin.store(1, std::memory_order_relaxed);
  EXPECT_TRUE(read_row(row, &values));
}

}  // namespace
}  // namespace clan::test
