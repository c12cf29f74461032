// What a peer may write into a call: heads, credentials, arguments; and a reply, as libtirpc decodes it.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

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
  return static_cast<bool_t>(
      xdr_string(xdrs, &item->text, 1000) != FALSE &&
      xdr_bytes(xdrs, &item->bytes, &item->bytes_length, 100'000) != FALSE &&
      xdr_array(xdrs, reinterpret_cast<char**>(&item->numbers), &item->numbers_length, 10'000, sizeof(int),
                as_xdrproc(xdr_int)) != FALSE &&
      xdr_pointer(xdrs, reinterpret_cast<char**>(&item->next), sizeof(Item), as_xdrproc(xdr_item)) != FALSE);
}

void decode_arguments(std::span<const std::byte> bytes) {
  XDR xdrs;
  Item item{};
  memory_xdr(&xdrs, bytes);
  (void)xdr_item(&xdrs, &item);
  freeing_xdr(&xdrs);
  (void)xdr_item(&xdrs, &item);
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
  std::free(reply.rm_reply.rp_stat == MSG_ACCEPTED ? reply.acpted_rply.ar_verf.oa_base : nullptr);
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
    decode_arguments(bytes);
    decode_reply(bytes);
  }
  return 0;
}
