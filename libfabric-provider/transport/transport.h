// Transport: an endpoint's place in the network. It owns the engine's message endpoint, knows its peers, and
// is where messages leave and arrive. A plain endpoint has one; the contexts of a scalable endpoint share
// one.
//
// Peers are known by Name, whoever connected to whom. All that we send to one goes through one connection, so
// it stays in order. Everything is under the domain's lock.
#pragma once

#include <clan/aperture.h>
#include <clan/message.h>
#include <clan/rdma.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "address.h"
#include "atomic_types.h"
#include "av.h"
#include "cq.h"
#include "memory_region.h"
#include "provider.h"
#include "transport/matching.h"
#include "transport/pieces.h"
#include "transport/wire.h"

namespace clan::ofi {

class Counter;
class Domain;

inline constexpr PeerIndex kNoPeer = ~PeerIndex{0};
inline constexpr std::size_t kMostSmallAccess = 8192;
inline constexpr std::size_t kFewPeers = 64;  ///< that are remembered, though they have gone

/// A peer's region that we have looked up.
struct RemoteRegion {
  RemoteAperture aperture;
  std::uint64_t base = 0;
  bool tell_owner = false;
  std::vector<RemoteAperture> pieces;  ///< where it has several: these one behind the other, not `aperture`
};

/// An operation of ours that is not complete yet.
struct Operation {
  Operation* next = nullptr;
  Operation* previous = nullptr;
  std::uint32_t id = 0;  ///< its place in Transport::operations_
  bool live = false;
  bool waits_for_copy = false;  ///< the engine will say that the peer has copied the message
  bool waits_for_answer = false;
  Op answer = Op::kAck;          ///< which: kAck, kAtomicReply, kGetReply; kPut: none, its AccessWord says it
  std::uint64_t generation = 0;  ///< counts the operations that this has been
  int err = 0;
  Endpoint* owner = nullptr;
  Peer* peer = nullptr;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the completion
  bool completion = false;  ///< there is to be one
  Counter* counter = nullptr;
  std::vector<std::byte> gathered;  ///< a message that was in pieces
  std::uint64_t owed = 0;           ///< part of Peer::owed
  bool is_barrier = false;          ///< one of Peer::barriers
  // An atomic operation: where its results go.
  iovec results[kIovLimit] = {};
  std::uint32_t result_count = 0;
};

/// A small access that has been sent as a message and is not known to have been made.
struct SmallAccess {
  std::atomic<AccessWord>* word = nullptr;  ///< in the message
  std::uint64_t mark = 0;  ///< when that has been passed the message is gone, and the access made
  Operation* operation = nullptr;
  std::uint64_t generation = 0;  ///< of the operation: with another one this has ended, by kGetReply
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  std::byte* bytes = nullptr;  ///< of a write: in the message; null: a read
  std::size_t length = 0;
  std::uint64_t atomics = 0;  ///< atomic operations that had been sent to the peer before
};

/// Those of one peer, in the order sent.
struct SmallAccesses {
  static constexpr std::size_t kMost = 256;
  std::array<SmallAccess, kMost> ring;
  std::uint64_t first = 0, end = 0;
  std::uint32_t looks = 0;   ///< in vain, since one was seen to be made
  std::uint64_t since = 0;   ///< monotonic ns at the first of them that looked at the clock, 0: none
  std::uint32_t direct = 0;  ///< accesses still to be made by ourselves, as the peer has not been polling
  std::uint32_t next_direct = 0;
  std::uint32_t turn = 0;
  bool listed = false;  ///< in Transport::accessing_

  bool empty() const { return first == end; }
  bool full() const { return end - first == kMost; }
  SmallAccess& front() { return ring[first % kMost]; }
  SmallAccess& back() { return ring[(end - 1) % kMost]; }
  SmallAccess& push() { return ring[end++ % kMost]; }
  void pop() {
    ++first;
    looks = 0;
    since = 0;
  }
};

/// A request of Op::kLongAtomic, and how far we are with it.
struct LongAtomic {
  std::uint32_t id = 0;
  std::uint16_t context = 0;
  fi_datatype type = FI_UINT64;
  fi_op op = FI_SUM;
  AtomicKind kind = AtomicKind::kWrite;
  std::size_t size = 0;  ///< of a value
  AtomicTarget targets[kIovLimit];
  std::size_t target_count = 1;
  std::uint64_t count = 0;  ///< values of all targets
  std::uint64_t head = 0;   ///< bytes of the body before the operands
  // The body: with the sender, or here.
  std::optional<SetAside> aside;
  std::span<const std::byte> body;
  std::vector<std::byte> kept;  ///< what `body` shows, where it must outlive its message

