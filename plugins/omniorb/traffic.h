// Traffic: the table of a process's CORBA connections that `clan stat` reads (traffic_page.h), and
// a connection's row.
//
// Thread-safety: Traffic: any thread. TrafficEntry: sent() by the thread that sends, received() by
// the one that receives.
#pragma once

#include <clan/stream.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "traffic_page.h"

namespace clan::orb {

class Traffic {
 public:
  /// Without memory for it there is no table, and nothing else changes.
  Traffic();
  ~Traffic();
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

 private:
  friend class TrafficEntry;
  TrafficRow* take();
  void give_back(TrafficRow* row);
  TrafficRow* rows() { return reinterpret_cast<TrafficRow*>(head_ + 1); }

  int memfd_ = -1;  ///< open while the table is there: the tool finds it by its name
  TrafficHead* head_ = nullptr;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
};

class TrafficEntry {
 public:
  TrafficEntry(Traffic& traffic, const PeerInfo& peer, bool client);
  ~TrafficEntry();
  TrafficEntry(const TrafficEntry&) = delete;
  TrafficEntry& operator=(const TrafficEntry&) = delete;

  void sent(std::size_t bytes) { count(row_->bytes_out, row_->messages_out, bytes); }
  void received(std::size_t bytes) { count(row_->bytes_in, row_->messages_in, bytes); }
  /// In a forked child: the row is the parent's.
  void forget() { row_ = &own_; }

 private:
  static void count(std::atomic<std::uint64_t>& bytes, std::atomic<std::uint64_t>& calls,
                    std::size_t n) {
    // relaxed: one writer; a reader of statistics
    bytes.store(bytes.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    // relaxed: the same
    calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  Traffic& traffic_;
  TrafficRow* row_;
  TrafficRow own_{};  ///< where it counts when there is no table, or no room in it
};

}  // namespace clan::orb
