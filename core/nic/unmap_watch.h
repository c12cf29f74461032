// UnmapWatch: the one unmap monitor of a process, as a page can be watched by one only, and the
// thread that tells all that keep translations of what it has read.
//
//   application thread          thread of the watch               thread that serves a NIC
//   munmap(x)
//     sleeps                    rounds_ odd
//                               reads the event
//   munmap returns                ... each Listener: forgets x
//   posts a request             rounds_ even                      settle(): until rounds_ is even
//                                                                 look-up: misses
//
// So a request that is posted after an unmap has returned finds no entry of it. While the unmap is
// under way, another thread may be given the same address: the entry is then that of a page which
// is not there, and the NIC touches what is. As the NIC names memory by virtual addresses, it
// touches what the request asks for all the same.
//
// What a Listener does runs by the rules of nic/unmap_monitor.h: it allocates, frees and unmaps
// nothing, and waits for no lock under which somebody does.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fd.h"
#include "clan/words.h"
#include "nic/unmap_monitor.h"

namespace clan::nic {

class UnmapWatch {
 public:
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_change(const UnmapMonitor::Change& change) = 0;
    /// Nothing is watched any more: all entries are to go.
    virtual void on_end() = 0;

   private:
    friend class UnmapWatch;
    Listener* next_ = nullptr;
  };

  /// That of this process, which lives as long as somebody has it. It may not be available.
  static Result<std::shared_ptr<UnmapWatch>> get();
  ~UnmapWatch();
  UnmapWatch(const UnmapWatch&) = delete;
  UnmapWatch& operator=(const UnmapWatch&) = delete;

  bool available() const { return monitor_.available(); }
  Error why_not() const { return monitor_.why_not(); }
  UnmapMonitor& monitor() { return monitor_; }
  void add(Listener& listener);
  /// Not called any more when this returns.
  void remove(Listener& listener);

  /// True: no unmap that this thread may know of is unknown to a Listener.
  bool settled() const {
    // PAIR unmap.rounds: sees that an event has been read, if an unmap has returned for it
    return words::look(rounds_) % 2 == 0;
  }
  /// Waits for that, without a lock that a Listener takes.
  void settle() const;

 private:
  UnmapWatch() : monitor_(UnmapMonitor::open()) {}
  Status start();
  void run();

  UnmapMonitor monitor_;
  std::mutex mutex_;  ///< the list; a Listener is called under it
  Listener* first_ = nullptr;
  std::atomic<std::uint32_t> rounds_{0};  ///< odd: events have been read that are not done with
  Fd stop_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace clan::nic
