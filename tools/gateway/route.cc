#include "route.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace clan::gateway {
namespace {

// relaxed: counters and names that this process alone writes; a reader may see them late.
GatewayPage::Target* row_of(const std::string& name, GatewayPage& page) {
  const std::uint32_t known = page.targets_known.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < known; ++i) {
    if (name.substr(0, sizeof page.targets[i].name - 1) == page.targets[i].name)
      return &page.targets[i];
  }
  static GatewayPage::Target nowhere;
  if (known == GatewayPage::kMostTargets) return &nowhere;
  GatewayPage::Target& row = page.targets[known];
  name.copy(row.name, sizeof row.name - 1);
  page.targets_known.store(known + 1, std::memory_order_relaxed);
  return &row;
}

}  // namespace

Route::Route(const Rule& rule, GatewayPage& page, std::shared_ptr<Counts> counts)
    : rule_(rule), counts_(std::move(counts)) {
  for (const TargetName& name : rule.targets)
    targets_.push_back({.name = name, .row = row_of(name.text, page)});
}

Target* Route::choose(std::uint64_t tried, std::uint64_t now) {
  Target* best = nullptr;
  const bool in_turn = rule_.balance == Balance::kRoundRobin;
  const std::size_t begin = in_turn ? turn_++ : 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    Target& target = targets_[(begin + i) % targets_.size()];
    if ((tried & bit_of(target)) != 0) continue;
    const bool down = target.down_until > now;
    const bool better = best == nullptr || down < (best->down_until > now) ||
                        (down == (best->down_until > now) && rule_.balance == Balance::kLeast &&
                         target.connections < best->connections);
    if (better) best = &target;
  }
  return best;
}

void Route::failed(Target& target, std::uint64_t now) {
  target.down_until = now + std::max(rule_.retry_ms, 2 * rule_.check_ms);
  target.row->works.store(0, std::memory_order_relaxed);
  target.row->failures.fetch_add(1, std::memory_order_relaxed);
}

void Route::worked(Target& target) {
  target.down_until = 0;
  target.row->works.store(1, std::memory_order_relaxed);
}

bool Route::enter_source(const Ip& source) {
  std::uint32_t& count = counts_->sources[source];
  if (rule_.most_of_source != 0 && count >= rule_.most_of_source) return false;
  ++count;
  return true;
}

void Route::leave_source(const Ip& source) {
  const auto found = counts_->sources.find(source);
  if (found != counts_->sources.end() && --found->second == 0) counts_->sources.erase(found);
}

}  // namespace clan::gateway