  std::size_t target = 0;  ///< at work on this one
  std::uint64_t at = 0;    ///< values of that one done
  std::uint64_t done = 0;  ///< of all

  std::uint64_t body_bytes() const { return aside ? aside->size() : body.size(); }
  std::uint64_t result_bytes() const { return kind == AtomicKind::kWrite ? 0 : count * size; }
  bool finished() const { return target == target_count; }
};

/// Accesses to a peer's memory that its driver thread makes, where the kernel does not let us, and that have
/// not ended while we waited. One operation, or the small access in front.
struct SlowCopies {
  std::optional<RdmaQueue> queue;  ///< which ends them when it goes
  std::size_t left = 0;
  int err = 0;
  Operation* operation = nullptr;  ///< null: the small access in front
  // What its owner is to be told in the end: Op::kRmaDone.
  bool tells_owner = false;
  bool write = false;
  std::uint16_t context = 0;
  std::uint64_t key = 0, address = 0, length = 0;
  std::optional<std::uint64_t> data;
};

struct Peer {
  Name name;
  PeerIndex index = kNoPeer;      ///< the connection that we send by
  PeerIndex open = kNoPeer;       ///< the same, while there are no barriers
  std::uint32_t barriers = 0;     ///< operations of ours under way that nothing may overtake
  std::uint64_t owed = 0;         ///< answers that it owes us, in bytes: see kMostOwed
  PeerIndex pending = kNoPeer;    ///< the one that it has yet to accept
  std::uint32_t connections = 0;  ///< by either side, those two among them
  mutable bool wanted = false;    ///< by forget_peers(): somebody refers to it
  bool introduced = false;        ///< which carries a message of introduce()
  int failure = 0;                ///< what became of that, for the next who sends
  std::uint64_t node = 0;
  std::uint32_t uid = 0;
  fi_addr_t address = FI_ADDR_NOTAVAIL;  ///< in the address vector, as of `generation`
  std::uint32_t generation = 0;
  SocketAddress raw;                           ///< as it has introduced itself
  std::deque<std::vector<std::byte>> answers;  ///< of ours, that found no room
  std::size_t answer_bytes = 0;                ///< in them, and what keeping them costs
  std::unique_ptr<LongAtomic> long_atomic;     ///< of it, that waits for room for its results
  bool crowded = false;                        ///< in Transport::crowded_
  bool doomed = false;        ///< what we owe it has been lost for want of memory: the connection must end
  std::uint32_t atomics = 0;  ///< without an answer so far
  std::uint64_t atomics_sent = 0;  ///< ever; answers come in their order
  std::unordered_map<std::uint64_t, RemoteRegion> regions;
  std::unique_ptr<SmallAccesses> accesses;  ///< null: there have been none
  std::unique_ptr<SlowCopies> slow;
  // Its driver thread has not answered: not asked again before that time, and then not for twice as long.
  std::uint64_t silent_until = 0, silence = 0;

  void send_by(PeerIndex connection) {
    index = connection;
    open = barriers == 0 ? index : kNoPeer;
  }
  void forget_answers() {
    answers.clear();
    answer_bytes = 0;
    long_atomic.reset();
  }
};

/// One message to send.
struct Sending {
  WireHeader header;
  const iovec* iov = nullptr;
  std::size_t count = 0;
  std::size_t length = 0;
  void* context = nullptr;
  std::uint64_t flags = 0;  ///< of the completion: FI_SEND | FI_TAGGED and the like
  bool completion = false;
  bool inject = false;    ///< the buffer is the caller's again when we return
  bool delivery = false;  ///< complete only when the peer has received it
  Counter* counter = nullptr;
};

/// A write or read for Transport::start_small_access().
struct SmallTransfer {
  bool write = false;
  std::uint16_t context = 0;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  const iovec* local = nullptr;  ///< one piece, where it is a read
  std::size_t local_count = 0;
  std::size_t length = 0;
  const std::uint64_t* data = nullptr;  ///< remote CQ data
  void* program_context = nullptr;
  bool completion = false;
  Counter* counter = nullptr;
};

/// A receive has been posted: puts it in the list, and gives it the message that waits for it.
void post_receive(ReceiveQueue& queue, ReceiveQueue::Kind kind, Posted& posted);

/// A message endpoint of the engine under the name `wanted`, or a free one where its port is 0. `taken`: the
/// address by which others find it.
Result<MessageEndpoint> take_name(Context& context, const SocketAddress& wanted,
                                  const MessageOptions& options, SocketAddress* taken);

class Transport {
 public:
  explicit Transport(Domain& domain) : domain_(domain) {}
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  /// Takes a name: that of `wanted`, or a free one where its port is 0. Once.
  int start(const SocketAddress& wanted);
  bool started() const { return messages_.has_value(); }
  const SocketAddress& address() const { return address_; }
  Domain& domain() { return domain_; }
  int register_with(EventQueue& events);
  void set_av(Av* av) { av_ = av; }
  Av* av() const { return av_; }
  /// From now on messages for this receive context are `endpoint`'s; those that have come already too.
  void attach(Endpoint& endpoint, unsigned context);
  void detach(Endpoint& endpoint, unsigned context);
  /// Whether something that is under way counts by this counter.
  bool uses(const Counter& counter) const;
  /// What an endpoint has under way will not be heard of again.
  void forget(const Endpoint& endpoint);

