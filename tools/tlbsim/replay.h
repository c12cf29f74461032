// Replays a trace through the NIC's own Tlb, with a kernel that has every page at hand.
#pragma once

#include <clan/result.h>
#include <clan/tlb.h>

#include <array>
#include <cstdint>
#include <memory>

#include "trace.h"

namespace clan::tlbsim {

struct OpCounts {
  std::uint64_t accesses = 0;  ///< lines of the trace
  std::uint64_t pages = 0;     ///< look-ups: an access that crosses a page boundary has several
  std::uint64_t compulsory = 0;
  std::uint64_t non_compulsory = 0;
  std::uint64_t hits() const { return pages - compulsory - non_compulsory; }
};

class Replay {
 public:
  static Result<Replay> create(std::size_t primary_entries, std::size_t victim_entries);

  void access(const Access& access);

  const OpCounts& counts(Op op) const { return counts_[static_cast<std::size_t>(op)]; }
  OpCounts total() const;
  const TlbStats& stats() const { return tlb_->stats(); }
  const TlbConfig& config() const { return tlb_->config(); }

 private:
  Replay(std::unique_ptr<Pinner> pinner, std::unique_ptr<Tlb> tlb)
      : pinner_(std::move(pinner)), tlb_(std::move(tlb)) {}

  std::unique_ptr<Pinner> pinner_;  // outlives tlb_
  std::unique_ptr<Tlb> tlb_;
  std::array<OpCounts, kOps> counts_{};
};

}  // namespace clan::tlbsim
