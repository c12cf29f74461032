// How long from ringing until a process that really sleeps runs again, and what does ringing cost?
//
//   member 0                                    member 1
//   waits until /proc says member 1 sleeps      sleeper.sleep()
//   t0; sleeper.ring(); t1        ───►          … t2: writes t2 where member 0 reads it
//
// wakeup = t2 - t0, wakeup_ring_cost = t1 - t0. The sleeper's count of voluntary context switches
// must have grown with every round: a variant that polls is not measured here, it fails.
//
// "clan" is a stream whose receiver never spins, "clan, tripwire" a PIO write into an armed range.
#include <clan/aperture.h>
#include <clan/memory.h>
#include <clan/tripwire.h>
#include <fmt/core.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>

#include "benchmarks.h"
#include "support/clan_transport.h"
#include "support/clock.h"
#include "support/context.h"
#include "support/fd.h"
#include "support/kernel_transport.h"
#include "support/shared_memory.h"

namespace clan::bench {

namespace {

class FutexSleeper {
 public:
  std::string name() const { return "futex"; }
  std::string prepare() {
    memory_ = SharedMemory(4096);
    return memory_ ? "" : "no shared memory";
  }
  bool open(Side) { return true; }
  bool sleep() {
    while (word().load(std::memory_order_acquire) == seen_) {
      syscall(SYS_futex, &word(), FUTEX_WAIT, seen_, nullptr, nullptr, 0);
    }
    ++seen_;
    return true;
  }
  bool ring() {
    word().fetch_add(1, std::memory_order_release);
    return syscall(SYS_futex, &word(), FUTEX_WAKE, 1, nullptr, nullptr, 0) >= 0;
  }

 private:
  std::atomic<std::uint32_t>& word() {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data());
  }
  SharedMemory memory_;
  std::uint32_t seen_ = 0;
};

class EventfdSleeper {
 public:
  std::string name() const { return "eventfd"; }
  std::string prepare() {
    fd_.reset(eventfd(0, EFD_CLOEXEC));
    return fd_ ? "" : "no eventfd";
  }
  bool open(Side) { return true; }
  bool sleep() {
    std::uint64_t value = 0;
    return read(fd_.get(), &value, sizeof value) == sizeof value;
  }
  bool ring() {
    const std::uint64_t one = 1;
    return write(fd_.get(), &one, sizeof one) == sizeof one;
  }

 private:
  Fd fd_;
};

/// Over a Transport: the sleeper waits for a message.
template <class T>
class MessageSleeper {
 public:
  explicit MessageSleeper(T transport) : transport_(std::move(transport)) {}
  std::string name() const { return transport_.name(); }
  std::string prepare() { return transport_.prepare(message_.size()); }
  bool open(Side side) {
    end_ = transport_.open(side);
    return end_.has_value();
  }
  bool sleep() { return end_->recv(message_); }
  bool ring() { return end_->send(message_); }

 private:
  T transport_;
  decltype(std::declval<T>().open(Side::kClient)) end_;
  std::array<std::byte, 64> message_{};
};

/// The sleeper owns a word that the other side counts up by PIO.
class TripwireSleeper {
 public:
  std::string name() const { return "clan, tripwire"; }
  std::string prepare() { return page_.prepare() ? "" : "no shared memory"; }
  bool open(Side side) {
    context_ = make_context(WaitMode::kSleep);
    if (!context_) return false;
    return side == Side::kServer ? open_sleeper() : open_ringer();
  }
  bool sleep() {
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_->data());
    while (word.load(std::memory_order_acquire) == seen_) {
      tripwire_->arm();
      if (word.load(std::memory_order_acquire) != seen_) break;
      if (!tripwire_->wait().ok()) return false;
    }
    ++seen_;
    return true;
  }
  bool ring() { return remote_->publish(0, ++rung_).ok(); }

 private:
  bool open_sleeper() {
    auto memory = Memory::allocate(4096);
    if (!memory) return complain("memory", memory.error());
    memory_ = std::move(*memory);
    auto aperture = Aperture::export_memory(*context_, *memory_, 0, 4096, Rights::kReadWrite);
    if (!aperture) return complain("export", aperture.error());
    aperture_ = std::move(*aperture);
    auto tripwire = Tripwire::create(*aperture_, 0, sizeof(std::uint64_t));
    if (!tripwire) return complain("tripwire", tripwire.error());
    tripwire_ = std::move(*tripwire);
    page_.put(aperture_->cookie());
    return true;
  }
  bool open_ringer() {
    auto remote = RemoteAperture::import(*context_, page_.take());
    if (!remote) return complain("import", remote.error());
    remote_ = std::move(*remote);
    return true;
  }

  CookiePage page_;
  std::unique_ptr<clan::Context> context_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  std::optional<Tripwire> tripwire_;
  std::optional<RemoteAperture> remote_;
  std::uint64_t seen_ = 0;
  std::uint64_t rung_ = 0;
};

