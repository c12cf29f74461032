#include "net/poller_election.h"

#include <utility>

namespace clan::preload {

bool PollerElection::begin(pid_t thread, bool may_fetch, std::uint64_t now) {
  // What it has left without a word is over.
  sleepers_.erase(thread);
  if (fetcher_ == thread) fetcher_ = 0;
  const bool alone = fetcher_ == 0 && sleepers_.empty();
  const bool often = begun_ns_ != 0 && now - begun_ns_ < kLastsNs;
  // Others do not renew the duty of one that may be gone.
  if (fetcher_ == 0) begun_ns_ = may_fetch && alone ? now : 0;
  if (may_fetch && alone && often) {
    fetcher_ = thread;
    return true;
  }
  sleepers_.insert(thread);
  return false;
}

bool PollerElection::end(pid_t thread) {
  sleepers_.erase(thread);
  if (fetcher_ != thread) return false;
  fetcher_ = 0;
  return true;
}

bool PollerElection::is_seen_to(std::uint64_t now, std::uint64_t worked_ns) const {
  if (is_wanted()) return false;
  const bool works = worked_ns != 0 && now - worked_ns < kWorksNs;
  return works || (begun_ns_ != 0 && now - begun_ns_ < kLastsNs);
}

void PollerElection::take() {
  if (fetcher_ != 0) sleepers_.insert(std::exchange(fetcher_, 0));
}

}  // namespace clan::preload
