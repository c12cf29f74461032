// PathStatsPage: the page of a node's paths that `clan stat` reads (clan/face/path_page.h).
//
//   node's mutex --> [ page: which link has which row ] --> memfd --> any process that may look
//
// Costs a counter's load for each peer, and a few stores for those that were active: before the
// thread in charge sleeps, and now and then while threads poll. Under the node's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/mapping.h"
#include "clan/face/path_page.h"
#include "link/udp/wire/security.h"

namespace clan::udp {

class UdpLink;

class PathStatsPage {
 public:
  static Result<std::unique_ptr<PathStatsPage>> create(Mode mode);

  void set_port(std::uint16_t port);
  void add(const UdpLink* link);
  void remove(const UdpLink* link);
  /// What has changed.
  void show();
  /// The same, unless it was done a moment ago.
  void show_now_and_then(std::uint64_t now) {
    if (now < next_) return;
    next_ = now + kBetween;
    show();
  }
  void abandon_after_fork();

 private:
  static constexpr std::uint64_t kBetween = 10'000'000;
  struct Entry {
    const UdpLink* link = nullptr;
    std::uint64_t packets = 0;  ///< sent and received, when it was shown last
  };

  PathStatsPage(Fd file, Mapping memory) : file_(std::move(file)), memory_(std::move(memory)) {}
  PathPage& page() { return *reinterpret_cast<PathPage*>(memory_.data()); }
  void write(std::size_t row, const PathValues& values);

  Fd file_;
  Mapping memory_;
  std::array<Entry, PathPage::kRows> entries_;
  std::uint64_t next_ = 0;
};

}  // namespace clan::udp
