// The objects behind the handles of vmmc.h: an open VMMC, exported buffers, imported remotes.
// Bindings are in binding.h.
//
// Locks, in the order in which they are taken: Transfers::mutex_; vmmc::mutex; Bells::mutex_.
// Handlers run with none of them held.
#pragma once

#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/detail/clock.h>
#include <clan/detail/words.h>
#include <clan/endpoint.h>
#include <clan/face/vmmc_face.h>
#include <clan/message.h>
#include <vmmc.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bells.h"
#include "transfers.h"

namespace clan::vmmc {

class Flusher;

inline std::atomic<std::uint32_t> forks{1};
/// Returns a number that changes in a forked child.
inline std::uint32_t generation() { return words::load_acquire(forks); }
/// Returns the counters of this process, which `clan stat` reads.
VmmcPage& page();

inline void count(VmmcPage::Count& counter, std::uint64_t n = 1) {
  counter.fetch_add(n, std::memory_order_relaxed);  // relaxed: a statistic
}
inline void uncount(VmmcPage::Count& counter) {
  counter.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a statistic
}
inline int answer(const Status& status) { return status ? 0 : -status.error().err; }

/// An object that a forked child of its process cannot use.
struct Object {
  std::uint32_t generation = vmmc::generation();
  bool usable() const { return generation == vmmc::generation(); }
};
template <typename T>
int check(const T* object) {
  if (object == nullptr) return -EINVAL;
  return object->usable() ? 0 : -ESHUTDOWN;
}

std::int64_t milliseconds_until(std::uint64_t deadline_ns);

/// The endpoint of a buffer's notifications, in the reserved word of a cookie and in the note of a
/// name; 0: there is none.
using BellNumber = std::uint32_t;

/// Return the service by which importers find a name, and the name of its aperture.
std::string service_of(const char* name);
std::uint64_t hash_of(const char* name);

}  // namespace clan::vmmc

struct vmmc_buffer : clan::vmmc::Object {
  struct Arrival {
    std::uint64_t offset = 0, bytes = 0;
  };
  struct Place {
    std::byte* address = nullptr;
    std::size_t bytes = 0;
  };

  vmmc_t* v = nullptr;
  std::optional<clan::Aperture> aperture;
  std::optional<clan::OobEndpoint> name;  ///< by which it is found
  vmmc_handler_t handler = nullptr;
  void* context = nullptr;
  // Under vmmc::mutex.
  vmmc_state_t state = VMMC_DELIVER;
  std::deque<Arrival> pending;
  std::deque<Place> redirected;
  std::uint64_t lost = 0;               ///< since the last call of the handler
  std::uint64_t arrived = 0, told = 0;  ///< told: to vmmc_suspend()
  bool listed = false;                  ///< in vmmc::ready
  bool ended = false;
  std::optional<std::thread::id> runner;   ///< the thread that is in the handler
  std::atomic<std::uint32_t> landings{0};  ///< bindings that take over what peers send to it

  std::span<std::byte> region() const { return aperture->region(); }
  bool has_to_run() const { return state == VMMC_DELIVER && !pending.empty(); }
};

struct vmmc_remote : clan::vmmc::Object {
  vmmc_t* v = nullptr;
  std::optional<clan::RemoteAperture> aperture;
  std::shared_ptr<clan::vmmc::Bell> bell;  ///< null: notifications of it go nowhere
  std::uint64_t key = 0;
  std::atomic<std::uint32_t> bindings{0};
  std::atomic<std::uint32_t> under_way{0};  ///< transfers; changed under Transfers::mutex_
};

struct vmmc : clan::vmmc::Object {
  vmmc(clan::Context made, clan::MessageEndpoint bell, clan::MessageEndpoint rings, bool polled);
  ~vmmc();

  /// Queues the notifications that have arrived. False: another thread did so until the deadline.
  bool take_arrivals(std::uint64_t deadline_ns);
  /// Sleeps until a notification may have arrived.
  void await_arrivals(std::uint64_t deadline_ns);
  /// Lets one thread at a time use `arrivals`. False: another one used it until the deadline.
  bool begin_receiving(std::uint64_t deadline_ns);
  void end_receiving();
  /// Runs the handlers that are due, and returns their number.
  int run_handlers();
  /// Makes the thread that runs handlers, or a poller, check again.
  void nudge();

  clan::Context context;
  const bool polled;  ///< handlers run in vmmc_poll() only
  clan::vmmc::Bells bells;
  clan::vmmc::Transfers transfers;
  std::unique_ptr<clan::vmmc::Flusher> flusher;
  std::atomic<std::uint32_t> users{0};  ///< buffers, remotes and bindings

  clan::MessageEndpoint arrivals;  ///< notifications of all importers
  std::atomic<bool> ends{false}, has_fd{false};
  std::thread thread;

  std::mutex mutex;  ///< what is below, and of buffers
  std::condition_variable changed;
  std::unordered_map<std::uint64_t, std::shared_ptr<vmmc_buffer>> buffers;  ///< by key
  std::deque<std::shared_ptr<vmmc_buffer>> ready;                           ///< has_to_run()
  bool blocked = false;
  bool receiving = false;  ///< a thread uses `arrivals`
  std::map<void*, clan::Memory> memories;
  std::vector<std::pair<std::byte*, std::size_t>> bound;  ///< memory of bindings

 private:
  void run();
  void accept(std::span<const std::byte> message);
};
