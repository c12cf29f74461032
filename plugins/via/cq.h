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
  /// The same, and checks the VIs that may have more.
  bool find(Entry* entry);
  /// At a glance.
  bool is_empty() const { return count.load(std::memory_order_relaxed) == 0; }  // relaxed: a hint
  /// Has the VIs that events are of make progress; without any, those that may have more().
  void serve(std::span<const Event> events);
  /// There are VIs that no event announces: they have had a message, behind which there may be
  /// another one, or a thread polls them.
  bool more() const { return has_again.load(std::memory_order_relaxed); }  // relaxed: a hint
  void poll();
  /// Has events announce what comes, before a thread waits for them.
  void expect_events();
  /// False: the time is over, or `ends` is set.
  bool wait(std::uint64_t deadline_ns, const std::atomic<bool>* ends, Entry* entry);
  void add(Vi&vi, bool receives), remove(Vi&vi, bool receives);
  void use(), leave();

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
  std::size_t turn = 0;      ///< where in `again` it was checked last
  std::atomic<bool> has_again{false};
  std::atomic<std::uint32_t> polls{0};  ///< since a thread has waited
  /// Work queues, threads that wait or call error handlers. Under members_mutex.
  std::uint32_t users = 0;
  NotifierPtr notifier;

 private:
  static constexpr std::size_t kMostEvents = 64;
  /// A VI that has a message in as many polls or fewer is polled: its peer writes no events, each
  /// of which takes five locked instructions on lines that both processes write.
  static constexpr std::uint32_t kOften = 32;
  /// Events cost less than checks of more VIs, each of which reads a line that the peer is about to
  /// write.
  static constexpr std::size_t kFew = 8;
  /// One that has none in more has events again. So have all where a thread waits as often.
  static constexpr std::uint32_t kRarely = 1024;
  bool is_rare(const Vi&vi) const, is_idle(Vi&vi);
  bool serve(Vi& vi, Reports* reports);
  void forget(const Vi* vi);
};

}  // namespace clan::via
