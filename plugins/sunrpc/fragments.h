// Messages as XDR streams that encode into the receiver's ring, and those of more than one fragment
// decoded out of it.
//
//   encoder --put()--> fragment in the ring --commit--> decoder --get()--> where it is wanted
//                      (await_room() when there is none)   (await_more() when there is none)
//
// A message is encoded once, whatever its size turns out to be: its routine may read what it
// encodes from a file. It begins in a small place. Where that is full it moves to one of a
// fragment, and goes on in further fragments from there.
//
// Neither side holds a message of several fragments anywhere. What is decoded is in memory that its
// sender may still change: each byte is copied out once, and what libtirpc reads in place
// (x_inline) it reads once.
//
// Client and server wait differently: they say how in a class of their own.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire.h"

namespace clan::rpc {

/// A message on its way out.
class OutMessage {
 public:
  OutMessage(MessageEndpoint& endpoint, PeerIndex to, std::uint32_t xid)
      : endpoint_(endpoint), to_(to), xid_(xid) {}
  OutMessage(const OutMessage&) = delete;
  OutMessage& operator=(const OutMessage&) = delete;
  virtual ~OutMessage() = default;

  /// The first fragment: room for `bytes`, where the caller puts the head, then calls headed().
  /// A CallHead or ReplyHead, and what belongs to it. The message may become longer.
  std::byte* begin(std::size_t bytes);
  void headed(std::size_t bytes) { used_ = bytes; }
  /// False, here and below: the peer has gone or takes nothing, or the message is too long.
  bool put(const void* from, std::size_t bytes);
  /// Room in one piece, null: there is none, put() does.
  char* put_inline(std::size_t bytes);
  bool finish();
  /// Nothing more can be encoded. Notifies the peer if it has a part.
  void give_up();
  /// Something of it has gone to the peer, and its end has not.
  bool in_the_middle() const { return in_the_middle_; }
  /// What finish() will send; after fragments: the last of them.
  std::span<const std::byte> last() const { return room_.first(used_); }

  void xdr(XDR* xdrs);
  std::uint64_t position() const { return before_ + used_; }
  bool set_position(std::uint64_t position);

 protected:
  /// Asked when there has been no room at once. False: that is enough.
  virtual bool is_in_time() { return true; }
  /// There is still no room: sleeps a while. False: that is enough.
  virtual bool await_room() = 0;

 private:
  bool reserve(std::size_t bytes);
  bool grow();
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
  /// All that comes, as it is.
  void append_to(std::vector<std::byte>* to);

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
