#include "link/udp/xdp/xdp_socket.h"

#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "clan/detail/system_call.h"
#include "clan/detail/words.h"

#ifndef SOL_XDP
#define SOL_XDP 283
#endif

namespace clan::udp {
namespace {

constexpr std::size_t kMemory =
    std::size_t{XdpSocket::kFrame} * (XdpSocket::kReceive + XdpSocket::kSend);
constexpr int kSocketBuffer = 4 << 20;  ///< what may be under way in the kernel, as for UDP sockets
constexpr int kPushes = 8;              ///< the kernel takes 32 frames at most each time

bool set(int fd, int name, std::uint32_t value) {
  return ::setsockopt(fd, SOL_XDP, name, &value, sizeof value) == 0;
}

// Both indices of every ring: what precedes the store is seen behind the load, on both sides.
std::uint32_t look(std::uint32_t* index) {
  // PAIR xdp.ring: sees frames that the other side has published or given back
  return words::load_acquire(std::atomic_ref(*index));
}
void publish(std::uint32_t* index, std::uint32_t value) {
  // PAIR xdp.ring: publishes entries written, or that those read may be written over
  words::store_release(std::atomic_ref(*index), value);
}

}  // namespace

Result<std::unique_ptr<XdpSocket>> XdpSocket::open(int device) {
  std::unique_ptr<XdpSocket> made(new XdpSocket);
  if (auto s = made->prepare(device); !s) return s.error();
  return made;
}

XdpSocket::~XdpSocket() {
  socket_.reset();
  for (Ring* ring : {&fill_, &received_, &to_send_, &sent_}) {
    if (ring->memory != nullptr) (void)::munmap(ring->memory, ring->bytes);
  }
  if (memory_ != nullptr) (void)::munmap(memory_, kMemory);
}

// The memory is shared, not private: a child of fork() must not make us lose it to a copy.
Status XdpSocket::prepare(int device) {
  socket_ = Fd(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket_) return errno_error("an AF_XDP socket");
  void* memory =
      ::mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno_error("memory for frames");
  memory_ = static_cast<std::byte*>(memory);
  xdp_umem_reg region{};
  region.addr = reinterpret_cast<std::uintptr_t>(memory);
  region.len = kMemory;
  region.chunk_size = kFrame;
  const int fd = socket_.get();
  if (::setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &region, sizeof region) != 0)
    return errno_error("memory for AF_XDP (ulimit -l)");
  (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBuffer, sizeof kSocketBuffer);
  if (!set(fd, XDP_UMEM_FILL_RING, kReceive) || !set(fd, XDP_UMEM_COMPLETION_RING, kSend) ||
      !set(fd, XDP_RX_RING, kReceive) || !set(fd, XDP_TX_RING, kSend))
    return errno_error("rings of AF_XDP");
  if (auto s = map_rings(); !s) return s;
  for (std::uint32_t i = 0; i < kReceive; ++i) {
    const std::uint64_t address = std::uint64_t{i} * kFrame;
    std::memcpy(fill_.entries + i * sizeof address, &address, sizeof address);
  }
  publish(fill_.producer, fill_.ours = kReceive);
  for (std::uint32_t i = kReceive + kSend; i-- > kReceive;) free_.push_back(i);
  return bind(device);
}

Status XdpSocket::bind(int device) {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = static_cast<std::uint32_t>(device);
  address.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP;
  for (queue_ = 0; queue_ < kMostQueues; ++queue_) {
    address.sxdp_queue_id = queue_;
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      return {};
    if (errno == EBUSY) continue;
    if (errno == EINVAL && queue_ > 0) break;  // there are no more
    return errno_error("binding an AF_XDP socket");
  }
  return Error{EBUSY, "other processes have the device's queues for AF_XDP"};
}

