// VIs as the measuring loops see them: one connection, and many behind one completion queue. Only
// the calls of vipl.h.
#pragma once

#include <vipl.h>

#include <cstring>
#include <memory>

#include "transports/transport.h"

namespace clan::bench {

/// Done in a loop, or Wait.
enum class ViaWait { kPoll, kWait };
std::string via_name(ViaWait wait);

/// A NIC with registered memory for descriptors and small messages.
class ViaNic {
 public:
  explicit ViaNic(std::size_t slots, std::size_t slot_bytes);
  ViaNic(const ViaNic&) = delete;
  ViaNic& operator=(const ViaNic&) = delete;
  VIP_NIC_HANDLE nic = nullptr;

  std::byte* slot(std::size_t i) {
    return memory_ + slots_ * 2 * sizeof(VIP_DESCRIPTOR) + i * bytes_;
  }
  /// For a slot, or for memory that is registered once and stays.
  VIP_DESCRIPTOR* send(std::size_t i, const void* data, std::size_t bytes, VIP_MEM_HANDLE memory);
  VIP_MEM_HANDLE handle = 0;
  VIP_MEM_HANDLE register_once(const void* data, std::size_t bytes);

  VIP_VI_HANDLE make_vi(VIP_CQ_HANDLE receives);
  /// A receive into the slot of that number.
  bool post(VIP_VI_HANDLE vi, std::size_t i, std::size_t slot_number);
  bool connect(VIP_VI_HANDLE vi, Side side, const std::string& name);

 private:
  VIP_DESCRIPTOR* fill(std::size_t i, const void* data, std::size_t bytes, VIP_MEM_HANDLE memory);
  struct Known {
    const void* data;
    std::size_t bytes;
    VIP_MEM_HANDLE handle;
  };
  std::size_t slots_, bytes_;
  std::byte* memory_ = nullptr;
  std::vector<Known> known_;
};

/// Round trips: two receives are posted, first into memory of this end's, then into the buffer of
/// recv(); one that is full is posted again behind the next send, as the peer has the other one.
class ViaEnd {
 public:
  ViaEnd(std::unique_ptr<ViaNic> nic, VIP_VI_HANDLE vi, ViaWait wait)
      : nic_(std::move(nic)), vi_(vi), wait_(wait) {}
  bool send(std::span<const std::byte> message);
  bool recv(std::span<std::byte> message);

 private:
  std::unique_ptr<ViaNic> nic_;
  VIP_VI_HANDLE vi_;
  ViaWait wait_;
  VIP_DESCRIPTOR* full_ = nullptr;
};

class ViaTransport : public Named {
 public:
  explicit ViaTransport(ViaWait wait) : wait_(wait) {}
  std::string name() const { return via_name(wait_); }
  std::optional<ViaEnd> open(Side side);

 private:
  ViaWait wait_;
};

/// One way, as the paper's figure 6 has it: some buffers at the receiver, and credits back, one
/// message for half of them.
class ViaStream {
 public:
  ViaStream(std::unique_ptr<ViaNic> nic, VIP_VI_HANDLE vi, std::size_t bytes, std::size_t buffers);
  /// Sender: when there is a credit.
  bool send(std::span<const std::byte> message);
  /// Receiver: the next message, where it lies; release() gives its buffer and a credit back.
  std::span<const std::byte> next();
  bool release();
  /// With a copy, as the common loops have it.
  bool recv(std::span<std::byte> message) {
    const auto from = next();
    if (from.size() != message.size()) return false;
    std::memcpy(message.data(), from.data(), from.size());
    return release();
  }

 private:
  bool take_credit();
  std::unique_ptr<ViaNic> nic_;
  VIP_VI_HANDLE vi_;
  std::size_t bytes_, buffers_, credits_ = buffers_, released_ = 0, sending_ = 0;
  std::size_t credit_ = std::max<std::size_t>(buffers_ / 2, 1);  ///< of one message
  VIP_DESCRIPTOR* front_ = nullptr;
};

class ViaHub {
 public:
  ViaHub(std::unique_ptr<ViaNic> nic, VIP_CQ_HANDLE cq, std::vector<VIP_VI_HANDLE> vis,
         ViaWait wait);
  std::size_t wait(std::span<std::uint32_t> ready);
  bool send(std::uint32_t i, std::span<const std::byte> message);
  bool recv(std::uint32_t i, std::span<std::byte> message);

 private:
  std::unique_ptr<ViaNic> nic_;
  VIP_CQ_HANDLE cq_;
  std::vector<VIP_VI_HANDLE> vis_;
  ViaWait wait_;
};

class ViaHubTransport : public Named {
 public:
  explicit ViaHubTransport(ViaWait wait) : wait_(wait) {}
  std::string name() const { return via_name(wait_); }
  std::optional<ViaHub> open(Side side, std::size_t connections);

 private:
  ViaWait wait_;
};

/// A stream for one_way measurements of its own (via_bench.cc).
class ViaStreamTransport : public Named {
 public:
  explicit ViaStreamTransport(std::size_t buffers) : buffers_(buffers) {}
  std::string name() const { return "via"; }
  std::optional<ViaStream> open(Side side);

 private:
  std::size_t buffers_;
};

}  // namespace clan::bench
