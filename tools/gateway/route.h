// A rule at work: its targets, which of them works, and how many connections there are.
#pragma once

#include <clan/face/gateway_face.h>

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
  std::size_t address = 0;             ///< that is tried first: the one that worked last
  std::uint32_t connections = 0;
  bool checking = false;         ///< a check is under way
  std::uint64_t down_until = 0;  ///< it has failed: the last choice until then
};

/// Connections at a listener, by the address of their client. Rules that follow each other there
/// count in the same one.
struct Counts {
  std::uint32_t connections = 0;
  std::map<Ip, std::uint32_t> sources;
};

class Route {
 public:
  /// `page`: gets a row for each target that it does not have.
  Route(const Rule& rule, GatewayPage& page, std::shared_ptr<Counts> counts);

  const Rule& rule() const { return rule_; }
  std::vector<Target>& targets() { return targets_; }

  /// The target to try next; null: all of `tried`, a bit for each, have been.
  Target* choose(std::uint64_t tried, std::uint64_t now);
  std::uint64_t bit_of(const Target& target) const {
    return std::uint64_t{1} << (&target - targets_.data());
  }
  void failed(Target& target, std::uint64_t now);
  void worked(Target& target);

  const std::shared_ptr<Counts>& counts() const { return counts_; }
  void enter() { ++counts_->connections; }
  void leave() { --counts_->connections; }
  bool full() const { return rule_.most != 0 && counts_->connections >= rule_.most; }
  /// Counts a connection of that client. False: it has too many.
  bool enter_source(const Ip& source);
  void leave_source(const Ip& source);

  std::uint64_t next_check = 0;

 private:
  const Rule rule_;
  std::vector<Target> targets_;
  std::size_t turn_ = 0;  // of round robin
  const std::shared_ptr<Counts> counts_;
};

}  // namespace clan::gateway