/// What the two members tell each other, in the group's scratch memory.
struct Exchange {
  std::atomic<std::int32_t> sleeper_pid;
  alignas(64) std::atomic<std::uint64_t> going_to_sleep;  // written by the sleeper: round number
  alignas(64) std::atomic<std::uint64_t> woken;           // written by the sleeper: round number
  std::atomic<std::uint64_t> woken_at;
};

bool sleeps(std::int32_t pid) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  std::FILE* f = std::fopen(path.data(), "re");
  if (f == nullptr) return false;
  char state = '?';
  const bool read = std::fscanf(f, "%*d (%*[^)]) %c", &state) == 1;
  std::fclose(f);
  return read && state == 'S';
}

/// Rings once the sleeper has been asleep for a while, so that its core is idle as well.
template <class Sleeper>
bool ring_once(Member& m, Sleeper& sleeper, Exchange& x, std::uint64_t round, bool record) {
  Spinner spin;
  while (x.going_to_sleep.load(std::memory_order_acquire) != round) spin();
  while (!sleeps(x.sleeper_pid.load(std::memory_order_relaxed))) spin();
  constexpr double kAsleepNs = 50'000;
  const std::uint64_t until = Clock::now() + Clock::from_ns(kAsleepNs);
  while (Clock::now() < until) {
  }
  const std::uint64_t t0 = Clock::now();
  if (!sleeper.ring()) return m.fail("ringing failed");
  const std::uint64_t t1 = Clock::now();
  while (x.woken.load(std::memory_order_acquire) != round) spin();
  const std::uint64_t t2 = x.woken_at.load(std::memory_order_relaxed);
  if (record) {
    m.record(t2 > t0 ? Clock::to_ns(t2 - t0) : 0);
    m.record(Clock::to_ns(t1 - t0), 1);
  }
  return true;
}

template <class Sleeper>
bool sleep_once(Member& m, Sleeper& sleeper, Exchange& x, std::uint64_t round) {
  x.going_to_sleep.store(round, std::memory_order_release);
  if (!sleeper.sleep()) return m.fail("sleeping failed");
  x.woken_at.store(Clock::now(), std::memory_order_relaxed);
  x.woken.store(round, std::memory_order_release);
  return true;
}

template <class Sleeper>
bool wakeup_member(Member& m, Sleeper& sleeper) {
  auto& x = *reinterpret_cast<Exchange*>(m.scratch());
  const std::uint64_t rounds = m.options().smoke ? 3 : 200;
  if (m.index() == 1) x.sleeper_pid.store(getpid(), std::memory_order_relaxed);
  std::uint64_t round = 0;
  while (m.next_sample()) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    for (std::uint64_t i = 0; i < rounds; ++i) {
      ++round;
      const bool ok = m.index() == 0 ? ring_once(m, sleeper, x, round, i > 0)
                                     : sleep_once(m, sleeper, x, round);
      if (!ok) return false;
    }
    getrusage(RUSAGE_SELF, &after);
    const auto slept = static_cast<std::uint64_t>(after.ru_nvcsw - before.ru_nvcsw);
    if (m.index() == 1 && slept < rounds) return m.fail("the sleeper did not sleep");
  }
  return true;
}

template <class Make>
Context::Variant wakeup_variant(Make make) {
  return [make](Context& context) -> std::optional<Row> {
    auto sleeper = make();
    const std::string name = sleeper.name();
    if (const std::string why = sleeper.prepare(); !why.empty()) {
      context.skip("wakeup", name, why);
      return std::nullopt;
    }
    const Outcome outcome = run_group(context.across_cores(), [&](Member& m) {
      if (!sleeper.open(m.index() == 0 ? Side::kClient : Side::kServer)) {
        return m.fail("cannot open");
      }
      return wakeup_member(m, sleeper);
    });
    if (!outcome.ok()) {
      context.failed("wakeup", name, outcome.failure);
      return std::nullopt;
    }
    Row cost = make_row("wakeup_ring_cost", name, 1, "ns", outcome);
    cost.x_name = "sleepers";
    cost.stats = outcome.members.front().stats[1];
    cost.op_ns = cost.stats.p50;
    context.results().add(cost);
    Row row = make_row("wakeup", name, 1, "ns", outcome);
    row.x_name = "sleepers";
    row.op_ns = row.stats.p50;
    return row;
  };
}

}  // namespace

void wakeup(Context& context) {
  const auto kernel = [](Family family) {
    return [=] { return MessageSleeper(KernelTransport(family, Wait::kBlock)); };
  };
  const auto clan_stream = [] { return MessageSleeper(ClanStream(WaitMode::kSleep, "clan")); };
  const std::vector<Context::Variant> variants = {
      wakeup_variant([] { return FutexSleeper(); }),
      wakeup_variant([] { return EventfdSleeper(); }),
      wakeup_variant(clan_stream),
      wakeup_variant([] { return TripwireSleeper(); }),
      wakeup_variant(kernel(Family::kTcp)),
      wakeup_variant(kernel(Family::kUnixStream)),
  };
  // A wake-up costs a hundred cache-line trips: the regime does not decide it, so no variant is
  // measured again for the sake of another.
  for (const auto& variant : variants) context.point({variant});
}

}  // namespace clan::bench