Status XdpSocket::map_rings() {
  xdp_mmap_offsets offsets{};
  socklen_t size = sizeof offsets;
  if (::getsockopt(socket_.get(), SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &size) != 0 ||
      size != sizeof offsets)
    return errno_error("rings of AF_XDP");
  const auto map = [&](Ring* ring, const xdp_ring_offset& at, std::size_t entries, off_t which) {
    ring->bytes = at.desc + entries;
    void* memory = ::mmap(nullptr, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                          socket_.get(), which);
    if (memory == MAP_FAILED) return false;
    ring->memory = memory;
    auto* const bytes = static_cast<std::byte*>(memory);
    ring->producer = reinterpret_cast<std::uint32_t*>(bytes + at.producer);
    ring->consumer = reinterpret_cast<std::uint32_t*>(bytes + at.consumer);
    ring->entries = bytes + at.desc;
    return true;
  };
  static_assert(sizeof(Descriptor) == sizeof(xdp_desc));
  const bool all =
      map(&fill_, offsets.fr, kReceive * sizeof(std::uint64_t), XDP_UMEM_PGOFF_FILL_RING) &&
      map(&sent_, offsets.cr, kSend * sizeof(std::uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING) &&
      map(&received_, offsets.rx, kReceive * sizeof(Descriptor), XDP_PGOFF_RX_RING) &&
      map(&to_send_, offsets.tx, kSend * sizeof(Descriptor), XDP_PGOFF_TX_RING);
  return all ? Status() : errno_error("rings of AF_XDP");
}

// --- sending -------------------------------------------------------------------------------------

void XdpSocket::take_sent() {
  const std::uint32_t end = look(sent_.producer);
  if (end == sent_.ours) return;
  for (; sent_.ours != end; ++sent_.ours) {
    std::uint64_t address;
    std::memcpy(&address, sent_.entries + (sent_.ours & (kSend - 1)) * sizeof address,
                sizeof address);
    const std::uint64_t frame = address / kFrame;
    if (address < kMemory && frame >= kReceive && free_.size() < kSend)
      free_.push_back(static_cast<std::uint32_t>(frame));
  }
  publish(sent_.consumer, sent_.ours);
}

bool XdpSocket::has_room(std::size_t frames) {
  if (free_.size() < frames) {
    take_sent();
    if (free_.size() < frames && posted_) {
      (void)push();
      take_sent();
    }
  }
  return free_.size() >= frames;
}

std::span<std::byte> XdpSocket::next_frame() {
  begun_ = free_.back();
  return {memory_ + std::size_t{begun_} * kFrame, kFrame};
}

// There are no more frames than entries of the ring, so there is always one.
void XdpSocket::post(std::size_t bytes) {
  free_.pop_back();
  const Descriptor descriptor{std::uint64_t{begun_} * kFrame, static_cast<std::uint32_t>(bytes), 0};
  std::memcpy(to_send_.entries + (to_send_.ours & (kSend - 1)) * sizeof descriptor, &descriptor,
              sizeof descriptor);
  publish(to_send_.producer, ++to_send_.ours);
  posted_ = true;
}

// What the kernel does not take now goes with the next push, or while a thread sleeps on it.
bool XdpSocket::push() { return push_times(kPushes); }

bool XdpSocket::push_times(int times) {
  for (int i = 0; i < times; ++i) {
    const long n = sys::call(SYS_sendto, fd(), nullptr, 0, MSG_DONTWAIT, nullptr, 0);
    posted_ = look(to_send_.consumer) != to_send_.ours;
    if (!posted_) return true;
    if (n < 0 && errno != EAGAIN && errno != EBUSY && errno != EINTR && errno != ENOBUFS)
      return false;
  }
  return true;
}

// --- receiving -----------------------------------------------------------------------------------

std::size_t XdpSocket::take(std::span<std::span<std::byte>> out) {
  const std::uint32_t ready = look(received_.producer) - received_.ours - taken_;
  const std::size_t n = std::min<std::size_t>(ready, out.size());
  for (std::size_t i = 0; i < n; ++i) {
    Descriptor descriptor;
    const std::size_t at = (received_.ours + taken_ + i) & (kReceive - 1);
    std::memcpy(&descriptor, received_.entries + at * sizeof descriptor, sizeof descriptor);
    const bool inside = descriptor.address < kMemory && descriptor.bytes <= kMemory &&
                        descriptor.address + descriptor.bytes <= kMemory;
    out[i] =
        inside ? std::span(memory_ + descriptor.address, descriptor.bytes) : std::span<std::byte>();
  }
  taken_ += static_cast<std::uint32_t>(n);
  return n;
}

void XdpSocket::give_back() {
  if (posted_) (void)push_times(1);
  if (taken_ == 0) [[likely]]
    return;
  for (std::uint32_t i = 0; i < taken_; ++i) {
    Descriptor descriptor;
    const std::size_t at = (received_.ours + i) & (kReceive - 1);
    std::memcpy(&descriptor, received_.entries + at * sizeof descriptor, sizeof descriptor);
    const std::uint64_t address = descriptor.address / kFrame * kFrame;
    std::memcpy(fill_.entries + ((fill_.ours + i) & (kReceive - 1)) * sizeof address, &address,
                sizeof address);
  }
  publish(fill_.producer, fill_.ours += taken_);
  publish(received_.consumer, received_.ours += taken_);
  taken_ = 0;
}

}  // namespace clan::udp
