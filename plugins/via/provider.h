// What there is one of in a process: the context, the table of registered memory, the RDMA queues,
// the thread that finishes what no call of the program is there to finish. And the objects that
// programs have handles of, but for VIs (vi.h).
#pragma once

#include <clan/aperture.h>
#include <clan/context.h>
#include <clan/detail/brief_lock.h>
#include <clan/detail/words.h>
#include <clan/face/via_face.h>
#include <vipl.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bulk.h"
#include "fifo.h"
#include "place.h"
#include "posted_counts.h"
#include "wire.h"

namespace clan::via {

class Vi;

/// Changes in a forked child.
inline std::atomic<std::uint32_t> forks{1};
inline std::uint32_t generation() { return words::load_acquire(forks); }

/// The kind of an object, and of which process it is: a forked child does not use its parent's.
struct Object {
  explicit Object(std::uint32_t kind);
  std::uint32_t magic, generation;
};

struct Ptag : Object {
  static constexpr std::uint32_t kMagic = 0x67617470;
  Ptag() : Object(kMagic) {}
  std::atomic<std::uint32_t> users{0};  ///< VIs and registrations
};

struct Nic : Object {
  static constexpr std::uint32_t kMagic = 0x63696e76;
  Nic() : Object(kMagic) {}
  std::string name;
  std::array<std::uint8_t, kHostBytes> address{};
  void use() { words::add(users, 1u); }
  void leave() { words::subtract(users, 1u); }
  std::atomic<std::uint32_t> users{0};  ///< VIs, CQs, tags, registrations, errors
  std::atomic<bool> names{false};       ///< between VipNSInit() and VipNSShutdown()
  std::mutex mutex;
  VIP_ERROR_HANDLER handler = nullptr;
  VIP_PVOID handler_context = nullptr;
};

/// Errors that have been found and not reported yet: that is done with no lock held. Each uses its
/// NIC.
using Reports = std::vector<VIP_ERROR_DESCRIPTOR>;
void tell(Reports& reports);

/// Tasks that VipSendNotify() and its like have left, and the thread that waits for them
/// (notify.cc).
class Notifier;
struct NotifierDeleter {
  void operator()(Notifier* notifier) const;
};
using NotifierPtr = std::unique_ptr<Notifier, NotifierDeleter>;

/// One registration. Found by its handle without a lock; a handle is never that of another one.
struct Region {
  std::atomic<VIP_MEM_HANDLE> handle{0};  ///< 0: free
  void* address = nullptr;                ///< as registered
  /// The pages that it touches: what is checked and exported, as with a NIC that translates pages.
  /// ARMCI writes some bytes past its buffers.
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  Ptag* tag = nullptr;
  Nic* nic = nullptr;
  bool rdma_write = false, rdma_read = false;
  std::uint16_t lives = 0;
  VIP_MEM_HANDLE next_handle = 0;  ///< that it has, or is about to have
  /// for messages; announced to peers of VIs that post buffers in it
  std::optional<Aperture> receive;
  std::optional<Aperture> rdma;  ///< for RDMA; peers look it up by the handle
};

class Memory {
 public:
  static constexpr std::uint32_t kMost = 65536 - 256;
  Region* add();  ///< with a handle of its own, unpublished; null: too many
  void publish(Region&region), remove(Region&region);
  /// Null: no such registration. Takes no lock.
  Region* find(VIP_MEM_HANDLE handle) {
    Region* const region = at((handle & 0xffff) - 1);
    return region != nullptr && handle != 0 && words::load_acquire(region->handle) == handle
               ? region
               : nullptr;
  }
  /// Another number: since it was this one, memory has gone, or its tag is another.
  std::uint32_t changes() const { return words::load_acquire(changes_); }
  void change() { words::add(changes_, 1u); }
  std::mutex& mutex() { return mutex_; }  ///< held for all else

 private:
  static constexpr std::uint32_t kChunk = 256;
  Region* at(std::uint32_t number) {
    if (number >= kMost) return nullptr;
    Region* const chunk = words::load_acquire(chunks_[number / kChunk]);
    return chunk == nullptr ? nullptr : &chunk[number % kChunk];
  }
  std::array<std::atomic<Region*>, kMost / kChunk> chunks_{};
  std::mutex mutex_;  ///< changes, and the apertures
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  std::atomic<std::uint32_t> changes_{0};
};

class Provider {
 public:
  explicit Provider(Context made) : context(std::move(made)), bulk(context), counts(context) {}
  Context context;
  Memory memory;
  Bulk bulk;
  PostedCounts counts;
  /// Where threads of this process wait: it reaches them by address, and needs no link for it.
  std::mutex services_mutex;
  std::map<std::string, Address> services;
  bool network = false;
  ViaPage* page = nullptr;
};

/// That of this process, made when first asked for; null: there can be none.
Provider* provider();
/// The object behind a handle.
template <typename T>
VIP_RETURN find(VIP_PVOID handle, T** object) {
  auto* const found = static_cast<T*>(handle);
  if (found == nullptr || found->magic != T::kMagic) return VIP_INVALID_PARAMETER;
  if (found->generation != generation()) return VIP_INVALID_STATE;
  *object = found;
  return VIP_SUCCESS;
}

/// A null handle is no tag.
inline VIP_RETURN check_tag(VIP_PROTECTION_HANDLE handle) {
  Ptag* tag = nullptr;
  return handle == nullptr || find(handle, &tag) == VIP_SUCCESS ? VIP_SUCCESS : VIP_INVALID_PTAG;
}
inline void use_tag(VIP_PROTECTION_HANDLE tag) {
  if (tag != nullptr) words::add(static_cast<Ptag*>(tag)->users, 1u);
}
inline void leave_tag(VIP_PROTECTION_HANDLE tag) {
  if (tag != nullptr) words::subtract(static_cast<Ptag*>(tag)->users, 1u);
}

inline std::uint64_t deadline_of(VIP_ULONG timeout_ms) {
  return timeout_ms >= (1ul << 40) ? kNoDeadline
                                   : deadline_after_ms(static_cast<std::int64_t>(timeout_ms));
}

}  // namespace clan::via