  /// True when something has been done. Takes no more messages when there is something in `until`.
  bool progress(const Cq* until = nullptr) { return !idle() && make_progress(until); }
  /// Forgets peers that have gone, where there are many. Not within a call that knows one.
  void tidy() {
    if (peers_.size() > most_peers_) [[unlikely]]
      forget_peers();
  }
  /// Of a scalable endpoint: messages may be for that many receive contexts.
  void set_receive_contexts(std::size_t count) { receive_contexts_ = count; }

  /// The peer of an address, known or new; null: there is no such address.
  Peer* peer(fi_addr_t address) {
    if (address < by_address_.size() && by_address_generation_ == av_->generation()) [[likely]] {
      if (Peer* p = by_address_[address]) return p;
    }
    return peer_slowly(address);
  }
  fi_addr_t address_of(Peer& peer) {
    if (peer.generation == av_generation()) [[likely]]
      return peer.address;
    return find_address(peer);
  }

  /// Whether something may be started with a peer; connects if need be. -FI_EAGAIN: the peer has yet to
  /// accept, or has something to do for us that nothing may overtake; or why it cannot be reached.
  int ready(Peer& peer) { return peer.open != kNoPeer ? 0 : ready_slowly(peer); }
  /// FI_FENCE: 0 when all that we have started with this peer has completed, else -FI_EAGAIN.
  int fence(Peer& peer);
  /// 0; -FI_EAGAIN: no room, read completions; or why the peer cannot be reached.
  ssize_t send(Endpoint& from, Peer& to, const Sending& sending);
  /// The short way for a message that the caller may forget: header and bytes in place.
  ssize_t send_at_once(Peer& to, const WireHeader& header, const void* bytes, std::size_t length) {
    if (to.open != kNoPeer) [[likely]] {
      if (send_whole(to, header, bytes, length).ok()) [[likely]]
        return 0;
    }
    return send_after_progress(to, header, bytes, length);
  }

  /// A write or read of up to kMostSmallAccess bytes as a message, which needs no system call where the peer
  /// polls. 0; -FI_EAGAIN: no room; -FI_EOPNOTSUPP: better made by access().
  int start_small_access(Endpoint& from, Peer& to, const SmallTransfer& transfer);
  /// Small accesses to a peer that are left when those that can be have been made.
  enum class Left {
    kNone,
    kBehindAtomics,  ///< the peer has yet to answer atomic operations that came first
    kTheirs,         ///< the peer is making one, and will not say when it has
  };
  Left finish_accesses(Peer& peer);
  /// Of all peers, the last that is true of any.
  Left finish_accesses();
  /// Copies between local memory and a region of a peer. 0 or -FI_...; -FI_EAGAIN: nothing has been done, the
  /// peer does not say where its region is. Where the kernel does not let us copy this only begins:
  /// end_access() comes next.
  int access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address, std::byte* local,
             std::size_t length);
  bool has_begun_access() const { return copying_ > 0; }
  /// Waits, though not for long, for what access() has begun. 0, -FI_...; -FI_EINPROGRESS: go_on_later().
  int end_access();
  /// What access() has begun is an operation from now on, which nothing overtakes. `copies`: what is known of
  /// it.
  void go_on_later(Endpoint& from, Peer& peer, const Sending& sending, SlowCopies copies,
                   std::vector<std::byte> bytes);
  bool copies_slowly() const { return !slow_.empty(); }
  /// Tells the owner of a region of an access. `data`: remote CQ data.
  int tell_owner(Peer& peer, std::uint16_t context, bool write, std::uint64_t key, std::uint64_t address,
                 std::uint64_t length, const std::uint64_t* data);
  /// Whether the owner wants to hear of accesses. After access().
  bool owner_listens(Peer& peer, std::uint64_t key);

