// How long until a process that sleeps runs again (transports/wakeup.h).
//
// "clan" is a stream whose receiver never spins, "clan, tripwire" a PIO write into an armed range.
#include <clan/aperture.h>
#include <clan/memory.h>
#include <clan/tripwire.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "benchmarks.h"
#include "support/context.h"
#include "support/shared_memory.h"
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
