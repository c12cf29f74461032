#include "fragments.h"

#include <arpa/inet.h>
#include <clan/detail/clock.h>
#include <clan/detail/cpu.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace clan::rpc {
namespace {

constexpr std::uint64_t kAwakeNs = 200'000;
constexpr unsigned kLooks = 32;

OutMessage& out(XDR* xdrs) { return *static_cast<OutMessage*>(xdrs->x_private); }
InMessage& in(XDR* xdrs) { return *static_cast<InMessage*>(xdrs->x_private); }

bool_t no_long(XDR*, long*) { return FALSE; }
bool_t no_bytes(XDR*, char*, u_int) { return FALSE; }
bool_t no_put_long(XDR*, const long*) { return FALSE; }
bool_t no_put_bytes(XDR*, const char*, u_int) { return FALSE; }
void destroy_nothing(XDR*) {}
bool_t control_nothing(XDR*, int, void*) { return FALSE; }

bool_t put_long(XDR* xdrs, const long* value) {
  const std::uint32_t word = htonl(static_cast<std::uint32_t>(*value));
  if (char* const at = out(xdrs).put_inline(4)) {
    std::memcpy(at, &word, 4);
    return TRUE;
  }
  return static_cast<bool_t>(out(xdrs).put(&word, 4));
}
bool_t put_bytes(XDR* xdrs, const char* from, u_int bytes) {
  return static_cast<bool_t>(out(xdrs).put(from, bytes));
}
u_int out_position(XDR* xdrs) { return static_cast<u_int>(out(xdrs).position()); }
bool_t set_out_position(XDR* xdrs, u_int to) {
  return static_cast<bool_t>(out(xdrs).set_position(to));
}
int32_t* out_inline(XDR* xdrs, u_int bytes) {
  return reinterpret_cast<int32_t*>(out(xdrs).put_inline(bytes));
}

bool_t get_long(XDR* xdrs, long* value) {
  std::uint32_t word;
  if (!in(xdrs).get(&word, 4)) return FALSE;
  *value = static_cast<long>(ntohl(word));  // without its sign, as all streams of libtirpc do
  return TRUE;
}
bool_t get_bytes(XDR* xdrs, char* to, u_int bytes) {
  return static_cast<bool_t>(in(xdrs).get(to, bytes));
}
u_int in_position(XDR* xdrs) { return static_cast<u_int>(in(xdrs).position()); }
bool_t set_in_position(XDR* xdrs, u_int to) {
  return static_cast<bool_t>(in(xdrs).set_position(to));
}
int32_t* in_inline(XDR* xdrs, u_int bytes) {
  return reinterpret_cast<int32_t*>(in(xdrs).get_inline(bytes));
}

constexpr XDR::xdr_ops kEncoding = {no_long,    put_long,        no_bytes,
                                    put_bytes,  out_position,    set_out_position,
                                    out_inline, destroy_nothing, control_nothing};
constexpr XDR::xdr_ops kDecoding = {get_long,     no_put_long,     get_bytes,
                                    no_put_bytes, in_position,     set_in_position,
                                    in_inline,    destroy_nothing, control_nothing};

}  // namespace

// --- out -----------------------------------------------------------------------------------------

// The receiver decodes while we encode: mostly there is room again in a few microseconds.
bool OutMessage::reserve(std::size_t bytes) {
  std::uint64_t asleep_from = 0;  // then await_room() sleeps
  for (unsigned looks = 1;; ++looks) {
    auto room = endpoint_.reserve(to_, bytes);
    if (room.ok()) {
      if (looks > 1 && !is_in_time()) return false;
      room_ = *room;
      used_ = 0;
      return true;
    }
    if (room.error().err != EAGAIN) return false;
    if (asleep_from == 0) asleep_from = monotonic_ns() + kAwakeNs;
    if (looks % kLooks != 0) {
      cpu_pause();
    } else if (monotonic_ns() < asleep_from) {
      ::sched_yield();  // to the receiver, if it is on this processor
    } else if (!await_room()) {
      return false;
    }
  }
}

std::byte* OutMessage::begin(std::size_t bytes) {
  return reserve(std::min(bytes, kFragment)) ? room_.data() : nullptr;
}

