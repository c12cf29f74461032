#include "via/via_transport.h"

#include <cstdlib>
#include <utility>

namespace clan::bench {
namespace {

constexpr VIP_ULONG kSetUpMs = 10'000;
constexpr std::size_t kHubBytes = 64;
constexpr std::size_t kSmall = 1024;  // what MessageSource has many of

struct Net {
  Net(VIP_NIC_HANDLE nic, const std::string& name) {
    VIP_NIC_ATTRIBUTES attributes;
    (void)VipQueryNic(nic, &attributes);
    const auto length = static_cast<std::uint16_t>(name.size());
    std::memcpy(bytes, &attributes.NicAddressLen, 2);
    std::memcpy(bytes + 2, &length, 2);
    std::memcpy(bytes + 4, attributes.LocalNicAddress, attributes.NicAddressLen);
    std::memcpy(bytes + 4 + attributes.NicAddressLen, name.data(), name.size());
  }
  operator VIP_NET_ADDRESS*() { return reinterpret_cast<VIP_NET_ADDRESS*>(bytes); }
  alignas(2) unsigned char bytes[64] = {};
};

// The next completed descriptor of a queue; null: an error.
template <typename Done, typename Wait>
VIP_DESCRIPTOR* take(VIP_VI_HANDLE vi, ViaWait how, Done done, Wait wait) {
  VIP_DESCRIPTOR* d = nullptr;
  if (how == ViaWait::kWait) return wait(vi, VIP_INFINITE, &d) == VIP_SUCCESS ? d : nullptr;
  VIP_RETURN rc;
  do {
    rc = done(vi, &d);
  } while (rc == VIP_NOT_DONE);
  return rc == VIP_SUCCESS ? d : nullptr;
}

// Whether a send has been posted and completed.
bool post_and_wait(ViaNic& nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR* d) {
  return VipPostSend(vi, d, nic.handle) == VIP_SUCCESS &&
         take(vi, ViaWait::kPoll, VipSendDone, VipSendWait) != nullptr;
}

}  // namespace

std::string via_name(ViaWait wait) { return wait == ViaWait::kPoll ? "via-poll" : "via"; }

ViaNic::ViaNic(std::size_t slots, std::size_t slot_bytes)
    : slots_(slots), bytes_((slot_bytes + 63) / 64 * 64) {
  (void)VipOpenNic("bench", &nic);
  const std::size_t all = slots_ * (2 * sizeof(VIP_DESCRIPTOR) + bytes_);
  memory_ = static_cast<std::byte*>(std::aligned_alloc(64, all));
  std::memset(static_cast<void*>(memory_), 0, all);
  VIP_MEM_ATTRIBUTES attributes{};
  (void)VipRegisterMem(nic, memory_, all, &attributes, &handle);
}

VIP_MEM_HANDLE ViaNic::register_once(const void* data, std::size_t bytes) {
  for (const Known& k : known_) {
    if (k.data == data && k.bytes >= bytes) return k.handle;
  }
  VIP_MEM_ATTRIBUTES attributes{};
  VIP_MEM_HANDLE made = 0;
  (void)VipRegisterMem(nic, const_cast<void*>(data), bytes, &attributes, &made);
  known_.push_back({data, bytes, made});
  return made;
}

VIP_DESCRIPTOR* ViaNic::fill(std::size_t i, const void* data, std::size_t bytes,
                             VIP_MEM_HANDLE memory) {
  auto* const d = reinterpret_cast<VIP_DESCRIPTOR*>(memory_) + i;
  d->CS.Control = VIP_CONTROL_OP_SENDRECV;
  d->CS.SegCount = 1;
  d->DS[0].Local.Data.Address = const_cast<void*>(data);
  d->DS[0].Local.Handle = memory;
  d->DS[0].Local.Length = static_cast<VIP_UINT32>(bytes);
  return d;
}
VIP_DESCRIPTOR* ViaNic::send(std::size_t i, const void* data, std::size_t bytes,
                             VIP_MEM_HANDLE memory) {
  return fill(2 * i + 1, data, bytes, memory);
}

VIP_VI_HANDLE ViaNic::make_vi(VIP_CQ_HANDLE receives) {
  VIP_VI_ATTRIBUTES attributes{};
  attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
  VIP_VI_HANDLE vi = nullptr;
  return VipCreateVi(nic, &attributes, nullptr, receives, &vi) == VIP_SUCCESS ? vi : nullptr;
}

bool ViaNic::post(VIP_VI_HANDLE vi, std::size_t i, std::size_t slot_number) {
  return VipPostRecv(vi, fill(2 * i, slot(slot_number), bytes_, handle), handle) == VIP_SUCCESS;
}

bool ViaNic::connect(VIP_VI_HANDLE vi, Side side, const std::string& name) {
  Net local(nic, side == Side::kServer ? name : name + "c"), remote(nic, name);
  if (side == Side::kServer) {
    VIP_CONN_HANDLE connection = nullptr;
    return VipConnectWait(nic, local, kSetUpMs, remote, nullptr, &connection) == VIP_SUCCESS &&
           VipConnectAccept(connection, vi) == VIP_SUCCESS;
  }
  for (;;) {
    const VIP_RETURN rc = VipConnectRequest(vi, local, remote, kSetUpMs, nullptr);
    if (rc != VIP_NO_MATCH) return rc == VIP_SUCCESS;
    ::usleep(100);
  }
}

// --- round trips ---------------------------------------------------------------------------------

bool ViaEnd::send(std::span<const std::byte> message) {
  VIP_DESCRIPTOR* d;
  if (message.size() <= kSmall) {
    std::memcpy(nic_->slot(0), message.data(), message.size());
    d = nic_->send(0, nic_->slot(0), message.size(), nic_->handle);
  } else {
    d = nic_->send(0, message.data(), message.size(),
                   nic_->register_once(message.data(), message.size()));
  }
  if (VipPostSend(vi_, d, nic_->handle) != VIP_SUCCESS) return false;
  VIP_DESCRIPTOR* const full = std::exchange(full_, nullptr);
  return (full == nullptr || VipPostRecv(vi_, full, nic_->handle) == VIP_SUCCESS) &&
         take(vi_, wait_, VipSendDone, VipSendWait) != nullptr;
}

bool ViaEnd::recv(std::span<std::byte> message) {
  full_ = take(vi_, wait_, VipRecvDone, VipRecvWait);
  if (full_ == nullptr || full_->CS.Length != message.size()) return false;
  auto& segment = full_->DS[0].Local;
  if (segment.Data.Address == message.data()) return true;
  std::memcpy(message.data(), segment.Data.Address, message.size());
  segment = {{0}, nic_->register_once(message.data(), message.size()), full_->CS.Length};
  segment.Data.Address = message.data();
  return true;
}

std::optional<ViaEnd> ViaTransport::open(Side side) {
  auto nic = std::make_unique<ViaNic>(3, std::max(bytes_, kSmall));
  VIP_VI_HANDLE vi = nic->make_vi(nullptr);
  if (vi == nullptr || !nic->post(vi, 0, 1) || !nic->post(vi, 1, 2) ||
      !nic->connect(vi, side, name_)) {
    return std::nullopt;
  }
  return ViaEnd(std::move(nic), vi, wait_);
}

// --- one way -------------------------------------------------------------------------------------

ViaStream::ViaStream(std::unique_ptr<ViaNic> nic, VIP_VI_HANDLE vi, std::size_t bytes,
                     std::size_t buffers)
    : nic_(std::move(nic)), vi_(vi), bytes_(bytes), buffers_(buffers) {}

// A credit is an empty message.
bool ViaStream::take_credit() {
  VIP_DESCRIPTOR* d = take(vi_, ViaWait::kPoll, VipRecvDone, VipRecvWait);
  if (d == nullptr || VipPostRecv(vi_, d, nic_->handle) != VIP_SUCCESS) return false;
  credits_ += credit_;
  return true;
}

bool ViaStream::send(std::span<const std::byte> message) {
  if (credits_ == 0 && !take_credit()) return false;
  --credits_;
  VIP_MEM_HANDLE memory = nic_->handle;
  const void* data = message.data();
  if (message.size() <= kSmall) {
    data = std::memcpy(nic_->slot(0), message.data(), message.size());
  } else {
    memory = nic_->register_once(message.data(), message.size());
  }
  VIP_DESCRIPTOR* d = nic_->send(sending_++ % buffers_, data, message.size(), memory);
  return post_and_wait(*nic_, vi_, d);
}

std::span<const std::byte> ViaStream::next() {
  front_ = take(vi_, ViaWait::kPoll, VipRecvDone, VipRecvWait);
  if (front_ == nullptr) return {};
  return {static_cast<const std::byte*>(front_->DS[0].Local.Data.Address), front_->CS.Length};
}

bool ViaStream::release() {
  if (VipPostRecv(vi_, front_, nic_->handle) != VIP_SUCCESS) return false;
  if (++released_ % credit_ != 0) return true;
  VIP_DESCRIPTOR* d = nic_->send(released_ % buffers_, nic_->slot(0), 0, nic_->handle);
  return post_and_wait(*nic_, vi_, d);
}

std::optional<ViaStream> ViaStreamTransport::open(Side side) {
  auto nic = std::make_unique<ViaNic>(buffers_, std::max(bytes_, kSmall));
  VIP_VI_HANDLE vi = nic->make_vi(nullptr);
  if (vi == nullptr) return std::nullopt;
  for (std::size_t i = 0; i < buffers_; ++i) {
    if (!nic->post(vi, i, i)) return std::nullopt;
  }
  if (!nic->connect(vi, side, name_)) return std::nullopt;
  return ViaStream(std::move(nic), vi, bytes_, buffers_);
}

// --- many ----------------------------------------------------------------------------------------

ViaHub::ViaHub(std::unique_ptr<ViaNic> nic, VIP_CQ_HANDLE cq, std::vector<VIP_VI_HANDLE> vis,
               ViaWait wait)
    : nic_(std::move(nic)), cq_(cq), vis_(std::move(vis)), wait_(wait) {
  for (std::size_t i = 0; i < vis_.size(); ++i) {
    (void)VipSetUserData(vis_[i], reinterpret_cast<VIP_PVOID>(i));
  }
}

// One at a time, as the completion queue gives them.
std::size_t ViaHub::wait(std::span<std::uint32_t> ready) {
  VIP_VI_HANDLE vi = nullptr;
  VIP_BOOLEAN receive = 0;
  VIP_RETURN rc;
  do {
    rc = VipCQDone(cq_, &vi, &receive);
    if (rc == VIP_NOT_DONE && wait_ == ViaWait::kWait)
      rc = VipCQWait(cq_, VIP_INFINITE, &vi, &receive);
  } while (rc == VIP_NOT_DONE);
  VIP_DESCRIPTOR* d = nullptr;
  VIP_PVOID number = nullptr;
  if (rc != VIP_SUCCESS || VipGetUserData(vi, &number) != VIP_SUCCESS ||
      VipRecvDone(vi, &d) != VIP_SUCCESS) {
    return 0;
  }
  ready[0] = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(number));
  return 1;
}

