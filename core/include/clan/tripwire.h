// Tripwires: "tell me when the network touches these bytes" (Riddoch et al., Tripwire, 2000/2001;
// clan-driver-interface 3.3). Set by the receiver, invisible to the sender's code.
//
//   auto t = Tripwire::create(aperture, offset, 8);
//   while (!data_is_there()) {
//     t->arm();
//     if (data_is_there()) break;       // always look once more after arming
//     t->wait();
//   }
//
// Thread-safety: any thread; one waiter per tripwire at a time.
#pragma once

#include <clan/aperture.h>
#include <clan/event_queue.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace clan {

namespace engine {
class TripwireCore;
}

struct TripwireOptions {
  bool on_write = true;
  bool on_read = false;
  /// Fires at every access while armed. Otherwise once per arm(), and for each concurrent access.
  bool persistent = false;
};

class CLAN_EXPORT Tripwire {
 public:
  /// Matches [offset, offset + length) of the aperture. Made disarmed. ERANGE, EINVAL, ENOSPC
  /// (65536 per context, 4096 per aperture).
  static Result<Tripwire> create(const Aperture& aperture, std::uint64_t offset,
                                 std::uint64_t length, const TripwireOptions& options = {});
  Tripwire(Tripwire&&) noexcept = default;
  Tripwire& operator=(Tripwire&&) noexcept;
  ~Tripwire();

  /// From now on accesses are seen. Costs a membarrier (about 1 us), unless it has been
  /// armed before and not disarmed since.
  void arm();
  void disarm();

  /// Has it fired since this was last asked? Reads and clears the state bit; no system call.
  bool test_and_clear();

  /// How often it has fired, modulo 2^32; no system call.
  std::uint32_t count() const;

  /// Sleeps until it has fired since arm(). ETIMEDOUT, EINTR, ESHUTDOWN; ESTALE: revoked.
  Status wait(std::int64_t timeout_ms = -1);

  /// Also fires when the owner of `peer` goes, if only that can write. One peer at a time.
  Status watch(const RemoteAperture& peer);

  /// Posts Event{tag, kTripwire} when it fires.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit Tripwire(std::shared_ptr<engine::TripwireCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::TripwireCore> core_;
};

}  // namespace clan
