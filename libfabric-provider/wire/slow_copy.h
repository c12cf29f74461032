// Accesses to a peer's memory that its driver thread makes, where the kernel does not let this
// process copy, and that have not ended within the time that a call may wait.
#pragma once

#include <clan/rdma.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace clan::ofi {

struct Operation;

/// The copies of one operation, or of the small access in front.
struct SlowCopies {
  std::optional<RdmaQueue> queue;  ///< ends them when it is destroyed
  std::size_t left = 0;
  int err = 0;
  Operation* operation = nullptr;  ///< null: the small access in front
  // What the region's owner gets in the end: Op::kRmaDone.
  bool tells_owner = false;
  bool write = false;
  std::uint16_t context = 0;
  std::uint64_t key = 0, address = 0, length = 0;
  std::optional<std::uint64_t> data;
  std::uint64_t receive = 0;  ///< not 0: a message, written to where its receiver has said
};

/// Takes the completions that there are, and keeps the first failure. True when none is left to
/// come.
template <typename Queue>
bool take_copies(Queue& queue, std::size_t* left, int* err) {
  RdmaCompletion done[16];
  while (*left > 0) {
    const std::size_t n = queue.poll(done);
    if (n == 0) return false;
    for (std::size_t i = 0; i < n; ++i) {
      if (*err == 0) *err = done[i].status;
    }
    *left -= n;
  }
  return true;
}

/// Why an access that had begun has failed, as libfabric says it: 0 or -FI_...
int copy_failure(int err);

/// A peer whose driver thread did not answer is not asked again for a while: twice as long each
/// time.
class Silence {
 public:
  static constexpr std::uint64_t kFirstNs = 100'000'000, kLastNs = 3'200'000'000u;

  template <typename Clock>
  bool holds(Clock&& now_ns) const {
    return length_ != 0 && now_ns() < until_;
  }
  void begin(std::uint64_t now_ns);
  void end() { length_ = 0; }

 private:
  std::uint64_t until_ = 0, length_ = 0;
};

}  // namespace clan::ofi