bool ViaHub::recv(std::uint32_t i, std::span<std::byte> message) {
  std::memcpy(message.data(), nic_->slot(2 * i), message.size());
  return nic_->post(vis_[i], i, 2 * i);
}

bool ViaHub::send(std::uint32_t i, std::span<const std::byte> message) {
  std::memcpy(nic_->slot(2 * i + 1), message.data(), message.size());
  VIP_DESCRIPTOR* d = nic_->send(i, nic_->slot(2 * i + 1), message.size(), nic_->handle);
  return post_and_wait(*nic_, vis_[i], d);
}

std::optional<ViaHub> ViaHubTransport::open(Side side, std::size_t connections) {
  auto nic = std::make_unique<ViaNic>(2 * connections, kHubBytes);
  VIP_CQ_HANDLE cq = nullptr;
  if (VipCreateCQ(nic->nic, 2 * connections, &cq) != VIP_SUCCESS) return std::nullopt;
  std::vector<VIP_VI_HANDLE> vis;
  for (std::size_t i = 0; i < connections; ++i) {
    VIP_VI_HANDLE vi = nic->make_vi(cq);
    if (vi == nullptr || !nic->post(vi, i, 2 * i) || !nic->connect(vi, side, name_))
      return std::nullopt;
    vis.push_back(vi);
  }
  return ViaHub(std::move(nic), cq, std::move(vis), wait_);
}

}  // namespace clan::bench