  // Message endpoints.
  /// From now on only introduce() connects.
  void only_introduce() { connects_ = false; }
  /// Connects to whoever has this name, and says what. `hear`: to what it says we listen from now on; else to
  /// its answer alone, while the endpoint waits for that.
  int introduce(const Name& to, const WireHeader& header, const void* data, std::size_t length, bool hear,
                Peer** peer);
  void hang_up(Peer& peer);

  /// Sends an atomic operation off. Its operands have been gathered behind the request.
  ssize_t start_atomic(Endpoint& from, Peer& to, const Sending& sending, const iovec* results,
                       std::size_t result_count);
  /// The same for Op::kLongAtomic; `sending.iov[0]` is the request.
  ssize_t start_long_atomic(Endpoint& from, Peer& to, const Sending& sending, const iovec* results,
                            std::size_t result_count);

  // Receiving.
  /// Gives a message that has waited to a receive, which is in the list.
  void deliver(Unexpected& message, Posted& posted, ReceiveQueue& queue, ReceiveQueue::Kind kind);
  /// A message that nobody will get: tells its sender.
  void discard(Unexpected& message);

 private:
  enum class Taken { kNo, kDropped, kWaits };
  /// Nothing is there to be done. Most looks find that, and half of one is in every latency.
  bool idle() const {
    return !messages_ || progressing_ ||
           (posted_sends_ == 0 && held_.empty() && accessing_.empty() && slow_.empty() && crowded_.empty() &&
            messages_->quiet());
  }
  bool make_progress(const Cq* until);
  [[gnu::always_inline]] inline bool work_off(const Cq* until);
  void break_with(PeerIndex index);
  void break_with_doomed();
  Peer* peer_slowly(fi_addr_t address);
  Peer& peer_named(const Name& name);
  fi_addr_t find_address(Peer& peer);
  std::uint32_t av_generation() const { return av_ != nullptr ? av_->generation() : 0; }
  void remember(PeerIndex index, Peer* peer) {
    if (by_index_.size() <= index) by_index_.resize(index + 1);
    by_index_[index] = peer;
    ++peer->connections;
  }
  void forget_connection(PeerIndex index) {
    if (Peer* peer = std::exchange(by_index_[index], nullptr)) --peer->connections;
  }
  void forget_peers();
  int ready_slowly(Peer& peer);
  int connected(Peer& peer);
  bool may_ask(Peer& peer, std::size_t bytes);
  void charge(Operation& operation, std::size_t bytes, bool is_barrier);
  void send_by(Peer& peer, PeerIndex index);
  int begin_connect(Peer& peer, std::span<const std::byte> first);
  void be_patient(Peer& peer);
  int connect(Peer& peer);
  int accepted(Peer& peer);
  void give_up(Peer& peer);
  /// Ends what waits for this peer's answers, and forgets what we know of it.
  void abandon(Peer& peer, int err);
  Status send_whole(Peer& to, const WireHeader& header, const void* bytes, std::size_t length) {
    return messages_->try_send(to.index, bytes_of(header), {static_cast<const std::byte*>(bytes), length});
  }
  Status send_pieces(Peer& to, const Sending& sending);
  ssize_t send_after_progress(Peer& to, const WireHeader& header, const void* bytes, std::size_t length);
  Operation& make_operation(Endpoint* owner, Peer& peer, const Sending& sending);
  void finish(Operation& operation, int err);
  void release(Operation& operation);
  void settle(Operation& operation);
  /// Hands a message of ours to the engine, as an operation that has been made. 0, or why not: it is none
  /// then.
  ssize_t post(Operation& operation, std::span<const std::byte> header, const Sending& body,
               bool waits_for_answer);
  bool flush(Peer& peer);
  void answer(Peer& peer, const void* message, std::size_t length);
  void note_crowded(Peer& peer);
  void acknowledge(Peer& peer, const WireHeader& header);
  bool reap(Peer& peer);
  Left take_back(Peer& peer);
  bool make_ourselves(Peer& peer, SmallAccess& access);
  void end_ours(Peer& peer, SmallAccess& access, int rc);
  void keep_slow(Peer& peer, SlowCopies copies);
  bool look_after_slow();
  void end_slow(Peer& peer);
  bool look_after_accesses();
  RemoteRegion* region_of(Peer& peer, std::uint64_t key, int* rc);
  int is_silent(Peer& peer);
  int import_pieces(Peer& peer, std::uint32_t count, RemoteRegion* region);
  Status copy(RemoteAperture& aperture, bool write, std::uint64_t offset, std::byte* local,
              std::size_t length);
  Status copy_pieces(RemoteRegion& region, bool write, std::uint64_t offset, std::byte* local,
                     std::size_t length);

