// Apertures: regions of one process's memory exported to the network, and their use from afar.
//
//   owner                                              peer
//   auto a = Aperture::export_memory(ctx, memory, …)
//   cookie = a->cookie()   ──any channel──>            auto r = RemoteAperture::import(ctx, cookie)
//                                                      r->write(offset, data, n)     PIO
//   a->revoke()                                        RdmaQueue::write(*r, …)        DMA
//
// The owner sees what peers write without taking part. Synchronisation is the tripwire's business
// (tripwire.h). Source: clan-driver-interface section 2, clan-distributed-computing section 2.
#pragma once

#include <clan/context.h>
#include <clan/cookie.h>
#include <clan/memory.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace clan {

namespace engine {
class ApertureCore;
class RemoteApertureCore;
}  // namespace engine

/// Bytes that the owner of a named aperture tells each process that looks it up.
constexpr std::size_t kMaxApertureNote = 64;

/// What RemoteAperture::look_up() finds.
struct NamedAperture {
  RdmaCookie cookie;
  std::uint32_t note_bytes = 0;
  std::array<std::byte, kMaxApertureNote> note{};
};

/// A region of this process that peers may reach. Thread-safe.
class CLAN_EXPORT Aperture {
 public:
  /// Exports [offset, offset + length) of CLAN memory, which peers on this host map. `peers_uid`
  /// -1: our own user. EBUSY, EPERM: a Memory is read-only or writable. ENOSPC, ERANGE.
  static Result<Aperture> export_memory(Context& context, const Memory& memory, std::size_t offset,
                                        std::size_t length, Rights rights,
                                        std::int64_t peers_uid = -1);
  /// Exports the caller's own memory: by DMA and copying PIO, never mapped. It must stay valid
  /// until revoke() returns or the aperture is destroyed.
  static Result<Aperture> export_region(Context& context, std::span<std::byte> region,
                                        Rights rights, std::int64_t peers_uid = -1);
  Aperture(Aperture&&) noexcept = default;
  Aperture& operator=(Aperture&&) noexcept;
  /// revoke(), ignoring EBUSY.
  ~Aperture();

  /// The capability to give to peers. It may be exported to any number of them.
  const RdmaCookie& cookie() const;

  /// Takes it away from everyone: once this returns, no peer's write shows in the region. The owner
  /// must not write the region meanwhile. Peers' next accesses answer ESTALE; late PIO through an
  /// old mapping goes nowhere, which RemoteAperture::check() tells. The memory may be exported
  /// again, with a new cookie. EBUSY: another live aperture shares a page.
  Status revoke();

  /// Names it in its context: every process that may link with us for this aperture's user gets the
  /// cookie, as names are no secret. revoke() ends the name. EEXIST, EMSGSIZE.
  Status set_name(std::uint64_t name, std::span<const std::byte> note = {});

  std::span<std::byte> region() const;
  const std::shared_ptr<engine::ApertureCore>& core() const { return core_; }

 private:
  explicit Aperture(std::shared_ptr<engine::ApertureCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::ApertureCore> core_;
};

/// A region of a peer. The fast path's pointers are inline: a 64-byte write is a bounds check, the
/// stores and one load.
///
/// Thread-safety: any thread reads and writes, as ordinary memory; accesses are not ordered. Errors
/// of each: ERANGE, EACCES (no such right), ESTALE (revoked), ECONNRESET (the peer is gone).
class CLAN_EXPORT RemoteAperture {
 public:
  /// Redeems a cookie. `uid` is the owner's (-1: our own). ESTALE, EACCES (wrong key), ECONNREFUSED
  /// (the node is gone), ETIMEDOUT. A timeout of 0 asks the owner nothing: EAGAIN where its memory
  /// is not mapped yet, never with our own memory.
  static Result<RemoteAperture> import(Context& context, const RdmaCookie& cookie,
                                       std::int64_t timeout_ms = -1, std::int64_t uid = -1);
  RemoteAperture(RemoteAperture&&) noexcept = default;
  RemoteAperture& operator=(RemoteAperture&&) noexcept = default;

  /// Asks a node for the cookie of its aperture of that name. Its driver thread answers, whatever
  /// the application does, unless it is stopped. ENOENT; ECONNREFUSED: the node is gone; ETIMEDOUT.
  static Result<NamedAperture> look_up(Context& context, NodeId owner, std::uint64_t name,
                                       std::int64_t timeout_ms = -1, std::int64_t uid = -1);

  std::uint64_t size() const { return length_; }

  /// PIO write. The peer's processor is not involved; tripwires there fire if armed.
  Status write(std::uint64_t offset, const void* source, std::size_t bytes) {
    if (writes_directly_ && bytes > 0 && offset <= length_ && bytes <= length_ - offset)
        [[likely]] {
      std::memcpy(mapped_ + offset, source, bytes);
      // order: the light half of the asymmetric fence (`shm/asymmetric_fence.h`)
      std::atomic_signal_fence(std::memory_order_seq_cst);
      // relaxed: ordered by the asymmetric fence of the thread that arms
      if (armed_->load(std::memory_order_relaxed) == 0) [[likely]]
        return {};
      return after_write(offset, bytes);
    }
    return write_slowly(offset, source, bytes);
  }

  /// PIO read. Tripwires on reading fire if armed.
  Status read(std::uint64_t offset, void* destination, std::size_t bytes) {
    if (reads_directly_ && bytes > 0 && offset <= length_ && bytes <= length_ - offset) [[likely]] {
      std::memcpy(destination, mapped_ + offset, bytes);
      // order: as in write()
      std::atomic_signal_fence(std::memory_order_seq_cst);
      if (armed_->load(std::memory_order_relaxed) == 0) [[likely]]
        return {};
      return after_read(offset, bytes);
    }
    return read_slowly(offset, destination, bytes);
  }

  /// Stores one aligned 8-byte word after all that this thread has written, to announce it. The
  /// owner reads it with an acquire load.
  Status publish(std::uint64_t offset, std::uint64_t word);

  /// The mapping, or null. After plain stores call wrote(): the network cannot see them otherwise.
  /// Atomic operations on it are atomic with the owner's.
  std::byte* data() const { return mapped_; }
  Status wrote(std::uint64_t offset, std::size_t bytes) { return after_write(offset, bytes); }

  /// Returns ESTALE or ECONNRESET where it is gone. No system call. For readers that would not
  /// notice otherwise that the peer has stopped writing.
  Status check() const;

  const std::shared_ptr<engine::RemoteApertureCore>& core() const { return core_; }

 private:
  explicit RemoteAperture(std::shared_ptr<engine::RemoteApertureCore> core);
  Status after_write(std::uint64_t offset, std::size_t bytes);
  Status after_read(std::uint64_t offset, std::size_t bytes);
  Status write_slowly(std::uint64_t offset, const void* source, std::size_t bytes);
  Status read_slowly(std::uint64_t offset, void* destination, std::size_t bytes);

  std::byte* mapped_ = nullptr;
  const std::atomic<std::uint64_t>* armed_ = nullptr;
  std::uint64_t length_ = 0;
  bool writes_directly_ = false;
  bool reads_directly_ = false;
  std::shared_ptr<engine::RemoteApertureCore> core_;
};

}  // namespace clan
