#include "link/udp/node/link_wire.h"

namespace clan::udp {
namespace {

/// "CLA2": a peer that says "CLAN" does not store the first word of a PUT behind the rest.
constexpr std::uint32_t kGreetingMagic = 0x434c4132;

bool has_place(LinkMessageType t) {
  return t == LinkMessageType::kPut || t == LinkMessageType::kWrite || t == LinkMessageType::kRead;
}
bool has_request(LinkMessageType t) {
  return t != LinkMessageType::kPut && t != LinkMessageType::kRefused && t != LinkMessageType::kOob;
}
bool has_err(LinkMessageType t) {
  return t == LinkMessageType::kWriteDone || t == LinkMessageType::kRefused ||
         t == LinkMessageType::kReadData || t == LinkMessageType::kImportDone;
}
bool has_aperture(LinkMessageType t) { return has_place(t) || t == LinkMessageType::kRefused; }
bool has_after(LinkMessageType t) {
  return t == LinkMessageType::kWrite || t == LinkMessageType::kRead;
}

// The fields behind the type, in the order of docs/wire.md: written, or read.
template <typename Io, typename Header>
void header_fields(Io& io, Header& h) {
  if (has_aperture(h.type)) {
    io.field(h.aperture);
    io.field(h.generation);
  }
  if (has_place(h.type)) {
    io.field(h.key_image);
    io.field(h.offset);
  }
  if (h.type == LinkMessageType::kRead) io.field(h.length);
  if (has_request(h.type)) io.field(h.request);
  if (has_after(h.type)) io.field(h.after);
  if (has_err(h.type)) io.field(h.err);
}

}  // namespace

std::size_t write_link_header(std::span<std::byte, kMostHeader> out, const LinkHeader& h) {
  Writer w(out);
  w.number(static_cast<std::uint8_t>(h.type));
  header_fields(w, h);
  return w.size();
}

bool read_link_header(std::span<const std::byte> in, LinkHeader* h) {
  Reader r(in);
  const auto type = r.number<std::uint8_t>();
  if (type < 1 || type > static_cast<std::uint8_t>(LinkMessageType::kOob)) return false;
  h->type = static_cast<LinkMessageType>(type);
  header_fields(r, *h);
  return r.ok() && r.left() == 0;
}

std::size_t write_greeting(std::span<std::byte, kMostGreeting> out, const Greeting& g) {
  if (g.service.size() > 255) return 0;
  Writer w(out);
  w.number(kGreetingMagic);
  w.number(g.node);
  w.number(g.uid);
  w.number(g.pid);
  w.number(g.endpoint);
  w.number(g.port);
  w.number(static_cast<std::uint8_t>(g.service.size()));
  w.bytes(std::as_bytes(std::span(g.service)));
  return w.ok() ? w.size() : 0;
}

bool read_greeting(std::span<const std::byte> in, Greeting* g) {
  Reader r(in);
  const auto magic = r.number<std::uint32_t>();
  g->node = r.number<std::uint64_t>();
  g->uid = r.number<std::uint32_t>();
  g->pid = r.number<std::uint32_t>();
  g->endpoint = r.number<std::uint32_t>();
  g->port = r.number<std::uint16_t>();
  const auto service = r.bytes(r.number<std::uint8_t>());
  if (!r.ok() || r.left() != 0 || magic != kGreetingMagic || g->node == 0) return false;
  g->service.assign(reinterpret_cast<const char*>(service.data()), service.size());
  return g->service.find('\0') == std::string::npos;
}

}  // namespace clan::udp
