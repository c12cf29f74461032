// QueueSide: what both sides of a distributed message queue are.
//
// One thread at a time, as with the queue that is built on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "clan/memory.h"
#include "clan/queue.h"
#include "clan/tripwire.h"
#include "clan/wait.h"
#include "engine/context_core.h"
#include "shm/ring.h"

namespace clan::engine {

constexpr std::size_t kLeastQueueRing = shm::kMinRingLines * kCacheLine;
constexpr std::size_t kMostQueueRing = std::size_t{1} << 30;
constexpr std::uint8_t kQueueRecord = 1;  ///< the type of every record of its ring

// A piece of memory that the other side writes, a piece of its memory that we write, a tripwire for
// sleeping and one for an event queue.
class QueueSide {
 public:
  const RdmaCookie& cookie() const { return own_->cookie(); }

  Status bind(EventQueue& queue, std::uint64_t tag) {
    auto tripwire = Tripwire::create(*own_, 0, cookie().length, {.persistent = true});
    if (!tripwire) return tripwire.error();
    if (auto s = tripwire->register_with(queue, tag); !s) return s;
    if (remote_) {
      if (auto s = tripwire->watch(*remote_); !s) return s;
    }
    event_ = std::move(*tripwire);
    event_->arm();
    event_->fire();  // whatever was there before
    return {};
  }

 protected:
  explicit QueueSide(Context& context, const QueueOptions& options)
      : context_(context.core()), options_(options), waiter_(context_->options().wait) {}

  Status export_own(Context& context, std::size_t bytes) {
    auto memory = Memory::allocate(bytes);
    if (!memory) return memory.error();
    auto aperture =
        Aperture::export_memory(context, *memory, 0, bytes, Rights::kWrite, options_.peers_uid);
    if (!aperture) return aperture.error();
    auto tripwire = Tripwire::create(*aperture, 0, bytes);
    if (!tripwire) return tripwire.error();
    memory_ = std::move(*memory);
    own_ = std::move(*aperture);
    tripwire_ = std::move(*tripwire);
    return {};
  }

  Status import_remote(const RdmaCookie& cookie, std::int64_t timeout_ms) {
    if (remote_) return Error{EISCONN, "the queue has the other side's cookie already"};
    if (!includes(cookie.rights, Rights::kWrite)) {
      return Error{EACCES, "the RDMA cookie of a queue must allow writing"};
    }
    auto remote = RemoteAperture::import(context_, cookie, timeout_ms, options_.peers_uid);
    if (!remote) return remote.error();
    remote_ = std::move(*remote);
    if (auto s = tripwire_->watch(*remote_); !s) return s;
    return event_ ? event_->watch(*remote_) : Status();
  }

  // Why nothing more will come. The first reason stays.
  Status die(Error why) {
    if (dead_.ok()) dead_ = why;
    return dead_;
  }
  Status break_off(const char* what) {
    count(context_->counters().hostile_peers);
    return die(Error{EPROTO, what});
  }
  Status check_remote() {
    if (!dead_) return dead_;
    if (!context_->usable()) return unusable_error();
    if (!remote_) return {};
    Status s = remote_->check();
    if (!s && (s.error().err == ESTALE || s.error().err == ECONNRESET)) return die(s.error());
    return s;
  }

  // The other side, if it sleeps, finds our export revoked. `poke_at`, `word`: what is there
  // already.
  void end(std::uint64_t poke_at, std::uint64_t word) {
    if (!own_ || !context_->usable()) return;
    event_.reset();
    tripwire_.reset();
    (void)own_->revoke();
    if (remote_ && remote_->check()) (void)remote_->publish(poke_at, word);
  }

  // Spins, then arms and sleeps until ready(). `ready` also answers true when the other side is
  // gone.
  template <typename Ready>
  Status wait_for(Ready&& ready, std::uint16_t peer_cpu, std::uint64_t deadline_ns) {
    for (;;) {
      if (!context_->usable()) return unusable_error();
      if (ready()) return {};
      Status s;
      switch (waiter_.wait(ready, {peer_cpu}, deadline_ns,
                           [&] { return sleep(ready, deadline_ns, &s); })) {
        case Waited::kReady: return {};
        case Waited::kTimedOut:
          return Error{ETIMEDOUT, "the other side of the queue did nothing in time"};
        case Waited::kAgain: break;
      }
      if (!s && s.error().err != ETIMEDOUT) return s;  // ETIMEDOUT: one last look, above
    }
  }

  static std::int64_t ms_until(std::uint64_t deadline_ns) {
    if (deadline_ns == kNoDeadline) return -1;
    const std::uint64_t now = monotonic_ns();
    return now >= deadline_ns
               ? 0
               : static_cast<std::int64_t>((deadline_ns - now + 999'999) / 1'000'000);
  }

  // Whether it did.
  template <typename Ready>
  bool sleep(Ready&& ready, std::uint64_t deadline_ns, Status* status) {
    tripwire_->arm();
    const bool sleeps = !ready();
    if (sleeps) {
      count(context_->counters().sleeps);
      *status = tripwire_->wait(ms_until(deadline_ns));
      count(context_->counters().wakeups);
    }
    tripwire_->disarm();
    (void)tripwire_->test_and_clear();
    return sleeps;
  }

  std::shared_ptr<ContextCore> context_;
  QueueOptions options_;
  std::optional<Memory> memory_;
  std::optional<Aperture> own_;
  std::optional<RemoteAperture> remote_;
  std::optional<Tripwire> tripwire_;
  std::optional<Tripwire> event_;
  Status dead_;
  Waiter waiter_;
};

}  // namespace clan::engine
