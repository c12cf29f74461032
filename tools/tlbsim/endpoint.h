// What every workload is made of: random numbers, and the memory of a process as its NIC knows it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "trace.h"

namespace clan::tlbsim {

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kSmallMessage = 64;  ///< small messages are sent from one page of these

/// splitmix64: the same on every machine, which the standard's distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) {
    return least + below(most - least + 1);
  }

 private:
  std::uint64_t state_;
};

/// One process's memory as its NIC knows it: receive buffers, a page of small message buffers, then
/// the program's own arrays. Silent for the nodes that are not recorded.
class Endpoint {
 public:
  Endpoint(std::uint32_t pid, const Sink* sink) : pid_(pid), sink_(sink) {}

  /// Where the next array lies; arrays follow each other, on page boundaries.
  std::uint64_t place(std::uint64_t bytes) {
    return std::exchange(free_, free_ + (bytes + kPage - 1) / kPage * kPage);
  }
  void send_small(std::uint64_t bytes = kSmallMessage) {
    std::uint64_t slot = small_++ % (kPage / kSmallMessage);
    emit(Op::kRead, kSmallBase + slot * kSmallMessage, bytes);
  }
  /// From where the data lies, in messages that fit a receive buffer. Returns how many.
  std::uint64_t send(std::uint64_t vaddr, std::uint64_t bytes) {
    std::uint64_t messages = 0;
    for (std::uint64_t done = 0; done < bytes; done += kPage, ++messages) {
      emit(Op::kRead, vaddr + done, std::min(kPage, bytes - done));
    }
    return messages;
  }
  void receive(std::uint64_t messages = 1) {
    for (; messages != 0; --messages) {
      emit(Op::kReceive, kBase + received_++ % kReceiveBuffers * kPage, kPage);
    }
  }

 private:
  static constexpr std::uint64_t kBase = 0x10000000;
  static constexpr std::size_t kReceiveBuffers = 64;  // of one page
  static constexpr std::uint64_t kSmallBase = kBase + kReceiveBuffers * kPage;
  void emit(Op op, std::uint64_t vaddr, std::uint64_t bytes) {
    if (sink_ != nullptr) (*sink_)({pid_, op, vaddr, bytes});
  }
  std::uint32_t pid_;
  const Sink* sink_;
  std::uint64_t free_ = kSmallBase + kPage;
  std::uint64_t small_ = 0;
  std::uint64_t received_ = 0;
};

/// The nodes of a parallel program; node 0 is recorded.
inline std::vector<Endpoint> make_nodes(std::size_t count, const Sink& sink) {
  std::vector<Endpoint> nodes;
  for (std::size_t n = 0; n < count; ++n) {
    nodes.emplace_back(static_cast<std::uint32_t>(n), n == 0 ? &sink : nullptr);
  }
  return nodes;
}

}  // namespace clan::tlbsim
