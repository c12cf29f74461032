// Transport: how an endpoint sends to its peers and notices their end. A plain endpoint has one;
// the contexts of a scalable endpoint share one.
//
// The rooms of this folder take single steps and do not know each other. The loops are here: calls
// (transport.cc, accesses.cc, far_message_transfer.cc) make progress and try again; progress.cc
// takes messages to their rooms; departed() tells all that a connection has ended. All that is sent
// to a peer goes by one connection, so it stays in order. All is under the domain's lock.
#pragma once

#include <clan/event_queue.h>
#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "objects/av.h"
#include "transport/far_memory.h"
#include "transport/handshake.h"
#include "transport/operation_table.h"
#include "transport/peer_table.h"
#include "transport/receiver.h"
#include "transport/remote_memory.h"
#include "transport/send.h"
#include "wire/held_messages.h"
#include "wire/reply_queue.h"
#include "wire/small_access.h"

namespace clan::ofi {

class Cq;

class Transport {
 public:
  explicit Transport(Domain& domain);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int start(const SocketAddress& wanted);  ///< takes that name, a free one if its port is 0; once
  bool started() const { return channel_.messages.has_value(); }
  const SocketAddress& address() const { return channel_.address; }
  Domain& domain() { return domain_; }
  int register_with(EventQueue& events);
  void set_av(Av* av) { receiver_.set_av(av); }
  Av* av() const { return receiver_.av(); }
  Receiver& receiver() { return receiver_; }
  bool uses(const Counter& counter) const;  ///< whether something under way counts by it
  void forget(const Endpoint& endpoint);    ///< what it has under way is not reported any more

  /// True when something has been done. Takes no more messages when there is something in `until`.
  bool progress(const Cq* until = nullptr) {
    if (!channel_.messages || progressing_) return false;
    const bool pending = has_work();
    return (pending || !channel_.messages->quiet()) && make_progress(until, pending);
  }
  /// The same for a caller that has just fetched packets of other hosts.
  bool progress_fetched() { return started() && !progressing_ && make_progress(nullptr, false); }
  /// Forgets peers that have gone, where there are many. Not within a call that knows one.
  void tidy() {
    if (peers_.too_many()) [[unlikely]]
      forget_peers();
  }

  /// The peer of an address, known or new; null: there is no such address.
  Peer* peer(fi_addr_t address) { return peers_.at(address, *av()); }
  fi_addr_t address_of(Peer& peer) { return PeerTable::address_of(peer, av()); }

  /// Whether something may be started with a peer; connects if need be. -FI_EAGAIN: the peer has
  /// yet to accept, or to do what nothing may overtake; or why it cannot be reached.
  int ready(Peer& peer) { return peer.open != kNoPeer ? 0 : ready_slowly(peer); }
  /// FI_FENCE: 0 when all that we have started with this peer has completed, else -FI_EAGAIN.
  int fence(Peer& peer);
  /// 0; -FI_EAGAIN: no room, read completions; or why the peer cannot be reached.
  ssize_t send(Endpoint& from, Peer& to, const SendRequest& request);
  /// The short way for a message that the caller may forget: header and bytes in place.
  ssize_t send_at_once(Peer& to, const WireHeader& header, const void* bytes, std::size_t length) {
    if (to.open != kNoPeer) [[likely]] {
      if (send_whole(*channel_.messages, to.index, header, bytes, length).ok()) [[likely]]
        return 0;
    }
    return send_after_progress(to, header, bytes, length);
  }
  /// Sends an atomic operation off: `request.iov[0]` is the AtomicRequest.
  ssize_t start_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                       std::span<const iovec> results);

