#include "xdr_streams.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace clan::rpc {
namespace {

constexpr std::size_t kMost = std::size_t{1} << 31;
constexpr std::size_t kDirect = 4096;  ///< longer items do not pass through the window

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

constexpr XDR::xdr_ops kGrowing = {no_long,          put_long,   no_bytes,        put_bytes,      out_position,
                                   set_out_position, out_inline, destroy_nothing, control_nothing};

RemoteMessage& in(XDR* xdrs) { return *static_cast<RemoteMessage*>(xdrs->x_private); }

bool_t get_long(XDR* xdrs, long* value) {
  std::uint32_t word;
  if (!in(xdrs).get(&word, 4)) return FALSE;
  *value = static_cast<long>(ntohl(word));  // without its sign, as all streams of libtirpc do
  return TRUE;
}
bool_t get_bytes(XDR* xdrs, char* to, u_int bytes) { return static_cast<bool_t>(in(xdrs).get(to, bytes)); }
bool_t no_put_long(XDR*, const long*) { return FALSE; }
bool_t no_put_bytes(XDR*, const char*, u_int) { return FALSE; }
u_int in_position(XDR* xdrs) { return static_cast<u_int>(in(xdrs).position()); }
bool_t set_in_position(XDR* xdrs, u_int position) {
  return static_cast<bool_t>(in(xdrs).set_position(position));
}
int32_t* in_inline(XDR* xdrs, u_int bytes) { return reinterpret_cast<int32_t*>(in(xdrs).get_inline(bytes)); }

constexpr XDR::xdr_ops kRemote = {get_long,        no_put_long, get_bytes,       no_put_bytes,   in_position,
                                  set_in_position, in_inline,   destroy_nothing, control_nothing};

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

RemoteMessage::~RemoteMessage() {
  std::unique_lock<std::mutex> guard;
  if (lock_ != nullptr) guard = std::unique_lock(*lock_);
  endpoint_.finish(message_);
}

void RemoteMessage::xdr(XDR* xdrs) {
  *xdrs = {};
  xdrs->x_op = XDR_DECODE;
  xdrs->x_ops = &kRemote;
  xdrs->x_private = this;
}

bool RemoteMessage::copy(std::uint64_t offset, std::span<std::byte> to) {
  std::unique_lock<std::mutex> guard;
  if (lock_ != nullptr) guard = std::unique_lock(*lock_);
  return endpoint_.copy(message_, offset, to).ok();
}

// The window begins anew where the last one was used up to.
bool RemoteMessage::refill() {
  const std::uint64_t at = position();
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kWindow, message_.size() - at));
  filled_ = used_ = 0;
  window_at_ = at;
  if (bytes == 0 || !copy(at, {window_, bytes})) return false;
  filled_ = bytes;
  return true;
}

bool RemoteMessage::get(void* to, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  if (bytes > message_.size() - position()) return false;
  while (bytes > 0) {
    const std::size_t here = std::min(bytes, filled_ - used_);
    if (here > 0) std::memcpy(at, window_ + used_, here);
    used_ += here;
    at += here;
    bytes -= here;
    if (bytes >= kDirect) {
      const std::uint64_t from = position();
      if (!copy(from, {at, bytes})) return false;
      window_at_ = from + bytes;
      filled_ = used_ = 0;
      return true;
    }
    if (bytes > 0 && !refill()) return false;
  }
  return true;
}

char* RemoteMessage::get_inline(std::size_t bytes) {
  if (bytes > message_.size() - position() || bytes > kWindow) return nullptr;
  if (filled_ - used_ < bytes && (!refill() || filled_ < bytes)) return nullptr;
  std::byte* at = window_ + used_;
  if (used_ % 4 != 0) return nullptr;
  used_ += bytes;
  return reinterpret_cast<char*>(at);
}

bool RemoteMessage::set_position(std::uint64_t position) {
  if (position > message_.size()) return false;
  window_at_ = position;
  filled_ = used_ = 0;
  return true;
}

}  // namespace clan::rpc
