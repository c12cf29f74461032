// How long until a process that sleeps runs again (transports/wakeup.h).
//
// "clan" is a stream whose receiver never spins, "clan, tripwire" a PIO write into an armed range.
#include <clan/tripwire.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include "benchmarks.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/wakeup.h"

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
  std::string prepare() { return page_.prepare(); }
  bool open(Side side) {
    return page_.open(side, WaitMode::kSleep) &&
           (side == Side::kClient ||
            keep("tripwire", Tripwire::create(page_.aperture(), 0, sizeof(std::uint64_t)),
                 tripwire_));
  }
  bool sleep() {
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(page_.data());
    while (word.load(std::memory_order_acquire) == seen_) {
      tripwire_->arm();
      if (word.load(std::memory_order_acquire) != seen_) break;
      if (!tripwire_->wait().ok()) return false;
    }
    ++seen_;
    return true;
  }
  bool ring() { return page_.remote().publish(0, ++rung_).ok(); }

 private:
  RemotePage page_;
  std::optional<Tripwire> tripwire_;
  std::uint64_t seen_ = 0;
  std::uint64_t rung_ = 0;
};

}  // namespace

// A wake-up costs a hundred cache-line trips: the regime does not decide it, so each variant is a
// point of its own.
void wakeup(Context& context) {
  const auto over = [&](auto make) {
    context.point({wakeup_variant([=] { return MessageSleeper(make()); })});
  };
  context.point({wakeup_variant([] { return FutexSleeper(); })});
  context.point({wakeup_variant([] { return EventfdSleeper(); })});
  over([] { return ClanStream(WaitMode::kSleep, "clan"); });
  context.point({wakeup_variant([] { return TripwireSleeper(); })});
  over(kernel(Family::kTcp, Wait::kBlock));
  over(kernel(Family::kUnixStream, Wait::kBlock));
}

}  // namespace clan::bench
