// A rule at work: its targets, which of them works, and how many connections there are.
#pragma once

#include <clan/gateway_face.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "config.h"

namespace clan::gateway {

/// A target, as it is now. Times in ms of the loop's clock.
struct Target {
  TargetName name;
  GatewayPage::Target* row = nullptr;  ///< in the shared page
  std::uint32_t connections = 0;
  bool checking = false;         ///< a check is under way
  std::uint64_t down_until = 0;  ///< it has failed: the last choice until then
};

class Route {
 public:
  /// `page`: gets a row for each target that it does not have.
  Route(const Rule& rule, GatewayPage& page);

  const Rule& rule() const { return rule_; }
  std::vector<Target>& targets() { return targets_; }

  /// The target to try next; null: all of `tried`, a bit for each, have been.
  Target* choose(std::uint64_t tried, std::uint64_t now);
  std::uint64_t bit_of(const Target& target) const {
    return std::uint64_t{1} << (&target - targets_.data());
  }
  void failed(Target& target, std::uint64_t now);
  void worked(Target& target);

  /// Counts a connection of that address. False: there are too many.
  bool enter(const Ip& source);
  void leave(const Ip& source);
  bool full() const { return rule_.most != 0 && connections_ >= rule_.most; }

  std::uint64_t next_check = 0;

 private:
  const Rule rule_;
  std::vector<Target> targets_;
  std::size_t turn_ = 0;  // of round robin
  std::uint32_t connections_ = 0;
  std::map<Ip, std::uint32_t> sources_;  // only with a limit
};

}  // namespace clan::gateway
