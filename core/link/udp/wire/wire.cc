#include "link/udp/wire/wire.h"

#include <algorithm>

namespace clan::udp {
namespace {

constexpr std::size_t kCheckAt = 4;

bool has_greeting(PacketType type) {
  return type == PacketType::kHello || type == PacketType::kAccept;
}

// What a non-DATA packet has before share and greeting (docs/wire.md). False: reserved is not 0.
template <typename Io>
bool fixed_fields(Io& io, Handshake& h) {
  std::uint32_t reserved = 0;
  if (h.type != PacketType::kHello) io.field(h.to);
  if (has_greeting(h.type)) {
    io.field(h.id);
    for (std::uint64_t& r : h.random) io.field(r);
  }
  if (h.type == PacketType::kHello || h.type == PacketType::kRetry) {
    io.field(h.cookie.issued_ms);
    io.field(h.cookie.mac);
  }
  if (has_greeting(h.type)) {
    io.field(h.parameters.packet_window);
    io.field(h.parameters.largest_packet);
    for (std::uint64_t& credit : h.parameters.credit) io.field(credit);
  }
  if (h.type == PacketType::kRefuse) {
    io.field(h.err);
    io.field(reserved);
  }
  if (h.type == PacketType::kReset) io.field(h.number);
  return reserved == 0;
}

void write_variable(Writer& out, const Handshake& h) {
  out.number(static_cast<std::uint8_t>(h.share.size()));
  out.number(std::uint8_t{0});
  out.number(static_cast<std::uint16_t>(h.greeting.size()));
  out.bytes(h.share);
  out.bytes(h.greeting);
}

bool read_variable(Reader& in, Handshake* h) {
  const auto share = in.number<std::uint8_t>();
  const auto reserved = in.number<std::uint8_t>();
  const auto greeting = in.number<std::uint16_t>();
  if (reserved != 0 || greeting > kMostGreeting) return false;
  if (share != (h->mode == Mode::kOff ? 0 : kShareBytes)) return false;
  h->share = in.bytes(share);
  h->greeting = in.bytes(greeting);
  return in.ok();
}

bool only_zeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void write_common(Writer& out, PacketType type, Mode mode) {
  out.number(static_cast<std::uint8_t>(kWireVersion << 4 | static_cast<std::uint8_t>(type)));
  out.number(static_cast<std::uint8_t>(mode));
  out.number(std::uint16_t{0});
  out.number(std::uint32_t{0});
}

void write_check(std::span<std::byte> packet) {
  Writer zero(packet.subspan(kCheckAt));
  zero.number(std::uint32_t{0});
  const std::uint32_t crc = crc32c(packet);
  Writer check(packet.subspan(kCheckAt));
  check.number(crc);
}

bool check_is_right(std::span<const std::byte> packet) {
  static constexpr std::byte kZeros[4] = {};
  std::uint32_t crc = crc32c(packet.first(kCheckAt));
  crc = crc32c(kZeros, crc);
  crc = crc32c(packet.subspan(kCommonHeader), crc);
  return Reader(packet.subspan(kCheckAt)).number<std::uint32_t>() == crc;
}

bool read_common(std::span<const std::byte> packet, PacketType* type, Mode* mode) {
  if (packet.size() < kCommonHeader || packet.size() > kLargestPacket) return false;
  Reader in(packet);
  const auto first = in.number<std::uint8_t>();
  const auto m = in.number<std::uint8_t>();
  const auto reserved = in.number<std::uint16_t>();
  const auto t = first & 0x0f;
  if (first >> 4 != kWireVersion || t < 1 || t > static_cast<int>(PacketType::kReset)) return false;
  if (m > static_cast<std::uint8_t>(Mode::kEncrypt) || reserved != 0) return false;
  *type = static_cast<PacketType>(t);
  *mode = static_cast<Mode>(m);
  return true;
}

std::size_t write_handshake(std::span<std::byte> out, Handshake& h) {
  if (h.type == PacketType::kData) return 0;
  Writer w(out);
  write_common(w, h.type, h.mode);
  (void)fixed_fields(w, h);
  if (has_greeting(h.type)) write_variable(w, h);
  if (h.type != PacketType::kRetry) {
    h.signed_bytes = w.size();
    if (h.mode != Mode::kOff) w.zeros(kTagBytes);
  }
  if (h.type == PacketType::kHello && w.size() < kBasePacket) w.zeros(kBasePacket - w.size());
  return w.ok() ? w.size() : 0;
}

bool read_handshake(std::span<const std::byte> packet, Handshake* h) {
  if (!read_common(packet, &h->type, &h->mode) || h->type == PacketType::kData) return false;
  const bool padded = h->type == PacketType::kHello;
  if (padded && packet.size() < kBasePacket) return false;
  Reader in(packet);
  (void)in.bytes(kCommonHeader);
  if (!fixed_fields(in, *h)) return false;
  if (has_greeting(h->type) && !read_variable(in, h)) return false;
  if (h->type != PacketType::kRetry) {
    h->signed_bytes = in.at();
    if (h->mode != Mode::kOff) h->mac = in.bytes(kTagBytes);
  }
  return in.ok() && (padded ? only_zeros(in.bytes(in.left())) : in.left() == 0);
}

void write_data_header(Writer& out, Mode mode, std::uint64_t id, std::uint64_t number) {
  write_common(out, PacketType::kData, mode);
  out.number(id);
  out.number(number);
}

namespace {

bool read_ack(Reader& in, Frame* f) {
  f->ranges = in.number<std::uint8_t>() + 1u;
  f->delay_us = in.number<std::uint16_t>();
  f->packet_window = in.number<std::uint32_t>();
  f->value = in.number<std::uint64_t>();
  if (f->ranges > kMostAckRanges) return false;
  std::uint64_t last = f->value;
  for (std::uint32_t i = 0; i < f->ranges; ++i) {
    if (i > 0) {
      const std::uint64_t gap = in.number<std::uint32_t>() + std::uint64_t{1};
      if (f->range[i - 1].first <= gap) return false;  // nothing below: number 0 is never used
      last = f->range[i - 1].first - gap - 1;
    }
    const std::uint64_t length = in.number<std::uint32_t>() + std::uint64_t{1};
    if (last == 0 || length > last) return false;
    f->range[i].last = last;
    f->range[i].first = last - length + 1;
  }
  return in.ok();
}

bool read_message(Reader& in, Frame* f) {
  f->channel = in.number<std::uint8_t>();
  const auto bytes = in.number<std::uint16_t>();
  const auto header = in.number<std::uint8_t>();
  f->position = in.number<std::uint64_t>();
  f->total = bytes;
  f->offset = 0;
  if (f->type == FrameType::kFragment) {
    f->total = in.number<std::uint32_t>();
    f->offset = in.number<std::uint32_t>();
  }
  if (f->channel >= kChannels || header > kMostHeader || f->total > kMostPayload) return false;
  if (f->offset > f->total || bytes > f->total - f->offset) return false;
  if (f->position > (std::uint64_t{1} << 63)) return false;
  f->header = in.bytes(header);
  f->payload = in.bytes(bytes);
  return in.ok();
}

}  // namespace

bool read_frame(Reader& in, Frame* f) {
  const auto type = in.number<std::uint8_t>();
  if (!in.ok() || type > static_cast<std::uint8_t>(FrameType::kResponse)) return false;
  f->type = static_cast<FrameType>(type);
  switch (f->type) {
    case FrameType::kPadding: return only_zeros(in.bytes(in.left()));
    case FrameType::kPing: return true;
    case FrameType::kAck: return read_ack(in, f);
    case FrameType::kCredit:
      f->channel = in.number<std::uint8_t>();
      f->position = in.number<std::uint64_t>();
      return in.ok() && f->channel < kChannels;
    case FrameType::kData:
    case FrameType::kFragment: return read_message(in, f);
    case FrameType::kClose: f->value = in.number<std::uint32_t>(); return in.ok();
    case FrameType::kChallenge:
    case FrameType::kResponse: f->value = in.number<std::uint64_t>(); return in.ok();
  }
  return false;
}

}  // namespace clan::udp
