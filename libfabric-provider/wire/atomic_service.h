// Atomic operations at the owner of the memory: what peers ask for, carried out step by step.
//
// A short one (Op::kAtomic) is answered at once. A long one (Op::kLongAtomic) is worked on in steps
// of 8 KiB: operands are copied, carried out and answered. One with more than kMostAtOnce bytes of
// results goes on only while there is room for them at the peer; the transport keeps it with the
// peer until then. Everything that a peer says is checked here. An AtomicHost is the rest of the
// world, so a test needs no peer.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "system/atomic_types.h"
#include "system/info.h"
#include "wire/wire.h"

namespace clan::ofi {

class AtomicHost {
 public:
  // Memory that peers may reach, by its key. Each 0, FI_ENOKEY or FI_EACCES.
  virtual int find(std::uint64_t key) = 0;
  virtual int allows(std::uint64_t key, std::uint64_t address, std::uint64_t length,
                     std::uint64_t access) = 0;
  virtual int apply(std::uint64_t key, std::uint64_t address, fi_datatype type, fi_op op,
                    AtomicKind kind, const std::byte* operands, const std::byte* comparands,
                    std::byte* found, std::size_t count) = 0;
  /// The region of that key has been accessed. `what`: FI_REMOTE_READ or FI_REMOTE_WRITE.
  virtual void note_region(std::uint64_t key, std::uint64_t what) = 0;
  /// So has memory of the endpoint of that receive context.
  virtual void note_endpoint(std::uint16_t context, std::uint64_t what) = 0;
  // A request that still lies with its sender. 0 or an errno.
  virtual int read(const SetAside& aside, std::uint64_t offset, std::span<std::byte> to) = 0;
  virtual void finish(const SetAside& aside) = 0;
  virtual void reply(std::span<const std::byte> message) = 0;

 protected:
  ~AtomicHost() = default;
};

/// Answers Op::kAtomic. `bytes`: what follows the header.
void serve_atomic(AtomicHost& host, const WireHeader& header, std::span<const std::byte> bytes);

/// A request of Op::kLongAtomic, and how far it is.
class LongAtomic {
 public:
  /// `aside`: the operands are with their sender; else they are `body`.
  LongAtomic(const WireHeader& header, std::optional<SetAside> aside,
             std::span<const std::byte> body)
      : header_(header), aside_(aside), body_(body) {}

  /// What is asked for, and whether all of it can be done: what is refused has done nothing. 0 or
  /// FI_...
  int check(AtomicHost& host, const AtomicRequest& request);
  bool has_many_results() const { return result_bytes() > kMostAtOnce; }
  /// The body must outlive its message from now on.
  void keep_body();
  /// Goes on until it is finished, and then answers; or until `may_go_on` says no. True: finished.
  template <typename MayGoOn>
  bool run(AtomicHost& host, MayGoOn&& may_go_on) {
    int err = 0;
    while (err == 0 && !finished()) {
      if (!may_go_on()) return false;
      err = step(host);
    }
    conclude(host, err);
    return true;
  }
  /// Answers how it has ended.
  void conclude(AtomicHost& host, int err);

 private:
  std::uint64_t body_bytes() const { return aside_ ? aside_->size() : body_.size(); }
  std::uint64_t result_bytes() const { return kind_ == AtomicKind::kWrite ? 0 : count_ * size_; }
  bool finished() const { return target_ == target_count_; }
  int read_body(AtomicHost& host, std::uint64_t offset, std::byte* to, std::size_t length) const;
  int read_targets(AtomicHost& host, const AtomicRequest& request);
  int step(AtomicHost& host);
  int apply_next(AtomicHost& host, const AtomicTarget& target);
  std::uint64_t what() const { return op_ == FI_ATOMIC_READ ? FI_REMOTE_READ : FI_REMOTE_WRITE; }

  WireHeader header_;
  fi_datatype type_ = FI_UINT64;
  fi_op op_ = FI_SUM;
  AtomicKind kind_ = AtomicKind::kWrite;
  std::size_t size_ = 0;  ///< of a value
  AtomicTarget targets_[kIovLimit];
  std::size_t target_count_ = 1;
  std::uint64_t count_ = 0;  ///< values of all targets
  std::uint64_t head_ = 0;   ///< bytes of the body before the operands
  std::optional<SetAside> aside_;
  std::span<const std::byte> body_;
  std::vector<std::byte> kept_;  ///< what `body_` shows, after keep_body()

  std::size_t target_ = 0;  ///< at work on this one
  std::uint64_t at_ = 0;    ///< values of that one done
  std::uint64_t done_ = 0;  ///< of all
};

}  // namespace clan::ofi
