// A completion queue: the program's handle, its entries, and the VIs that may have more.
#pragma once

#include <clan/event_queue.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "provider.h"

namespace clan::via {

/// A completion queue: an entry for each descriptor, whatever events the engine merges.
struct Cq : Object {
  static constexpr std::uint32_t kMagic = 0x71637670;
  Cq() : Object(kMagic) {}
  struct Entry {
    Vi* vi = nullptr;
    bool receive = false;
  };
  void push(Vi& vi, bool receive);
  bool take(Entry* entry);
  /// The same, and checks all VIs that may have more.
  bool find(Entry* entry);
  /// At a glance.
  bool is_empty() const { return count.load(std::memory_order_relaxed) == 0; }  // relaxed: a hint
  /// Has the VIs that events are of make progress; without any, those that may have more().
  void serve(std::span<const Event> events);
  /// VIs have had a message, behind which there may be another one.
  bool more() const { return has_again.load(std::memory_order_relaxed); }  // relaxed: a hint
  void poll();
  /// False: the time is over, or `ends` is set.
  bool wait(std::uint64_t deadline_ns, const std::atomic<bool>* ends, Entry* entry);
  void add(Vi&vi, bool receives), remove(Vi&vi, bool receives);

  Nic* nic = nullptr;
  bool network = false;  ///< as in Provider
  std::unique_ptr<Place> place;
  BriefLock mutex;  ///< the entries; a leaf
  Fifo<Entry> entries;
  std::atomic<std::size_t> count{0};
  std::size_t capacity = 0;
  BriefLock members_mutex;   ///< taken before a VI's
  std::vector<Vi*> members;  ///< by the tag of their events; null: free
  std::vector<Vi*> again;    ///< those with more()
  std::atomic<bool> has_again{false};
  std::uint32_t users = 0;  ///< work queues, under members_mutex
  NotifierPtr notifier;

 private:
  void serve(Vi& vi, Reports* reports);
};

}  // namespace clan::via