  /// False: it must wait, and is still in front.
  bool arrived(const IncomingMessage& message);
  void arrived_hello(PeerIndex from, std::span<const std::byte> bytes);
  void arrived_from_stranger(PeerIndex from, const WireHeader& header, std::span<const std::byte> bytes);
  bool arrived_acceptance(PeerIndex from, const WireHeader& header, std::span<const std::byte> bytes);
  void turn_away(PeerIndex stranger);
  Peer* asked_by(PeerIndex index) const;
  Taken arrived_for_receive(Peer& peer, const WireHeader& header, const IncomingMessage& message);
  void arrived_answer(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  void arrived_notice(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  /// kDropped: the message is held, and not in front any more.
  Taken arrived_access(PeerIndex from, Peer& peer, const WireHeader& header,
                       std::span<const std::byte> bytes);
  bool serve_access(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  void note_access(Peer& peer, const WireHeader& header, std::uint64_t what, std::uint64_t length,
                   const std::uint64_t* data);
  void resume_held();
  bool must_wait(PeerIndex from, const Peer& peer, const WireHeader& header);
  void arrived_atomic(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes);
  void arrived_long_atomic(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes,
                           const IncomingMessage& incoming);
  // Each 0 or FI_...
  int read_body(const LongAtomic& work, std::uint64_t offset, std::byte* to, std::size_t length);
  int check(LongAtomic& work, const WireHeader& header, const AtomicRequest& request);
  int step(Peer& peer, LongAtomic& work);
  void conclude(Peer& peer, LongAtomic& work, int err);
  bool carry_on(Peer& peer);
  void departed(PeerIndex index, int reason);
  /// Copies to a receive and completes it. `bytes` or `aside`.
  void complete_receive(Endpoint& endpoint, Peer& from, const WireHeader& header, std::size_t size,
                        const std::byte* bytes, const SetAside* aside, Posted& posted, ReceiveQueue& queue,
                        ReceiveQueue::Kind kind);

  Domain& domain_;
  std::optional<MessageEndpoint> messages_;
  std::optional<RdmaQueue> rdma_;
  std::size_t copying_ = 0;  ///< requests in it
  int copies_err_ = 0;       ///< of those that ended before -FI_EINPROGRESS
  SocketAddress address_;
  Av* av_ = nullptr;
  std::vector<Endpoint*> endpoints_;  ///< by receive context
  List<Unexpected> homeless_;         ///< messages for receive contexts that are not there yet
  std::unordered_map<Name, std::unique_ptr<Peer>, NameHash> peers_;
  std::vector<Peer*> by_index_;
  std::vector<Peer*> by_address_;
  std::uint32_t by_address_generation_ = 0;
  std::vector<std::unique_ptr<Operation>> operations_;
  Operation* free_operations_ = nullptr;
  std::size_t posted_sends_ = 0;  ///< that the engine has yet to complete
  std::vector<Peer*> crowded_;    ///< peers with something that found no room
  std::vector<Peer*> slow_;       ///< peers with SlowCopies, and those that had some just now
  std::vector<Peer*> accessing_;  ///< peers with small accesses that are not known to have been made
  struct HeldMessage {
    PeerIndex from;
    std::atomic<AccessWord>* word;  ///< of an access that its initiator makes; null: answers are in the way
  };
  std::vector<HeldMessage> held_;
  std::uint64_t impatient_until_ = 0;   ///< no first message waits until then (CLOCK_MONOTONIC)
  std::size_t most_peers_ = kFewPeers;  ///< with more it is time for forget_peers()
  std::size_t receive_contexts_ = 1;
  // A message endpoint that has asked for a connection: those who may be about to grant it.
  struct Stranger {
    PeerIndex index;
    SocketAddress raw;
  };
  std::vector<Stranger> strangers_;
  std::uint64_t turned_away_ = 0;  ///< messages of those with whom a message endpoint is not connected
  PeerIndex taking_ = kNoPeer;     ///< whose message is being taken
  bool any_doomed_ = false;
  bool registered_ = false;  ///< with the domain's event queue
  bool progressing_ = false;
  bool starving_ = false;  ///< a message waits for memory
  bool connects_ = true;
};

}  // namespace clan::ofi
