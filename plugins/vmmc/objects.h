// What the handles of vmmc.h are: an open VMMC, exported buffers, imported remotes. Bindings are in
// binding.h.
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
/// Changes in a forked child.
inline std::uint32_t generation() { return words::load_acquire(forks); }
/// That of this process.
VmmcPage& page();

inline void count(VmmcPage::Count& counter, std::uint64_t n = 1) {
  counter.fetch_add(n, std::memory_order_relaxed);  // relaxed: a statistic
}
inline void uncount(VmmcPage::Count& counter) {
  counter.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a statistic
}
inline int answer(const Status& status) { return status ? 0 : -status.error().err; }

/// As a program's process, of which a child has nothing.
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

/// Where a bell is, in the reserved word of a cookie (0: there is none), and in the note of a name.
using BellNumber = std::uint32_t;

/// The service by which a name is found, and the name of the aperture in its context.
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

  /// Takes what has come, without waiting for it. False: another thread was at it until then.
  bool take_arrivals(std::uint64_t deadline_ns);
  /// Sleeps until something may have come.
  void await_arrivals(std::uint64_t deadline_ns);
  /// One thread at a time uses `arrivals`. False: another one did until then.
  bool begin_receiving(std::uint64_t deadline_ns);
  void end_receiving();
  /// Runs handlers that are due; how many.
  int run_handlers();
  /// The thread that runs handlers, or a poller, looks again.
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
