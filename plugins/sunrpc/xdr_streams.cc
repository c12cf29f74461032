#include "xdr_streams.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace clan::rpc {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 31;

OutBuffer& out(XDR* xdrs) { return *static_cast<OutBuffer*>(xdrs->x_private); }

bool_t no_long(XDR*, long*) { return FALSE; }
bool_t no_bytes(XDR*, char*, u_int) { return FALSE; }

char* more(OutBuffer& buffer, std::size_t bytes) {
  if (buffer.capacity - buffer.size < bytes && !buffer.reserve(buffer.size + bytes)) return nullptr;
  char* at = buffer.data + buffer.size;
  buffer.size += bytes;
  return at;
}

bool_t put_long(XDR* xdrs, const long* value) {
  char* at = more(out(xdrs), 4);
  if (at == nullptr) return FALSE;
  const std::uint32_t word = htonl(static_cast<std::uint32_t>(*value));
  std::memcpy(at, &word, 4);
  return TRUE;
}

bool_t put_bytes(XDR* xdrs, const char* from, u_int bytes) {
  if (bytes == 0) return TRUE;
  char* at = more(out(xdrs), bytes);
  if (at == nullptr) return FALSE;
  std::memcpy(at, from, bytes);
  return TRUE;
}

u_int out_position(XDR* xdrs) { return static_cast<u_int>(out(xdrs).size); }

bool_t set_out_position(XDR* xdrs, u_int position) {
  OutBuffer& buffer = out(xdrs);
  if (position > buffer.capacity) return FALSE;
  buffer.size = position;
  return TRUE;
}

int32_t* out_inline(XDR* xdrs, u_int bytes) {
  OutBuffer& buffer = out(xdrs);
  if (buffer.size % 4 != 0) return nullptr;
  return reinterpret_cast<int32_t*>(more(buffer, bytes));
}

void destroy_nothing(XDR*) {}
bool_t control_nothing(XDR*, int, void*) { return FALSE; }

constexpr XDR::xdr_ops kGrowing = {no_long,    put_long,        no_bytes,
                                   put_bytes,  out_position,    set_out_position,
                                   out_inline, destroy_nothing, control_nothing};

}  // namespace

OutBuffer::~OutBuffer() { std::free(data); }

bool OutBuffer::reserve(std::size_t bytes) {
  if (bytes <= capacity) return true;
  if (bytes > kMost) return false;
  const std::size_t wanted = std::max(bytes, std::max<std::size_t>(capacity * 2, 16 * 1024));
  auto* grown = static_cast<char*>(std::realloc(data, wanted));
  if (grown == nullptr) return false;
  data = grown;
  capacity = wanted;
  return true;
}

void growing_xdr(XDR* xdrs, OutBuffer* buffer) {
  *xdrs = {};
  xdrs->x_op = XDR_ENCODE;
  xdrs->x_ops = &kGrowing;
  xdrs->x_private = buffer;
}

void memory_xdr(XDR* xdrs, std::span<const std::byte> bytes) {
  xdrmem_create(xdrs, reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data())),
                static_cast<u_int>(bytes.size()), XDR_DECODE);
}

void freeing_xdr(XDR* xdrs) {
  *xdrs = {};
  xdrs->x_op = XDR_FREE;
  xdrs->x_ops = &kGrowing;  // nobody calls them
}

}  // namespace clan::rpc
