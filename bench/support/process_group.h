// Runs one measurement in its own processes, and cannot hang.
//
//   reporting process ── fork ──► member 0 ──┐  pinned, warmed up, in step by barriers;
//     waits, holds the   ├──────► member 1 ──┤  members 0 and 1 probe the bare cache-line round
//     watchdog           └──────► …          ┘  trip before and after each sample
//
// A member that crashes, fails or stays beyond the deadline costs one row of the table; every
// member is then killed by its own pid. Members die with the reporting process.
//
// A sample is kept when the probes on its two sides agree within 20 %: the host may move a virtual
// machine's cores at any moment, and figures from both places cannot be compared. Dropped samples
// are repeated, up to a bound, and counted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/stats.h"

namespace clan::bench {

inline constexpr std::size_t kMaxMembers = 16;
inline constexpr std::size_t kMaxSamples = 64;
inline constexpr std::size_t kChannels = 2;  ///< a member may record two quantities at once
inline constexpr std::size_t kFigures = 8;
inline constexpr std::uint64_t kMostRepeats = 200'000;
inline constexpr double kProbeTolerance = 1.20;

struct SharedBlock;

struct GroupOptions {
  std::vector<std::vector<int>> cores;  ///< one entry per member: the cores it may run on
  int samples = 9;
  int max_dropped = 18;
  double sample_ms = 20;
  double deadline_s = 60;
  bool smoke = false;
};

/// Member 0 is the client, member 1 the server.
enum class Side { kClient, kServer };

/// One measuring process's view of its group. Every method that says "all members" is a meeting
/// point: each member must call it the same number of times.
class Member {
 public:
  Member(SharedBlock& block, std::size_t index, const GroupOptions& options);

  std::size_t index() const { return index_; }
  Side side() const { return index_ == 0 ? Side::kClient : Side::kServer; }
  std::size_t count() const { return options_.cores.size(); }
  const GroupOptions& options() const { return options_; }

  /// All members: returns when all have called it.
  void barrier();

  /// All members: closes the sample before, opens the next. False when enough were kept.
  bool next_sample();

  /// All members: member 0's value reaches everyone.
  std::uint64_t agree(std::uint64_t mine);

  /// How often an operation that took `op_ns` should be repeated to fill one sample.
  std::uint64_t repeats_for(double op_ns, std::uint64_t at_most = kMostRepeats) const;

  /// A measurement of the open sample. Kept or dropped with it.
  void record(double value, std::size_t channel = 0) { current_[channel].push_back(value); }
  void reserve(std::size_t values, std::size_t channel = 0) { current_[channel].reserve(values); }

  /// That the open sample had so many operations by this member. The CPU time of all members in a
  /// sample, without probes and meetings, is divided by the operations of all.
  void did(std::uint64_t operations) { operations_ += operations; }

  /// A single figure beside the samples.
  void set_figure(std::size_t which, double value);

  /// Gives up with a reason the reporting process prints. Always false.
  bool fail(const std::string& why);

  /// 4 KB shared by the members, zero at the start.
  std::byte* scratch() const;

  /// Called by the harness after the body returned.
  void publish();

 private:
  bool spins() const;
  double probe();
  void commit(bool kept);

  SharedBlock& block_;
  std::size_t index_;
  const GroupOptions& options_;
  bool open_ = false;
  double last_probe_ = 0;
  std::array<std::vector<double>, kChannels> current_;
  std::array<std::vector<double>, kChannels> pool_;
  std::array<std::vector<double>, kChannels> medians_;
  // The open sample's CPU time of this process when it began and when it ended.
  double cpu_began_ = 0, cpu_ended_ = 0;
  std::uint64_t operations_ = 0;
};

struct MemberResult {
  std::array<Stats, kChannels> stats;
  std::array<std::vector<double>, kChannels> runs;  ///< the median of each kept sample
  std::array<double, kFigures> figures{};
};

struct Outcome {
  std::string failure;  ///< empty when every member finished
  double probe_ns = 0;  ///< median bare round trip around the kept samples; 0 when not probed
  double cpu_ns = 0;    ///< CPU time of all members for an operation, samples' median; 0: unknown
  int dropped = 0;
  int unstable = 0;  ///< samples kept although their probes disagreed: the bound was reached
  std::vector<MemberResult> members;

  bool ok() const { return failure.empty(); }
};

/// Runs `body` in one process per entry of options.cores. `body` returns false after fail().
Outcome run_group(const GroupOptions& options, const std::function<bool(Member&)>& body);

/// The bare cache-line round trip between two cores right now, in ns; 0 when it can't be measured.
double probe_cores(const GroupOptions& options);

}  // namespace clan::bench
