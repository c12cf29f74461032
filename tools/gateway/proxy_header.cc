#include "proxy_header.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>

namespace clan::gateway {
namespace {

constexpr std::string_view kSignature("\r\n\r\n\0\r\nQUIT\n", 12);
constexpr std::string_view kV1 = "PROXY ";
constexpr std::size_t kMostV1 = 107;  // with the end of line
constexpr std::size_t kFixedV2 = 16;
constexpr std::uint8_t kTlvCrc = 3, kTlvNoop = 4;
constexpr std::size_t kTlvHead = 3;

ProxyHeader wrong(const char* why) {
  ProxyHeader header;
  header.state = ProxyHeader::State::kWrong;
  header.wrong = why;
  return header;
}

bool begins_alike(std::string_view bytes, std::string_view wanted) {
  const std::size_t n = std::min(bytes.size(), wanted.size());
  return bytes.substr(0, n) == wanted.substr(0, n);
}

std::uint8_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]);
}
std::size_t number_at(std::string_view bytes, std::size_t at) {
  return std::size_t{byte_at(bytes, at)} << 8 | byte_at(bytes, at + 1);
}

// --- version 1 ---

/// The next word; each is behind exactly one space.
std::string next_word(std::string_view& rest) {
  const std::size_t end = std::min(rest.find(' '), rest.size());
  std::string word(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

std::optional<std::uint16_t> port_of(const std::string& word) {
  std::uint16_t port = 0;
  const auto [end, err] = std::from_chars(word.data(), word.data() + word.size(), port);
  const bool whole = err == std::errc() && end == word.data() + word.size();
  if (!whole || (word.size() > 1 && word[0] == '0')) return std::nullopt;
  return port;
}

std::optional<Ip> ip_of(const std::string& word, bool v4) {
  if (word.find('/') != std::string::npos || (word.find(':') == std::string::npos) != v4)
    return std::nullopt;
  const auto network = Network::parse(word);
  return network ? std::optional(network->ip) : std::nullopt;
}

ProxyHeader read_v1(std::string_view bytes) {
  const std::size_t end = bytes.substr(0, kMostV1).find("\r\n");
  if (end == std::string_view::npos) {
    if (bytes.size() >= kMostV1) return wrong("version 1 has at most 107 bytes");
    return {};
  }
  std::string_view rest = bytes.substr(kV1.size(), end - kV1.size());
  ProxyHeader header;
  header.state = ProxyHeader::State::kWhole;
  header.bytes = end + 2;
  const std::string family = next_word(rest);
  if (family == "UNKNOWN") return header;  // what follows counts for nothing
  const bool v4 = family == "TCP4";
  if (!v4 && family != "TCP6") return wrong("version 1 knows TCP4, TCP6 and UNKNOWN");
  if (rest.empty() || rest.back() == ' ') return wrong("version 1 has two addresses and two ports");
  const auto source = ip_of(next_word(rest), v4), destination = ip_of(next_word(rest), v4);
  if (!source || !destination) return wrong("an address of version 1 is none");
  const auto from = port_of(next_word(rest)), to = port_of(next_word(rest));
  if (!from || !to) return wrong("a port of version 1 is none");
  if (!rest.empty()) return wrong("version 1 ends behind the second port");
  header.addresses = {Address::of_ip(*source, *from), Address::of_ip(*destination, *to)};
  return header;
}

// --- version 2 ---

/// CRC32c of the header, its own four bytes at `hole` taken as zeros.
std::uint32_t crc32c(std::string_view bytes, std::size_t hole) {
  std::uint32_t crc = ~0u;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    crc ^= i - hole < 4 ? 0 : byte_at(bytes, i);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

/// Null, or what is wrong with the values behind the addresses. `passed` gets those for others.
const char* wrong_tlvs(std::string_view header, std::size_t at, std::string& passed) {
  while (at < header.size()) {
    if (header.size() - at < kTlvHead) return "a TLV of version 2 is cut off";
    const std::size_t value = at + kTlvHead, size = number_at(header, at + 1);
    if (header.size() - value < size) return "a TLV of version 2 is longer than the header";
    if (byte_at(header, at) == kTlvCrc) {
      if (size != 4) return "a checksum of version 2 has four bytes";
      std::uint32_t said = 0;
      std::memcpy(&said, header.data() + value, sizeof said);
      if (ntohl(said) != crc32c(header, value)) return "the checksum of version 2 is wrong";
    }
    if (byte_at(header, at) != kTlvCrc && byte_at(header, at) != kTlvNoop)
      passed += header.substr(at, kTlvHead + size);
    at = value + size;
  }
  return nullptr;
}

Address address_in(std::string_view bytes, std::size_t ip_at, std::size_t port_at, bool v4) {
  Ip ip{};
  if (v4) ip[10] = ip[11] = 0xff;
  std::memcpy(ip.data() + (v4 ? 12 : 0), bytes.data() + ip_at, v4 ? 4 : 16);
  return Address::of_ip(ip, static_cast<std::uint16_t>(number_at(bytes, port_at)));
}

ProxyHeader read_v2(std::string_view bytes) {
  if (bytes.size() > 12 && byte_at(bytes, 12) >> 4 != 2) return wrong("the version is not 2");
  if (bytes.size() > 12 && (byte_at(bytes, 12) & 15) > 1)
    return wrong("a command of version 2 is LOCAL or PROXY");
  if (bytes.size() < kFixedV2) return {};
  const std::size_t size = kFixedV2 + number_at(bytes, 14);
  if (size > kMostProxyHeader) return wrong("a header of version 2 is too long");
  if (bytes.size() < size) return {};
  const std::string_view whole = bytes.substr(0, size);
  ProxyHeader header;
  header.state = ProxyHeader::State::kWhole;
  header.bytes = size;
  if ((byte_at(bytes, 12) & 15) == 0) return header;  // LOCAL: what follows counts for nothing
  const std::uint8_t family = byte_at(bytes, 13);
  std::size_t room = 0;
  switch (family) {
    case 0x00: return header;
    case 0x11: room = 12; break;
    case 0x21: room = 36; break;
    case 0x31: room = 216; break;
    default: return wrong("version 2 is of a family or protocol that is not served");
  }
  if (size < kFixedV2 + room) return wrong("version 2 has no room for its addresses");
  if (const char* why = wrong_tlvs(whole, kFixedV2 + room, header.tlvs)) return wrong(why);
  if (family == 0x31) return header;  // paths: the peer's own address says more
  const bool v4 = family == 0x11;
  const std::size_t ip = v4 ? 4 : 16, ports = kFixedV2 + 2 * ip;
  header.addresses = {address_in(whole, kFixedV2, ports, v4),
                      address_in(whole, kFixedV2 + ip, ports + 2, v4)};
  return header;
}

std::string v2_begin(char command, char family, std::size_t size) {
  std::string header(kSignature);
  header += {command, family, static_cast<char>(size >> 8), static_cast<char>(size)};
  return header;
}

}  // namespace

ProxyHeader read_proxy_header(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (begins_alike(bytes, kSignature))
    return bytes.size() < kSignature.size() ? ProxyHeader{} : read_v2(bytes);
  if (begins_alike(bytes, kV1)) return bytes.size() < kV1.size() ? ProxyHeader{} : read_v1(bytes);
  return wrong("the first bytes are no PROXY header");
}

std::string proxy_header(ProxyVersion version, const ProxyAddresses& addresses,
                         const std::string& tlvs) {
  const auto& [source, destination] = addresses;
  const Ip from = source.ip(), to = destination.ip();
  const bool known = source.is_tcp() && destination.is_tcp();
  const bool v4 = is_mapped_v4(from) && is_mapped_v4(to);
  if (version == ProxyVersion::kV1) {
    if (!known || is_mapped_v4(from) != is_mapped_v4(to)) return "PROXY UNKNOWN\r\n";
    const auto host = [](const Address& address) {
      std::string text = address.text();
      text.resize(text.rfind(':'));
      return text[0] == '[' ? text.substr(1, text.size() - 2) : text;
    };
    return fmt::format("PROXY {} {} {} {} {}\r\n", v4 ? "TCP4" : "TCP6", host(source),
                       host(destination), source.port(), destination.port());
  }
  if (!known) return v2_begin(0x21, 0, 0);
  const std::size_t skip = v4 ? 12 : 0, ip = 16 - skip;
  std::string header = v2_begin(0x21, v4 ? 0x11 : 0x21, 2 * ip + 4 + tlvs.size());
  header.append(reinterpret_cast<const char*>(from.data()) + skip, ip);
  header.append(reinterpret_cast<const char*>(to.data()) + skip, ip);
  for (const std::uint16_t port : {source.port(), destination.port()})
    header += {static_cast<char>(port >> 8), static_cast<char>(port)};
  return header + tlvs;
}

std::string local_proxy_header(ProxyVersion version) {
  return version == ProxyVersion::kV1 ? "PROXY UNKNOWN\r\n" : v2_begin(0x20, 0, 0);
}

}  // namespace clan::gateway
