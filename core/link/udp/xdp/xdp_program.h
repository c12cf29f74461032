// XdpProgram: one device's XDP program and tables, shared by all processes that take packets there.
//
//   a frame arrives --> [ program ] -- UDP by IPv4, whole, to a port, address and queue that are in
//                          |           `ports` --> the AF_XDP socket in `sockets` at that port
//                          +-- anything else, and where that socket has gone --> the kernel
//
// No daemon: the first process loads and attaches it, the others find it by the device and hold it
// too. The kernel ends the attachment, a BPF link, with its last descriptor, and removes a closed
// AF_XDP socket from `sockets`: a killed process leaves only an entry of `ports`, whose packets the
// kernel gets until the port's next owner overwrites it.
//
// Plain system calls: the program is 40 instructions, written out. Not thread-safe; any number of
// processes.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "link/udp/wire/wire.h"
#include "link/udp/xdp/rtnetlink.h"

namespace clan::udp {

/// Longer frames than this are the kernel's: they do not fit the sockets' frames.
constexpr std::uint32_t kLongestFrame = 1792;
/// Longer ones in the kernel's stack, where an uncut train of a virtual device looks like one
/// datagram: a train is longer than kBasePacket (SocketIo::send_by).
constexpr std::uint32_t kLongestGenericFrame = kFrameHeader + kBasePacket;

class XdpProgram {
 public:
  /// kGeneric: in the kernel's stack; any device, packets up to kBasePacket. kNative: the driver.
  enum class Where { kGeneric, kNative };

  /// Whether this process and kernel can: EPERM, ENOSYS and the like, and what is missing.
  static Status possible();
  /// Whether the device has no program, or ours. EBUSY: it has another one.
  static Status usable(const NetDevice& device);
  /// The program of that device, attached if it was not. EBUSY: it has another one.
  static Result<XdpProgram> join(Rtnetlink& kernel, int device, Where where);

  /// Brings frames to that port and address, arriving at `queue`, to the socket. EEXIST: another
  /// process has the port, for another address.
  Status claim(std::uint16_t port, const Ipv4& ip, std::uint32_t queue, int xdp_socket);
  void release(std::uint16_t port);
  /// Whether it is still at its device: that may have gone.
  bool attached() const;

 private:
  static Result<XdpProgram> load(Where where);
  static Result<XdpProgram> find(std::uint32_t program);
  static Result<XdpProgram> join_once(Rtnetlink& kernel, int device, Where where);
  Status attach(int device, Where where);

  Fd program_, link_, sockets_, ports_;
};

}  // namespace clan::udp
