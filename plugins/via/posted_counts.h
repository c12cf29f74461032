// PostedCounts: how many buffers each VI of this process has posted, in memory that peers of this
// host map for reading: the head of the paper's cookie queue (via-over-clan 3.3.1). A line for each
// VI, so that posting to one disturbs no other's peer.
#pragma once

#include <clan/aperture.h>
#include <clan/memory.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace clan::via {

class PostedCounts {
 public:
  using Count = std::atomic<std::uint32_t>;
  explicit PostedCounts(Context& context) {
    auto memory = clan::Memory::allocate(std::size_t{kMost} * kLine);
    if (!memory) return;
    auto shown = Aperture::export_memory(context, *memory, 0, memory->size(), Rights::kRead);
    if (!shown) return;
    memory_ = std::move(*memory);
    shown_ = std::move(*shown);
  }
  /// 0, and given back with give_back(). Null: there is none left.
  Count* take() {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Count* const count = free_.back();
      free_.pop_back();
      return count;
    }
    return shown_ && used_ < kMost ? new (memory_->data() + used_++ * kLine) Count(0) : nullptr;
  }
  void give_back(Count* count) {
    // relaxed: a peer that still looks has no connection any more
    count->store(0, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    free_.push_back(count);
  }
  /// For the peer, and for at() there.
  const RdmaCookie& cookie() const { return shown_->cookie(); }
  std::uint32_t number(const Count* count) const {
    return static_cast<std::uint32_t>(
        (reinterpret_cast<const std::byte*>(count) - memory_->data()) / kLine);
  }
  /// Null: the peer has none of that number, or its memory cannot be mapped.
  static const Count* at(const RemoteAperture& theirs, std::uint32_t number) {
    const bool is_there = theirs.data() != nullptr && number < theirs.size() / kLine;
    return is_there ? reinterpret_cast<const Count*>(theirs.data() + number * kLine) : nullptr;
  }

 private:
  static constexpr std::uint32_t kMost = 16384, kLine = 64;
  std::optional<clan::Memory> memory_;
  std::optional<Aperture> shown_;
  std::mutex mutex_;
  std::vector<Count*> free_;
  std::uint32_t used_ = 0;
};

}  // namespace clan::via
