#include "support/process_group.h"

#include <fmt/core.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>

#include "support/clock.h"
#include "support/cpu_time.h"
#include "support/owned.h"

namespace clan::bench {

struct SharedBlock {
  // lines 0, 1  written by every member at a meeting
  alignas(64) std::atomic<std::uint32_t> arrived{0};
  alignas(64) std::atomic<std::uint32_t> generation{0};
  // line 2  written by member 0 while probing; line 3  by member 1
  alignas(64) std::atomic<std::uint64_t> ping{0};
  alignas(64) std::atomic<std::uint64_t> pong{0};
  // written by member 0 between two meetings, read by everyone after the second
  alignas(64) std::uint64_t agreed = 0;
  bool go = true;
  bool last_kept = false;
  std::uint32_t kept = 0;
  std::uint32_t dropped = 0;
  std::uint32_t unstable = 0;
  std::array<double, kMaxSamples> probes{};

  struct alignas(64) Area {  // written by its member, read by the reporting process at the end
    std::array<Stats, kChannels> stats{};
    std::array<std::array<double, kMaxSamples>, kChannels> runs{};
    std::array<std::uint32_t, kChannels> run_count{};
    std::array<double, kMaxSamples> cpu_ns{}, operations{};  // of each kept sample
    std::array<double, kFigures> figures{};
    std::array<char, 240> failure{};
  };
  std::array<Area, kMaxMembers> areas{};
  alignas(64) std::array<std::byte, 4096> scratch{};
};

namespace {

bool pin(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int c : cores) CPU_SET(c, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

/// Two different cores for the probe, or nothing.
std::vector<int> probe_pair(const GroupOptions& options) {
  if (options.cores.size() < 2) return {};
  const int a = options.cores[0].front();
  const int b = options.cores[1].back();
  return a == b ? std::vector<int>{} : std::vector<int>{a, b};
}

constexpr int kProbeBatches = 20;
constexpr std::uint64_t kTripsPerBatch = 50;

/// Member 0's half of the probe: the median over batches of the mean round trip.
double probe_asking(SharedBlock& block) {
  std::uint64_t n = block.ping.load(std::memory_order_relaxed);
  std::vector<double> batches;
  for (int b = -1; b < kProbeBatches; ++b) {  // the first batch warms up
    const std::uint64_t start = Clock::now();
    for (std::uint64_t i = 0; i < kTripsPerBatch; ++i) {
      block.ping.store(++n, std::memory_order_release);
      Spinner spin;
      while (block.pong.load(std::memory_order_acquire) != n) spin();
    }
    if (b >= 0) batches.push_back(Clock::to_ns(Clock::now() - start) / kTripsPerBatch);
  }
  return median(std::move(batches));
}

double probe_answering(SharedBlock& block) {
  std::uint64_t n = block.pong.load(std::memory_order_relaxed);
  const std::uint64_t end = n + (kProbeBatches + 1) * kTripsPerBatch;
  while (n != end) {
    ++n;
    Spinner spin;
    while (block.ping.load(std::memory_order_acquire) != n) spin();
    block.pong.store(n, std::memory_order_release);
  }
  return 0;
}

bool probes_agree(double a, double b) { return std::max(a, b) <= kProbeTolerance * std::min(a, b); }

}  // namespace

Member::Member(SharedBlock& block, std::size_t index, const GroupOptions& options)
    : block_(block), index_(index), options_(options) {}

bool Member::spins() const { return count() == 2 && !probe_pair(options_).empty(); }

void Member::barrier() {
  const std::uint32_t seen = block_.generation.load(std::memory_order_acquire);
  if (block_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count()) {
    block_.arrived.store(0, std::memory_order_relaxed);
    block_.generation.store(seen + 1, std::memory_order_release);
    syscall(SYS_futex, &block_.generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return;
  }
  if (spins()) {
    constexpr double kSpinNs = 5e6;
    const std::uint64_t until = Clock::now() + Clock::from_ns(kSpinNs);
    Spinner spin;
    while (block_.generation.load(std::memory_order_acquire) == seen && Clock::now() < until) {
      spin();
    }
  }
  while (block_.generation.load(std::memory_order_acquire) == seen) {
    syscall(SYS_futex, &block_.generation, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  }
}

double Member::probe() {
  const auto pair = probe_pair(options_);
  if (pair.empty() || index_ > 1) return 0;
  const bool repin = options_.cores[index_].size() > 1;
  if (repin) (void)pin({pair[index_]});  // a core of those it was given when it started
  const double ns = index_ == 0 ? probe_asking(block_) : probe_answering(block_);
  if (repin) (void)pin(options_.cores[index_]);
  return ns;
}

bool Member::next_sample() {
  cpu_ended_ = cpu_ns();
  barrier();
  const double now = probe();
  if (index_ == 0) {
    if (open_) {
      const bool same_regime = now == 0 || probes_agree(last_probe_, now);
      const bool exhausted = static_cast<int>(block_.dropped) >= options_.max_dropped;
      block_.last_kept = same_regime || exhausted;
      if (block_.last_kept) {
        block_.probes[block_.kept++] = (last_probe_ + now) / 2;
        if (!same_regime) ++block_.unstable;
      } else {
        ++block_.dropped;
      }
    }
    last_probe_ = now;
    const int wanted = std::clamp(options_.samples, 1, static_cast<int>(kMaxSamples));
    block_.go = static_cast<int>(block_.kept) < wanted;
  }
  barrier();
  if (open_) commit(block_.last_kept);
  open_ = true;
  const bool go = block_.go;
  barrier();
  cpu_began_ = cpu_ns();
  return go;
}

void Member::commit(bool kept) {
  for (std::size_t c = 0; c < kChannels; ++c) {
    if (kept && !current_[c].empty()) {
      pool_[c].insert(pool_[c].end(), current_[c].begin(), current_[c].end());
      medians_[c].push_back(median(current_[c]));
    }
    current_[c].clear();
  }
  if (kept) {
    auto& area = block_.areas[index_];
    area.cpu_ns[block_.kept - 1] = cpu_ended_ - cpu_began_;
    area.operations[block_.kept - 1] = static_cast<double>(operations_);
  }
  operations_ = 0;
}

std::uint64_t Member::agree(std::uint64_t mine) {
  if (index_ == 0) block_.agreed = mine;
  barrier();
  const std::uint64_t value = block_.agreed;
  barrier();
  return value;
}

std::uint64_t Member::repeats_for(double op_ns, std::uint64_t at_most) const {
  const double wanted = options_.sample_ms * 1e6 / std::max(op_ns, 0.5);
  const std::uint64_t at_least = options_.smoke ? 2 : 8;
  return std::clamp(static_cast<std::uint64_t>(wanted), at_least, at_most);
}

void Member::set_figure(std::size_t which, double value) {
  block_.areas[index_].figures[which] = value;
}

bool Member::fail(const std::string& why) {
  auto& out = block_.areas[index_].failure;
  const std::size_t n = std::min(why.size(), out.size() - 1);
  std::memcpy(out.data(), why.data(), n);
  return false;
}

std::byte* Member::scratch() const { return block_.scratch.data(); }

void Member::publish() {
  auto& area = block_.areas[index_];
  for (std::size_t c = 0; c < kChannels; ++c) {
    area.stats[c] = summarise(std::move(pool_[c]), medians_[c]);
    area.run_count[c] = static_cast<std::uint32_t>(medians_[c].size());
    std::copy(medians_[c].begin(), medians_[c].end(), area.runs[c].begin());
  }
}

namespace {

[[noreturn]] void be_member(SharedBlock& block, std::size_t index, const GroupOptions& options,
                            pid_t parent, const std::function<bool(Member&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(3);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!pin(options.cores[index])) {
    fmt::print(stderr, "cannot run on core {}: {}\n", options.cores[index].front(),
               std::strerror(errno));
    _exit(1);
  }
  Member member(block, index, options);
  const bool ok = body(member);
  if (ok) member.publish();
  _exit(ok ? 0 : 1);
}

/// Waits until every member ended or the deadline passed; ends the rest. The answer is why not all
/// of them finished.
std::string wait_for_members(std::vector<pid_t>& pids, SharedBlock& block, double deadline_s) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const std::uint64_t deadline = monotonic_ns() + static_cast<std::uint64_t>(deadline_s * 1e9);
  std::string failure;
  std::size_t running = pids.size();
  while (running > 0 && failure.empty()) {
    const timespec second{1, 0};
    sigtimedwait(&child, nullptr, &second);
    for (std::size_t i = 0; i < pids.size(); ++i) {
      int status = 0;
      if (pids[i] <= 0 || waitpid(pids[i], &status, WNOHANG) != pids[i]) continue;
      pids[i] = -1;
      --running;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      const char* said = block.areas[i].failure.data();
      failure = WIFSIGNALED(status)
                    ? fmt::format("member {} was ended by signal {}", i, WTERMSIG(status))
                    : fmt::format("member {}: {}", i, *said != 0 ? said : "failed");
    }
    if (running > 0 && failure.empty() && monotonic_ns() >= deadline)
      failure = fmt::format("not finished after {:.0f} s", deadline_s);
  }
  for (pid_t p : pids) {
    if (p > 0 && kill(p, SIGKILL) == 0) waitpid(p, nullptr, 0);
  }
  return failure;
}

Outcome read_outcome(const SharedBlock& block, std::size_t members) {
  Outcome out;
  out.dropped = static_cast<int>(block.dropped);
  out.unstable = static_cast<int>(block.unstable);
  out.probe_ns = median({block.probes.begin(), block.probes.begin() + block.kept});
  std::vector<double> cpu;
  for (std::size_t s = 0; s < block.kept; ++s) {
    double used = 0, operations = 0;
    for (std::size_t i = 0; i < members; ++i) {
      used += block.areas[i].cpu_ns[s];
      operations += block.areas[i].operations[s];
    }
    cpu.push_back(operations > 0 ? used / operations : 0);
  }
  out.cpu_ns = median(std::move(cpu));
  for (std::size_t i = 0; i < members; ++i) {
    const auto& area = block.areas[i];
    MemberResult& r = out.members.emplace_back(MemberResult{area.stats, {}, area.figures});
    for (std::size_t c = 0; c < kChannels; ++c)
      r.runs[c].assign(area.runs[c].begin(), area.runs[c].begin() + area.run_count[c]);
  }
  return out;
}

}  // namespace

Outcome run_group(const GroupOptions& options, const std::function<bool(Member&)>& body) {
  SharedMemory memory(sizeof(SharedBlock));
  Outcome none;
  none.failure = "no memory for the group";
  if (!memory || options.cores.size() > kMaxMembers) return none;
  auto* block = new (memory.data()) SharedBlock;
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &before);
  const pid_t parent = getpid();
  std::vector<pid_t> pids;
  std::string not_forked;
  for (std::size_t i = 0; i < options.cores.size(); ++i) {
    const pid_t p = fork();
    if (p == 0) be_member(*block, i, options, parent, body);
    if (p < 0) not_forked = fmt::format("fork: {}", std::strerror(errno));
    if (p > 0) pids.push_back(p);
  }
  const std::string failure =
      wait_for_members(pids, *block, not_forked.empty() ? options.deadline_s : 0);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  Outcome out = read_outcome(*block, options.cores.size());
  out.failure = not_forked.empty() ? failure : not_forked;
  return out;
}

double probe_cores(const GroupOptions& options) {
  GroupOptions once = options;
  once.samples = 1;
  once.max_dropped = 4;
  once.deadline_s = 5;
  return run_group(once,
                   [](Member& m) {
                     while (m.next_sample()) {
                     }
                     return true;
                   })
      .probe_ns;
}

}  // namespace clan::bench