// The first fragment to a longer place, if there is one at once. What has been encoded lies where
// nothing has been committed yet: nobody else has written there.
bool OutMessage::grow() {
  if (in_the_middle_ || room_.size() >= kFragment) return false;
  const auto room = endpoint_.reserve(to_, kFragment);
  if (!room) return false;
  if (room->data() != room_.data()) std::memmove(room->data(), room_.data(), used_);
  room_ = *room;
  return true;
}

void OutMessage::commit(GoOn go_on) {
  room_[offsetof(ReplyHead, go_on)] = static_cast<std::byte>(go_on);
  endpoint_.commit(to_, used_);
  before_ += used_;
  used_ = 0;
  room_ = {};
  in_the_middle_ = go_on == kFollows;
}

bool OutMessage::next() {
  if (room_.empty() || before_ + used_ > kMostBytes) return false;
  if (grow()) return true;
  commit(kFollows);
  if (!reserve(kFragment)) return false;
  ReplyHead head;
  head.kind = kMore;
  head.xid = xid_;
  std::memcpy(room_.data(), &head, sizeof head);
  used_ = sizeof head;
  return true;
}

bool OutMessage::put(const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    if (used_ == room_.size() && !next()) return false;
    const std::size_t here = std::min(bytes, room_.size() - used_);
    std::memcpy(room_.data() + used_, at, here);
    used_ += here;
    at += here;
    bytes -= here;
  }
  return true;
}

char* OutMessage::put_inline(std::size_t bytes) {
  if (used_ % 4 != 0 || room_.size() - used_ < bytes) return nullptr;
  auto* at = reinterpret_cast<char*>(room_.data() + used_);
  used_ += bytes;
  return at;
}

bool OutMessage::finish() {
  if (room_.empty()) return false;
  commit(kLast);
  return true;
}

void OutMessage::give_up() {
  if (!in_the_middle_) return;  // a fragment that is not committed has not been sent
  if (room_.empty() && !reserve(kFragment)) return;
  ReplyHead head;
  head.kind = kMore;
  head.xid = xid_;
  std::memcpy(room_.data(), &head, sizeof head);
  used_ = sizeof head;
  commit(kGivenUp);
}

// Within the fragment.
bool OutMessage::set_position(std::uint64_t position) {
  if (position < before_ + sizeof(ReplyHead) || position - before_ > room_.size()) return false;
  used_ = static_cast<std::size_t>(position - before_);
  return true;
}

void OutMessage::xdr(XDR* xdrs) {
  *xdrs = {};
  xdrs->x_op = XDR_ENCODE;
  xdrs->x_ops = &kEncoding;
  xdrs->x_private = this;
}

// --- in ------------------------------------------------------------------------------------------

bool InMessage::next() {
  before_ += bytes_.size();
  used_ = 0;
  bytes_ = {};
  return before_ <= kMostBytes && await_more(&bytes_);
}

bool InMessage::get(void* to, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    if (used_ == bytes_.size() && !next()) return false;
    const std::size_t here = std::min(bytes, bytes_.size() - used_);
    std::memcpy(at, bytes_.data() + used_, here);
    used_ += here;
    at += here;
    bytes -= here;
  }
  return true;
}

char* InMessage::get_inline(std::size_t bytes) {
  const auto* at = bytes_.data() + used_;
  if (bytes_.size() - used_ < bytes || reinterpret_cast<std::uintptr_t>(at) % 4 != 0)
    return nullptr;
  used_ += bytes;
  return reinterpret_cast<char*>(const_cast<std::byte*>(at));
}

// Within the fragment.
bool InMessage::set_position(std::uint64_t position) {
  if (position < before_ || position - before_ > bytes_.size()) return false;
  used_ = static_cast<std::size_t>(position - before_);
  return true;
}

void InMessage::append_to(std::vector<std::byte>* to) {
  do {
    to->insert(to->end(), bytes_.begin() + static_cast<std::ptrdiff_t>(used_), bytes_.end());
  } while (next());
}

bool InMessage::decodes(const XDR* xdrs) { return xdrs->x_ops == &kDecoding; }

void InMessage::xdr(XDR* xdrs) {
  *xdrs = {};
  xdrs->x_op = XDR_DECODE;
  xdrs->x_ops = &kDecoding;
  xdrs->x_private = this;
}

}  // namespace clan::rpc
