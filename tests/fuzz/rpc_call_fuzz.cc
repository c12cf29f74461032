// What a peer may write into a call: heads, credentials, arguments; and a reply, as libtirpc
// decodes it. The same arguments in fragments, whose sizes are a part of the input: they decode to
// what they are in one piece.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "fragments.h"
#include "wire.h"
#include "xdr_streams.h"

using namespace clan::rpc;

namespace {

struct Item {
  char* text;
  char* bytes;
  u_int bytes_length;
  int* numbers;
  u_int numbers_length;
  Item* next;
};

bool_t xdr_item(XDR* xdrs, Item* item) {
  return static_cast<bool_t>(xdr_string(xdrs, &item->text, 1000) != FALSE &&
                             xdr_bytes(xdrs, &item->bytes, &item->bytes_length, 100'000) != FALSE &&
                             xdr_array(xdrs, reinterpret_cast<char**>(&item->numbers),
                                       &item->numbers_length, 10'000, sizeof(int),
                                       as_xdrproc(xdr_int)) != FALSE &&
                             xdr_pointer(xdrs, reinterpret_cast<char**>(&item->next), sizeof(Item),
                                         as_xdrproc(xdr_item)) != FALSE);
}

/// A message in fragments of 1 to 256 bytes, each in memory of its own: reading beyond one is
/// found.
class Fragments final : public InMessage {
 public:
  Fragments(std::span<const std::byte> message, std::span<const std::uint8_t> sizes)
      : InMessage({}), message_(message), sizes_(sizes) {}

 private:
  bool await_more(std::span<const std::byte>* bytes) override {
    if (message_.empty()) return false;
    const std::size_t wanted =
        sizes_.empty() ? 16 : 1 + std::size_t{sizes_[turn_++ % sizes_.size()]};
    const auto here = message_.first(std::min(wanted, message_.size()));
    message_ = message_.subspan(here.size());
    fragment_.reset(new std::byte[here.size()]);
    std::memcpy(fragment_.get(), here.data(), here.size());
    *bytes = {fragment_.get(), here.size()};
    return true;
  }
  std::span<const std::byte> message_;
  std::span<const std::uint8_t> sizes_;
  std::size_t turn_ = 0;
  std::unique_ptr<std::byte[]> fragment_;
};

/// What has been decoded, as it is encoded again. Nothing: it could not be.
std::vector<char> encoded(Item* item) {
  std::vector<char> bytes(1 << 20);
  XDR xdrs;
  xdrmem_create(&xdrs, bytes.data(), static_cast<u_int>(bytes.size()), XDR_ENCODE);
  bytes.resize(xdr_item(&xdrs, item) != FALSE ? xdr_getpos(&xdrs) : 0);
  return bytes;
}

std::vector<char> decode_and_free(XDR* xdrs) {
  Item item{};
  std::vector<char> again;
  if (xdr_item(xdrs, &item) != FALSE) again = encoded(&item);
  XDR freeing;
  freeing_xdr(&freeing);
  (void)xdr_item(&freeing, &item);
  return again;
}

void decode_arguments(std::span<const std::byte> bytes, std::span<const std::uint8_t> sizes) {
  XDR xdrs;
  memory_xdr(&xdrs, bytes);
  const std::vector<char> whole = decode_and_free(&xdrs);
  Fragments fragments(bytes, sizes);
  fragments.xdr(&xdrs);
  if (decode_and_free(&xdrs) != whole) std::abort();
}

void decode_reply(std::span<const std::byte> bytes) {
  XDR xdrs;
  rpc_msg reply{};
  reply.acpted_rply.ar_verf = _null_auth;
  reply.acpted_rply.ar_results.proc = no_data();
  memory_xdr(&xdrs, bytes);
  if (xdr_replymsg(&xdrs, &reply) != FALSE) {
    rpc_err error{};
    _seterr_reply(&reply, &error);
  }
  int stat = 0;  // as a number: what has been decoded need not be one of its names
  std::memcpy(&stat, &reply.rm_reply.rp_stat, sizeof stat);
  std::free(stat == MSG_ACCEPTED ? reply.acpted_rply.ar_verf.oa_base : nullptr);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of exactly this size, aligned as records are.
  std::vector<std::uint64_t> aligned(size / 8 + 1);
  std::memcpy(aligned.data(), data, size);
  std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(aligned.data()), size};
  CallHead head;
  CallerState caller;
  if (take_front(&bytes, &head) && (head.new_caller == 0 || take_caller(&bytes, &caller))) {
    if (caller.known && caller.head.length > MAX_AUTH_BYTES) std::abort();
    decode_arguments(bytes, std::span(data, std::min<std::size_t>(size, 8)));
    decode_reply(bytes);
  }
  return 0;
}