  /// A write or read of up to kMostSmallAccess bytes as a message, which needs no system call where
  /// the peer polls. 0; -FI_EAGAIN: no room; -FI_EOPNOTSUPP: better made by access().
  int start_small_access(Endpoint& from, Peer& to, const SmallTransfer& transfer);
  using Left = AccessesLeft;
  Left finish_accesses(Peer& peer);
  Left finish_accesses();  ///< of all peers, the last that is true of any
  /// RemoteMemory::access(), connecting if need be.
  int access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address, std::byte* local,
             std::size_t length);
  RemoteMemory& memory() { return memory_; }
  bool copies_slowly() const { return memory_.copies_slowly(); }
  /// The same on another host, as an operation. 0; else nothing has been begun.
  int start_far_access(Endpoint& from, Peer& peer, const SendRequest& request, SlowCopies copies,
                       std::span<const FarPiece> pieces, std::vector<std::byte> bytes);
  /// ready() for that: writes may follow writes, and reads either.
  int ready_for_far(Peer& peer, bool write);
  /// What access() has begun becomes an operation, which nothing overtakes. `copies`: its state.
  void go_on_later(Endpoint& from, Peer& peer, const SendRequest& request, SlowCopies copies,
                   std::vector<std::byte> bytes);
  /// Tells the owner of a region of an access. `data`: remote CQ data.
  int tell_owner(Peer& peer, std::uint16_t context, bool write, std::uint64_t key,
                 std::uint64_t address, std::uint64_t length, const std::uint64_t* data);

  // Message endpoints.
  void only_introduce() { handshake_.only_introduce(); }  ///< nothing else connects from now on
  /// Connects to the endpoint that has this name, and says what. `hear`: to what it says we listen
  /// from now on; else to its answer alone, while the endpoint waits for that.
  int introduce(const Name& to, const WireHeader& header, const void* data, std::size_t length,
                bool hear, Peer** peer);
  void hang_up(Peer& peer);

 private:
  class AccessHost;
  class AtomicSide;
  /// Whether there is something to be done beside messages. Most looks find neither, and half of
  /// one is in every latency.
  bool has_work() const {
    return posted_sends_ != 0 || !held_.empty() || !accessing_.empty() || memory_.copies_slowly() ||
           far_.any() || replies_.has_backlog();
  }
  // progress.cc
  bool make_progress(const Cq* until, bool pending);
  bool work_off(const Cq* until, bool pending);
  bool take_completions();
  bool arrived(const IncomingMessage& message);
  void arrived_from_stranger(PeerIndex from, const WireHeader& header,
                             std::span<const std::byte> bytes);
  bool must_wait(PeerIndex from, const Peer& peer, const WireHeader& header);
  void arrived_answer(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  // far_message_transfer.cc
  ssize_t send_offer(Endpoint& from, Peer& to, const SendRequest& request);
  Receiver::Taken arrived_offer(Peer& peer, const WireHeader& header,
                                std::span<const std::byte> bytes, PeerIndex from);
  void arrived_place(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  int send_to_place(Operation& operation, const PlaceReply& reply,
                    std::span<const std::byte> cookies);
  void end_message(const SlowCopies& message);
  void arrived_notice(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  void arrived_long_atomic(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes,
                           const IncomingMessage& message);
  void break_with(PeerIndex index);
  void break_with_lost();
  bool flush(Peer& peer);
  bool carry_on(Peer& peer);
  void resume_held();
  void departed(PeerIndex index, int reason);
  void abandon(Peer& peer, int err);
  void forget_peers();
  // transport.cc
  int ready_slowly(Peer& peer);
  int connected(Peer& peer);
  int connect(Peer& peer);
  int accepted(Peer& peer);
  bool may_ask(Peer& peer, std::size_t bytes);
  ssize_t send_after_progress(Peer& to, const WireHeader& header, const void* bytes,
                              std::size_t length);
  ssize_t post(Operation& operation, std::span<const std::byte> header, const SendRequest& body,
               bool waits_for_answer);
  ssize_t start_short_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                             std::span<const iovec> results);
  ssize_t start_long_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                            std::span<const iovec> results);
  // accesses.cc
  int reserve_access(Peer& to, SmallAccesses& accesses, std::size_t bytes,
                     std::span<std::byte>* room);
  bool look_after_accesses();
  Left take_back(Peer& peer);
  bool reap(Peer& peer);
  void end_slow(Peer& peer, const SlowCopies& slow);
  bool arrived_access(PeerIndex from, Peer& peer, const WireHeader& header,
                      std::span<const std::byte> bytes);
  bool serve(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);

  Domain& domain_;
  Channel channel_;
  PeerTable peers_;
  OperationTable operations_;
  ReplyQueue replies_;
  RemoteMemory memory_;
  FarMemory far_;
  Receiver receiver_;
  Handshake handshake_;
  HeldMessages held_;
  std::size_t posted_sends_ = 0;  ///< that the engine has yet to complete
  std::vector<Peer*> accessing_;  ///< whose small accesses are not known to have been made
  PeerIndex taking_ = kNoPeer;    ///< whose message is being taken
  bool registered_ = false;       ///< with the domain's event queue
  bool progressing_ = false;
};

}  // namespace clan::ofi
