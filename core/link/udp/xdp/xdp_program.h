// XdpProgram: one device's XDP program and its tables, shared by all processes of the host that
// take packets there.
//
//   a frame arrives --> [ program ] -- UDP by IPv4, whole, to a port, address and queue that are in
//                          |           `ports` --> the AF_XDP socket in `sockets` at that port
//                          +-- anything else, and where that socket has gone --> the kernel
//
// Without a daemon: the first process loads and attaches it, the others find it by the device and
// hold it too. The attachment is a link of BPF, which the kernel takes away with its last
// descriptor, and an AF_XDP socket leaves `sockets` when it is closed: so a process that is killed
// leaves nothing but an entry of `ports`, whose packets the kernel gets, and that the next owner of
// the port writes over.
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
/// And in the kernel's stack those longer than this. There a train that a virtual device passes on
/// uncut looks like one datagram; its packets are full ones, of at least kBasePacket.
constexpr std::uint32_t kLongestGenericFrame = kFrameHeader + kBasePacket;

class XdpProgram {
 public:
  /// In the kernel's stack (kGeneric): any device, but only packets of up to kBasePacket. In its
  /// driver (kNative): where that can.
  enum class Where { kGeneric, kNative };

  /// Whether this process may do it on this kernel: EPERM, ENOSYS and the like, and what is
  /// missing.
  static Status possible();
  /// Whether the device has no program, or ours. EBUSY: it has another one.
  static Status usable(const NetDevice& device);
  /// The program of that device, attached if it was not. EBUSY: it has another one.
  static Result<XdpProgram> join(Rtnetlink& kernel, int device, Where where);

  /// Frames to that port and address that arrive at `queue` come to the socket. EEXIST: another
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
