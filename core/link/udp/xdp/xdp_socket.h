// XdpSocket: an AF_XDP socket at a device's queue, its frame memory and the four rings that it
// shares with the kernel, which has one such memory at each queue.
//
//   us --fill--> kernel --received--> us      frames for arrivals, back when they have been read
//   us --to send--> kernel --sent--> us       our frames, back when they have left
//
// Copies: the kernel never lends us device memory, so any device will do. Ring indices wrap; one
// side writes each. The kernel is trusted as far as its frames lie in our memory. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/fd.h"

namespace clan::udp {

class XdpSocket {
 public:
  static constexpr std::uint32_t kFrame = 2048;
  static constexpr std::uint32_t kReceive = 2048;  ///< frames for arrivals
  static constexpr std::uint32_t kSend = 1024;     ///< and for what leaves

  static constexpr std::uint32_t kMostQueues = 16;  ///< that are tried

  /// At the first queue of the device that is free. EBUSY: other processes have them all.
  static Result<std::unique_ptr<XdpSocket>> open(int device);
  ~XdpSocket();
  XdpSocket(const XdpSocket&) = delete;
  XdpSocket& operator=(const XdpSocket&) = delete;

  int fd() const { return socket_.get(); }
  std::uint32_t queue() const { return queue_; }
  /// Whether `frames` more can be posted.
  bool has_room(std::size_t frames);
  /// The memory of the next frame to send, and that it has been written. After has_room().
  std::span<std::byte> next_frame();
  void post(std::size_t bytes);
  /// Tells the kernel what has been posted. False: the device has gone or is down.
  bool push();
  /// Frames that have come; they are ours until the next give_back().
  std::size_t take(std::span<std::span<std::byte>> out);
  void give_back();

 private:
  struct Ring {
    std::uint32_t* producer = nullptr;
    std::uint32_t* consumer = nullptr;
    std::byte* entries = nullptr;
    std::uint32_t ours = 0;  ///< the index that we write
    void* memory = nullptr;
    std::size_t bytes = 0;
  };
  /// As the kernel has it: xdp_desc.
  struct Descriptor {
    std::uint64_t address;
    std::uint32_t bytes;
    std::uint32_t options;
  };

  XdpSocket() = default;
  Status prepare(int device);
  Status bind(int device);
  Status map_rings();
  void take_sent();
  bool push_times(int times);

  Fd socket_;
  std::uint32_t queue_ = 0;
  std::byte* memory_ = nullptr;
  Ring fill_, received_, to_send_, sent_;
  std::vector<std::uint32_t> free_;  ///< our frames, by number
  std::uint32_t begun_ = 0;          ///< the frame that next_frame() gave
  std::uint32_t taken_ = 0;          ///< arrivals that are ours
  bool posted_ = false;              ///< and not all of it has been taken by the kernel
};

}  // namespace clan::udp
