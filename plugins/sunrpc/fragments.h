// Messages of more than one fragment, as XDR streams that encode into the receiver's ring and decode out of it.
//
//   encoder --put()--> fragment in the ring --commit--> decoder --get()--> where it is wanted
//                      (await_room() when there is none)   (await_more() when there is none)
//
// Neither side holds a whole message anywhere. What is decoded is in memory that its sender may still change: each byte
// is copied out once, and what libtirpc reads in place (x_inline) it reads once.
//
// Client and server wait differently: they say how in a class of their own.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire.h"

namespace clan::rpc {

/// A message on its way out.
class OutMessage {
 public:
  OutMessage(MessageEndpoint& endpoint, PeerIndex to, std::uint32_t xid) : endpoint_(endpoint), to_(to), xid_(xid) {}
  OutMessage(const OutMessage&) = delete;
  OutMessage& operator=(const OutMessage&) = delete;
  virtual ~OutMessage() = default;

  /// The first fragment, which begins with `head`: a CallHead or ReplyHead, and what belongs to it.
  bool begin(std::span<const std::byte> head);
  /// False, here and below: the peer has gone or takes nothing, or the message is too long.
  bool put(const void* from, std::size_t bytes);
  /// Room in one piece, null: there is none, put() does.
  char* put_inline(std::size_t bytes);
  bool finish();
  /// Nothing more can be encoded. The peer is told if it has a part.
  void give_up();
  /// Something of it has gone to the peer, and its end has not.
  bool in_the_middle() const { return in_the_middle_; }

  void xdr(XDR* xdrs);
  std::uint64_t position() const { return before_ + used_; }
  bool set_position(std::uint64_t position);

 protected:
  /// There is still no room: sleeps a while. False: that is enough.
  virtual bool await_room() = 0;

 private:
  bool reserve();
  void commit(GoOn go_on);
  bool next();

  MessageEndpoint& endpoint_;
  const PeerIndex to_;
  const std::uint32_t xid_;
  std::span<std::byte> room_;  ///< the fragment that is being encoded
  std::size_t used_ = 0;       ///< of it
  std::uint64_t before_ = 0;   ///< bytes of fragments before
  bool in_the_middle_ = false;
};

/// A message that comes in.
class InMessage {
 public:
  /// `first`: of the first fragment, behind its heads.
  explicit InMessage(std::span<const std::byte> first) : bytes_(first) {}
  InMessage(const InMessage&) = delete;
  InMessage& operator=(const InMessage&) = delete;
  virtual ~InMessage() = default;

  void xdr(XDR* xdrs);
  /// Whether the stream is one of xdr()'s.
  static bool decodes(const XDR* xdrs);
  bool get(void* to, std::size_t bytes);
  char* get_inline(std::size_t bytes);
  std::uint64_t position() const { return before_ + used_; }
  bool set_position(std::uint64_t position);

 protected:
  /// Lets the fragment go and waits for the next: its bytes behind the head. False: there is none.
  virtual bool await_more(std::span<const std::byte>* bytes) = 0;

 private:
  bool next();
  std::span<const std::byte> bytes_;
  std::size_t used_ = 0;
  std::uint64_t before_ = 0;
};

}  // namespace clan::rpc
