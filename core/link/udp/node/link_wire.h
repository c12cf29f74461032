// The UDP link's headers of transport messages (docs/wire.md has the table). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "link/udp/wire/wire.h"

namespace clan::udp {

enum class LinkMessageType : std::uint8_t {
  kPut = 1,     ///< channel 0: bytes for an aperture
  kWrite,       ///< channel 3: the same as one chunk of RDMA; answered by kWriteDone
  kWriteDone,   ///< channel 0
  kRefused,     ///< channel 0: an aperture that is gone, or a put that was not allowed
  kRead,        ///< channel 0 or 3: answered by kReadData
  kReadData,    ///< channel 0 or 3
  kImport,      ///< channel 0: payload is an RdmaCookie; answered by kImportDone
  kImportDone,  ///< channel 0
  kOob,         ///< channel 0: payload is an OobMessage without the unused end of its payload
};

/// Only the members of its type mean something.
struct LinkHeader {
  LinkMessageType type = LinkMessageType::kPut;
  std::uint32_t err = 0;
  std::uint32_t aperture = 0;
  std::uint32_t generation = 0;
  std::uint64_t key_image = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;   ///< kRead
  std::uint64_t request = 0;  ///< counts up in the order sent
  std::uint64_t after = 0;    ///< channel 3: messages of channel 0 that were sent before
};

/// The header's length.
std::size_t write_link_header(std::span<std::byte, kMostHeader> out, const LinkHeader& header);
/// False when it is malformed.
bool read_link_header(std::span<const std::byte> in, LinkHeader* header);

/// What both ends say in the handshake. `service` is the client's wish, `endpoint` and `port` the
/// answer: where it is, or the port of this host to ask (0: here).
struct Greeting {
  std::uint64_t node = 0;
  std::uint32_t uid = 0;
  std::uint32_t pid = 0;
  std::uint32_t endpoint = 0;
  std::uint16_t port = 0;
  std::string service;
};
/// The greeting's length; 0: the service's name is too long.
std::size_t write_greeting(std::span<std::byte, kMostGreeting> out, const Greeting& greeting);
bool read_greeting(std::span<const std::byte> in, Greeting* greeting);

}  // namespace clan::udp
