// Fuzzes the parser of PROXY headers: what a client of the gateway sends first. Whatever it is, a
// header is read within its bytes, its beginning never says more than "more", and what it says can
// be written and read again.
//
// Input: the bytes.
#include "proxy_header.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

using namespace clan::gateway;
using State = ProxyHeader::State;

void expect(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const ProxyHeader header = read_proxy_header(bytes);
  if (header.state != State::kWhole) {
    expect(header.state == State::kMore ? size < kMostProxyHeader : header.wrong[0] != 0);
    return 0;
  }
  expect(header.bytes > 0 && header.bytes <= size && header.bytes <= kMostProxyHeader);
  const ProxyHeader alone = read_proxy_header(bytes.substr(0, header.bytes));
  expect(alone.state == State::kWhole && alone.bytes == header.bytes);
  expect(read_proxy_header(bytes.substr(0, header.bytes - 1)).state == State::kMore);
  if (!header.addresses) return 0;
  for (const auto version : {ProxyVersion::kV1, ProxyVersion::kV2}) {
    const std::string text = proxy_header(version, *header.addresses);
    const ProxyHeader again = read_proxy_header(text);
    expect(again.state == State::kWhole && again.bytes == text.size());
    const bool both = again.addresses.has_value();
    expect(!both || again.addresses->source.text() == header.addresses->source.text());
    expect(both || version == ProxyVersion::kV1);  // of two families: unknown
  }
  return 0;
}
