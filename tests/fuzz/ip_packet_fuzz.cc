// What a peer of `clan ip` may send: messages with a virtio header and a packet, and Hellos. What
// passes is what the kernel expects of a header, and answers to a packet are packets themselves.
//
// Input: the offloads that are allowed, and a message.
#include <cstdlib>
#include <cstring>

#include "hello.h"
#include "icmp.h"
#include "input.h"

using namespace clan::ip;

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void look_at_answers(const Packet& packet, std::span<const std::byte> bytes) {
  for (const auto& answer : {unreachable(packet, bytes), too_big(packet, bytes, 1300)}) {
    if (answer.empty()) continue;
    const auto parsed = parse(answer, answer.size());
    expect(parsed && parsed->destination == packet.source && answer.size() <= 1280);
  }
}

void look_at(std::span<const std::byte> message, unsigned allowed) {
  VirtioHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  const auto ip = message.subspan(kHeader);
  const auto head = ip.first(std::min(ip.size(), kHead));
  const auto packet = parse(head, ip.size());
  if (!packet) return;
  expect(packet->header <= head.size());
  look_at_answers(*packet, ip);
  if (!check(&header, *packet, head, ip.size(), allowed)) return;
  const auto needs = offload_of(header, packet->source.v6);
  expect(needs && (*needs & ~allowed) == 0 && header.hdr_len <= ip.size());
  expect(wire_size(header, ip.size()) <= ip.size());
  if ((header.flags & VirtioHeader::kNeedsCsum) != 0)
    expect(header.csum_start >= packet->header &&
           header.csum_start + header.csum_offset + 2u <= ip.size());
  if (header.gso_type != VirtioHeader::kNone)
    expect(header.gso_size > 0 && (header.flags & VirtioHeader::kNeedsCsum) != 0 &&
           header.hdr_len > header.csum_start && header.hdr_len <= head.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  clan::fuzz::Input input(data, size);
  const unsigned allowed = input.byte() | kCsum;
  const auto message = input.bytes(size);
  if (const auto hello = parse_hello(message)) expect(is_hello(message) && hello->mtu >= 68);
  if (message.size() > kHeader) look_at(message, allowed);
  return 0;
}
