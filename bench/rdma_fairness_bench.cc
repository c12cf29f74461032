// What do nine small users of one RDMA driver notice of a tenth that is greedy?
//
//   member 0: ten threads, each with a queue of its own           member 1: owner of the target,
//     greedy  64 requests of 1 MB outstanding all the time    ──►   asleep: 1 MB
//     small   a request of 4 KB, its completion, a pause      ──►   4 KB each
//
// rdma_fairness         time from posting to completion, all small users together; x greedy users
// rdma_fairness_pace    small requests per second beside the greedy user, % of those without it
// rdma_fairness_share   all ten always busy: % of all bytes that the nine get; 90 is their share
//
// "clan": RDMA queues of one context; "writev": threads that call process_vm_writev each for
// itself, where the kernel's scheduler decides. All on two cores.
#include <clan/rdma.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include <cstring>
#include <thread>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/pattern.h"
#include "transports/clan_transport.h"

namespace clan::bench {

namespace {

constexpr std::size_t kSmallUsers = 9;
constexpr std::size_t kSmallBytes = 4096;
constexpr std::size_t kGreedyBytes = 1 << 20;
constexpr std::size_t kGreedyOutstanding = 64;
constexpr std::size_t kSmallOutstanding = 32;  ///< when always busy
constexpr useconds_t kPauseUs = 200;
constexpr std::size_t kTargetBytes = kGreedyBytes + kSmallUsers * kSmallBytes;

/// In the group's scratch memory: where the target is, and what must be there in the end.
struct Exchange {
  RdmaCookie cookie;
  std::int32_t pid;
  std::uint64_t address;
  std::array<std::uint64_t, kSmallUsers> last;
};

/// A user's part of the work: local memory, where it goes, how much of it has gone.
struct User {
  std::vector<std::byte> memory;
  std::size_t offset = 0;
  std::size_t outstanding = 1;
  std::uint64_t done = 0;     ///< requests completed, ever
  std::vector<double> times;  ///< of this sample
  bool failed = false;
};

/// Users of queues of one context.
class ClanUsers {
 public:
  static constexpr const char* kName = "clan";
  bool own(Exchange& x, std::span<std::byte> target) {
    context_ = make_context(WaitMode::kAdaptive);
    if (!context_) return false;
    if (!keep("export", Aperture::export_region(*context_, target, Rights::kReadWrite), aperture_))
      return false;
    x.cookie = aperture_->cookie();
    return true;
  }
  bool use(const Exchange& x, std::size_t users) {
    context_ = make_context(WaitMode::kAdaptive);
    if (!context_ || !keep("import", RemoteAperture::import(*context_, x.cookie), remote_))
      return false;
    for (std::size_t i = 0; i < users; ++i) {
      auto queue = RdmaQueue::create(*context_);
      if (!queue) return complain("RDMA queue", queue.error());
      queues_.push_back(std::move(*queue));
    }
    return true;
  }
  bool post(std::size_t user, const User& u) {
    return queues_[user].write(*remote_, u.offset, u.memory.data(), u.memory.size()).ok();
  }
  /// How many completed, at least one; 0 when one of them failed.
  std::size_t wait(std::size_t user) {
    std::array<RdmaCompletion, kGreedyOutstanding> done;
    auto n = queues_[user].wait(done);
    if (!n.ok()) return 0;
    for (std::size_t i = 0; i < *n; ++i) {
      if (done[i].status != 0) return 0;
    }
    return *n;
  }

 private:
  std::unique_ptr<clan::Context> context_;
  std::optional<Aperture> aperture_;
  std::optional<RemoteAperture> remote_;
  std::vector<RdmaQueue> queues_;
};

/// Threads that copy for themselves: a request has completed when its post() returns.
class WritevUsers {
 public:
  static constexpr const char* kName = "writev";
  bool own(Exchange& x, std::span<std::byte> target) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    x.pid = getpid();
    x.address = reinterpret_cast<std::uint64_t>(target.data());
    return true;
  }
  bool use(const Exchange& x, std::size_t) {
    pid_ = x.pid;
    address_ = x.address;
    return true;
  }
  bool post(std::size_t, const User& u) {
    const iovec local{const_cast<std::byte*>(u.memory.data()), u.memory.size()};
    const iovec remote{reinterpret_cast<void*>(address_ + u.offset), u.memory.size()};
    return process_vm_writev(pid_, &local, 1, &remote, 1, 0) ==
           static_cast<ssize_t>(u.memory.size());
  }
  std::size_t wait(std::size_t) { return 1; }

