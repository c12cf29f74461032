// The packets of the UDP link: layout, bounds-checked reading, writing. Pictures: docs/wire.md.
//
// Big-endian. Readers stay within their span and say at the end whether all was there. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "link/udp/wire/wire_bytes.h"

namespace clan::udp {

constexpr std::uint8_t kWireVersion = 1;
constexpr std::size_t kCommonHeader = 8;
constexpr std::size_t kDataHeader = 24;
constexpr std::size_t kTagBytes = 16;
constexpr std::size_t kShareBytes = 32;
constexpr std::size_t kMostGreeting = 512;
constexpr std::size_t kCookieAt = 32;  ///< in HELLO
constexpr std::size_t kCookieBytes = 16;
constexpr std::size_t kBasePacket = 1200;  ///< fits every path; a HELLO is at least this long
constexpr std::size_t kLargestPacket = 65'000;
constexpr std::size_t kRefuseBytes = 24;
constexpr std::size_t kLeastReset = 48;  ///< shorter packets are never answered with RESET
constexpr std::size_t kChannels = 4;
constexpr std::size_t kMostHeader = 64;      ///< of a message
constexpr std::uint64_t kHeaderCharge = 64;  ///< positions a message takes besides its payload
constexpr std::uint32_t kMostPayload = 1u << 31;
constexpr std::size_t kWholeFrame = 13;  ///< before header and payload
constexpr std::size_t kFragmentFrame = 21;
constexpr std::size_t kMostAckRanges = 32;
constexpr std::uint64_t kMostNumber = (1ull << 62) - 1;  ///< a packet's; a larger one is malformed

enum class Mode : std::uint8_t { kOff = 0, kIntegrity = 1, kEncrypt = 2 };

enum class PacketType : std::uint8_t { kHello = 1, kRetry, kAccept, kRefuse, kData, kReset };

enum class FrameType : std::uint8_t {
  kPadding = 0,
  kPing,
  kAck,
  kCredit,
  kData,
  kFragment,
  kClose,
  kChallenge,
  kResponse,
};

/// Continues a CRC32C (Castagnoli; RFC 3720 appendix B.4), by the processor's instruction if any.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

/// What an end tells the other about itself.
struct Parameters {
  std::uint32_t packet_window = 0;
  std::uint32_t largest_packet = 0;
  std::uint64_t credit[kChannels] = {};
};

struct Cookie {
  std::uint64_t issued_ms = 0;
  std::uint64_t mac = 0;
};

/// Any packet but DATA. Spans point into the packet.
struct Handshake {
  PacketType type = PacketType::kHello;
  Mode mode = Mode::kOff;
  std::uint64_t to = 0;  ///< RETRY, ACCEPT, REFUSE: the client's id; RESET: the id nobody knows
  std::uint64_t id = 0;  ///< HELLO, ACCEPT: the id the receiver is to use from now on
  std::uint64_t random[2] = {};
  Cookie cookie;             ///< HELLO, RETRY
  Parameters parameters;     ///< HELLO, ACCEPT
  std::uint32_t err = 0;     ///< REFUSE
  std::uint64_t number = 0;  ///< RESET: of the packet it answers
  std::span<const std::byte> share;
  std::span<const std::byte> greeting;
  std::span<const std::byte> mac;
  std::size_t signed_bytes = 0;  ///< what the MAC covers
};

/// The common header without its check.
void write_common(Writer& out, PacketType type, Mode mode);
/// Puts the check over `packet` into it.
void write_check(std::span<std::byte> packet);
/// Whether the check of `packet`, at least kCommonHeader bytes, is right.
bool check_is_right(std::span<const std::byte> packet);
/// Type of a packet that has a common header of this version, else false.
bool read_common(std::span<const std::byte> packet, PacketType* type, Mode* mode);

/// Writes a non-DATA packet but for check and MAC, for which modes 1 and 2 leave 16 bytes, at
/// h.signed_bytes, which it sets. Returns the length; 0: `out` is too small.
std::size_t write_handshake(std::span<std::byte> out, Handshake& h);
/// False when it is malformed. Does not verify checksum and MAC.
bool read_handshake(std::span<const std::byte> packet, Handshake* h);

void write_data_header(Writer& out, Mode mode, std::uint64_t id, std::uint64_t number);

/// A frame as it was read. Only members of its type mean something; spans point into the packet.
struct Frame {
  FrameType type = FrameType::kPadding;
  std::uint8_t channel = 0;
  std::uint64_t position = 0;  ///< DATA, FRAGMENT: where the message begins. CREDIT: the limit
  std::uint32_t total = 0;     ///< the message's payload
  std::uint32_t offset = 0;    ///< of `payload` in it
  std::span<const std::byte> header;
  std::span<const std::byte> payload;
  std::uint64_t value = 0;     ///< CLOSE: errno; CHALLENGE, RESPONSE: random; ACK: largest number
  std::uint32_t delay_us = 0;  ///< ACK
  std::uint32_t packet_window = 0;
  std::uint32_t ranges = 0;  ///< ACK: how many
  struct {
    std::uint64_t first, last;
  } range[kMostAckRanges];  ///< downwards; so many as `ranges` says mean something
};

/// Reads the next frame. False when it is malformed; padding that is not the last is.
bool read_frame(Reader& in, Frame* frame);

}  // namespace clan::udp
