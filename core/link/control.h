// Control messages of the shared-memory link: datagrams on one AF_UNIX SOCK_SEQPACKET socket per
// peer. They set the link up, carry out-of-band messages and pass descriptors, never data. The
// kernel closes the socket with its process: so death is noticed.
//
//   client                                server
//     connect to the abstract name
//     hello  + {tables, signals, doorbell} ->
//                                          <- accept + {tables, signals, doorbell}   or  refuse
//     ready, unless it drops this link in favour of another one with the same node ->
//     then, both ways: oob, memory + {memfd}, import, import_reply, queue_fd + {eventfd},
//                      copy, copy_done, lost (a memory was not taken: send it again)
//
// Native byte order and layout: both ends run on one machine. The first 24 bytes of hello and
// refuse never change, so that versions can refuse each other in words.
#pragma once

#include <cstdint>
#include <type_traits>

#include "clan/cookie.h"
#include "clan/oob.h"
#include "shm/nic_memory.h"

namespace clan::link {

constexpr std::uint32_t kControlMagic = 0x4e414c43;  // "CLAN"

enum class ControlType : std::uint32_t {
  kHello = 1,
  kAccept,
  kRefuse,
  kOob,
  kMemory,
  kImport,
  kImportReply,
  kQueueFd,
  kCopy,
  kCopyDone,
  kReady,
  kLost,
};

struct ControlMessage {
  std::uint32_t magic = kControlMagic;
  std::uint32_t version = shm::kLayoutVersion;
  ControlType type = ControlType::kOob;
  std::int32_t err = 0;    ///< refuse, import_reply, copy_done: errno
  std::uint64_t node = 0;  ///< hello, accept: the sender's
  // Until here: fixed for all versions.
  std::uint64_t request = 0;    ///< import, copy and their answers
  std::uint64_t memory_id = 0;  ///< memory, import_reply, lost, copy (the staging memory)
  std::uint64_t memory_bytes = 0;
  std::uint64_t offset = 0;   ///< copy: in the aperture
  std::uint64_t length = 0;   ///< copy
  std::uint64_t staging = 0;  ///< copy: offset in the staging memory
  /// hello, accept: DmaActivity slot given to the receiver; queue_fd: queue
  std::uint32_t slot = 0;
  std::uint32_t endpoint = 0;  ///< accept: the endpoint behind the service name
  std::uint32_t flags = 0;     ///< memory: 1 = read only; copy: RdmaOp
  std::uint32_t reserved = 0;
  RdmaCookie cookie{};  ///< import, copy
  OobMessage oob{};     ///< oob
};
static_assert(std::is_trivially_copyable_v<ControlMessage> &&
              std::is_standard_layout_v<ControlMessage>);

constexpr std::uint32_t kMemoryReadOnly = 1;

}  // namespace clan::link