 private:
  pid_t pid_ = 0;
  std::uint64_t address_ = 0;
};

/// One request at a time, each with its own stamp, and a pause after each.
template <class Users>
void be_small(Users& users, std::size_t index, User& u, std::uint64_t until) {
  do {
    stamp(u.memory, u.done + 1);
    const std::uint64_t start = Clock::now();
    u.failed = !users.post(index, u) || users.wait(index) != 1;
    if (u.failed) return;
    u.times.push_back(Clock::to_ns(Clock::now() - start));
    ++u.done;
    usleep(kPauseUs);
  } while (Clock::now() < until);
}

/// Always `u.outstanding` requests; those of the end are waited for.
template <class Users>
void be_busy(Users& users, std::size_t index, User& u, std::uint64_t until, std::uint64_t* moved) {
  std::size_t open = 0;
  for (bool on = true; on || open > 0;) {
    on = on && Clock::now() < until;
    while (on && open < u.outstanding) {
      u.failed = !users.post(index, u);
      if (u.failed) return;
      ++open;
      if (std::is_same_v<Users, WritevUsers>) break;
    }
    if (open == 0) break;
    const std::size_t n = users.wait(index);
    u.failed = n == 0;
    if (u.failed) return;
    open -= n;
    if (on) *moved += n * u.memory.size();
  }
}

enum class Way { kAlone, kBesideGreedy, kAllBusy };

template <class Users>
bool users_member(Member& m, Users& users, Way way) {
  auto& x = *reinterpret_cast<Exchange*>(m.scratch());
  if (!users.use(x, kSmallUsers + 1)) return m.fail("cannot set up RDMA");
  std::array<User, kSmallUsers + 1> all;
  for (std::size_t i = 0; i <= kSmallUsers; ++i) {
    const bool greedy = i == kSmallUsers;
    all[i].memory.assign(greedy ? kGreedyBytes : kSmallBytes, std::byte{0x5a});
    all[i].offset = greedy ? 0 : kGreedyBytes + i * kSmallBytes;
    all[i].outstanding = greedy ? kGreedyOutstanding : kSmallOutstanding;
  }
  const double sample_ns = m.options().sample_ms * 1e6 * (m.options().smoke ? 20 : 5);
  while (m.next_sample()) {
    std::array<std::uint64_t, kSmallUsers + 1> moved{};
    std::uint64_t requests = 0;
    const std::uint64_t begin = Clock::now();
    const std::uint64_t until = begin + Clock::from_ns(sample_ns);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i <= kSmallUsers; ++i) {
      const bool greedy = i == kSmallUsers;
      if (greedy && way == Way::kAlone) continue;
      threads.emplace_back([&, i, greedy] {
        if (greedy || way == Way::kAllBusy) {
          be_busy(users, i, all[i], until, &moved[i]);
        } else {
          be_small(users, i, all[i], until);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    const double seconds = Clock::ns_since(begin) / 1e9;
    double small = 0, total = 0;
    for (std::size_t i = 0; i <= kSmallUsers; ++i) {
      if (all[i].failed) return m.fail("a request failed");
      requests += all[i].times.size();
      for (double ns : all[i].times) m.record(ns);
      all[i].times.clear();
      total += static_cast<double>(moved[i]);
      if (i == kSmallUsers) continue;
      x.last[i] = all[i].done;
      small += static_cast<double>(moved[i]);
    }
    const bool busy = way == Way::kAllBusy;
    m.record(busy ? 100 * small / std::max(total, 1.0) : static_cast<double>(requests) / seconds,
             1);
    m.barrier();
  }
  return true;
}

/// Does the last request of every small user lie in the target when the sample is over?
bool owner_member(Member& m, Way way, std::span<const std::byte> target) {
  const auto& x = *reinterpret_cast<Exchange*>(m.scratch());
  while (m.next_sample()) {
    m.barrier();
    for (std::size_t i = 0; i < kSmallUsers && way != Way::kAllBusy; ++i) {
      if (!check(target.subspan(kGreedyBytes + i * kSmallBytes, kSmallBytes), x.last[i])) {
        return m.fail("a small user's last request did not arrive");
      }
    }
  }
  return true;
}

template <class Users>
std::optional<Outcome> measure(Context& context, Way way) {
  return context.run("rdma_fairness", Users::kName, "", context.on_two_cores(2), [&](Member& m) {
    auto& x = *reinterpret_cast<Exchange*>(m.scratch());
    Users users;
    std::vector<std::byte> target(m.index() == 1 ? kTargetBytes : 0);
    const bool owns = m.index() == 0 || users.own(x, target);
    m.barrier();
    if (!owns) return m.fail("cannot export the target");
    return m.index() == 0 ? users_member(m, users, way) : owner_member(m, way, target);
  });
}

template <class Users>
void measure_all(Context& context) {
  const auto add = [&](const char* benchmark, double greedy, const char* unit,
                       const Outcome& outcome, const std::vector<double>* percent = nullptr) {
    Row row = make_row(benchmark, Users::kName, greedy, unit, outcome);
    row.x_name = "greedy users";
    if (percent != nullptr) {
      row.higher_is_better = true;
      row.stats = summarise_runs(*percent);
      row.op_ns = 0;
    }
    context.results().add(row);
  };
  const auto alone = measure<Users>(context, Way::kAlone);
  const auto beside = measure<Users>(context, Way::kBesideGreedy);
  const auto busy = measure<Users>(context, Way::kAllBusy);
  if (alone) add("rdma_fairness", 0, "ns", *alone);
  if (beside) add("rdma_fairness", 1, "ns", *beside);
  if (alone && beside) {
    const double pace_alone = median(alone->members.front().runs[1]);
    std::vector<double> pace = beside->members.front().runs[1];
    for (double& p : pace) p = 100 * p / pace_alone;
    add("rdma_fairness_pace", 1, "%", *beside, &pace);
  }
  if (busy) add("rdma_fairness_share", 1, "%", *busy, &busy->members.front().runs[1]);
}

}  // namespace

void rdma_fairness(Context& context) {
  measure_all<ClanUsers>(context);
  measure_all<WritevUsers>(context);
}

}  // namespace clan::bench
