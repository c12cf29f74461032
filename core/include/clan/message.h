// Message endpoints: reliable, ordered messages between one endpoint and any number of peers.
//
//   auto a = MessageEndpoint::create(context, "worker");           // or without a name
//   auto to = b->connect(a->address());                            // a number for the peer
//   b->send(*to, bytes);
//   auto m = a->recv(buffer);                                      // {from, size}; answer to
//                                                                  m->from
//
// Small messages are one record in the peer's ring. A large one stays where it is: the receiver
// copies it from the sender's memory straight into its buffer (process_vm_readv), with the sender's
// help if that is polling; where the kernel forbids that, or over a network, it travels in
// fragments. Messages of one peer arrive in the order sent. Memory use is bounded by rings, not by
// the number of peers: a sender waits.
//
// The cost of receiving does not depend on how many peers are silent.
//
// Thread-safety: one thread at a time uses an endpoint (sending and receiving share progress), any
// thread. Errors common to all: ESHUTDOWN (context ended, or forked child), EINTR (a signal arrived
// while asleep). For one peer: ECONNRESET (it died), EPROTO (it wrote nonsense into shared memory),
// EPIPE (it has closed, or ended in order).
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>
#include <clan/message_types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace clan {

namespace engine {
class MessageEndpointCore;
}

class CLAN_EXPORT MessageEndpoint {
 public:
  /// `service` may be empty: reachable by address() only. EADDRINUSE.
  static Result<MessageEndpoint> create(Context& context, const std::string& service = {},
                                        const MessageOptions& options = {});
  MessageEndpoint(MessageEndpoint&&) noexcept = default;
  MessageEndpoint& operator=(MessageEndpoint&&) noexcept = default;

  Address address() const;

  /// Connects, once per peer. The peer learns our address with the first message.
  Result<PeerIndex> connect(const Address& peer, std::int64_t timeout_ms = -1);
  Result<PeerIndex> connect(const std::string& service, std::int64_t timeout_ms = -1,
                            std::int64_t uid = -1);
  /// Connects without waiting for the peer. Until it has accepted, sends to it answer EAGAIN.
  /// `greetings` are the first messages that it gets, as soon as it has accepted, whatever the
  /// caller does meanwhile. If it does not accept, within `timeout_ms` and at most ten seconds, it
  /// has departed (take_departed()) with the reason: ECONNREFUSED, ETIMEDOUT, EACCES; EMSGSIZE: its
  /// ring does not hold the greetings. ECONNREFUSED at once: nobody offers the service. EAGAIN: too
  /// many ask it at this moment. A host that `service` has by name, not by number, is asked of the
  /// resolver first, within this call.
  Result<PeerIndex> begin_connect(const std::string& service,
                                  std::span<const std::span<const std::byte>> greetings = {},
                                  std::int64_t timeout_ms = -1, std::int64_t uid = -1);
  /// Waits until a peer has accepted. EAGAIN: it has not in that time; else why it never will.
  /// Takes no messages meanwhile.
  Status await(PeerIndex peer, std::int64_t timeout_ms = -1);
  /// Where a peer can be connected to (its endpoint). ENOTCONN: it has not accepted.
  Result<Address> peer_address(PeerIndex peer) const;
  /// Whether a peer that has accepted is on another host (ContextOptions::network).
  bool is_far(PeerIndex peer) const;
  /// Ends the relation with one peer. Messages of it that are not received yet are dropped. One
  /// that has yet to accept gets its greetings all the same, if it does so in time.
  void disconnect(PeerIndex peer);

  /// Sends one message and waits until the buffer may be reused. Receives nothing meanwhile, but
  /// helps peers that copy. EMSGSIZE, ETIMEDOUT (nothing of it will arrive); EPIPE, ECONNRESET,
  /// EPROTO: the peer is gone, see above.
  Status send(PeerIndex to, std::span<const std::byte> message, std::int64_t timeout_ms = -1);
  /// The same without waiting. EAGAIN: no room now. A large message is accepted at once; its memory
  /// must stay until poll_sent() gives back `cookie`. True = complete already.
  Result<bool> post(PeerIndex to, std::span<const std::byte> message, std::uint64_t cookie);
  /// The same for a message in two parts. Where it goes through the ring the receiver sees them as
  /// one; where it is offered the header goes ahead, and IncomingMessage::header shows it. EINVAL:
  /// longer than kMaxMessageHeader.
  Result<bool> post(PeerIndex to, std::span<const std::byte> header,
                    std::span<const std::byte> message, std::uint64_t cookie);
  /// Takes completions of posted sends.
  std::size_t poll_sent(std::span<SendCompletion> completions);

  /// Sends without a copy by the engine: fill the room, then commit. EAGAIN, EMSGSIZE
  /// (max_eager()).
  Result<std::span<std::byte>> reserve(PeerIndex to, std::size_t bytes);
  void commit(PeerIndex to, std::size_t bytes);
  std::size_t max_eager(PeerIndex to) const;
  /// The same in one call, for bytes that lie elsewhere: the receiver sees both parts as one
  /// message. Whole or not at all. EAGAIN, EMSGSIZE (max_eager()).
  Status try_send(PeerIndex to, std::span<const std::byte> header,
                  std::span<const std::byte> message);

  // For callers that wait by peek() and not by recv(): first spin(), then one of the two ways to
  // sleep, then peek() again. Spurious ends of all three are possible.
  /// Looks as long as the context's WaitOptions make worth while. True: there may be something to
  /// find.
  bool spin();
  /// Sleeps until there may be something to find. ETIMEDOUT, EINTR.
  Status sleep(std::int64_t timeout_ms = -1);
  /// A descriptor that becomes readable when there is something to find, for epoll and friends.
  /// Owned by the endpoint. Unlike an event queue it costs a sender nothing while nobody sleeps.
  Result<int> fd();
  /// Before sleeping on fd(). False: look first; the descriptor may then be readable or not. One
  /// that woke the sleeper stays readable until this is called.
  bool arm_fd();
  /// Makes the descriptor readable: for a caller that has to look elsewhere before it looks here
  /// again.
  void ring_fd();
  /// Ends a sleep() of another thread, or the next one if there is none: what was written before is
  /// seen behind it and the peek() that follows. A handler of a signal may do it, at any time.
  void wake();

  /// True when peek(), poll_sent() and take_departed() would find nothing now. For callers that
  /// poll: costs a fraction of what they do.
  bool quiet() const;

  /// Receives one message of any peer. EAGAIN.
  Result<MessageInfo> try_recv(std::span<std::byte> buffer);
  /// The same, waiting. ETIMEDOUT. Once nothing is left to receive, it also fails once for each
  /// peer that has gone: ECONNRESET or EPROTO for any of them, EPIPE for one that *we* had
  /// connected to. The endpoint stays usable: call again to wait for the others, and for new ones.
  /// It is silent about a peer that had connected to us and ended in order, and about those that
  /// take_departed() has named already.
  Result<MessageInfo> recv(std::span<std::byte> buffer, std::int64_t timeout_ms = -1);

  /// Shows the next message without taking it. EAGAIN.
  Result<IncomingMessage> peek();
  /// The same where quiet() has just been called, which fetches packets of other hosts: so a caller
  /// that takes one message after the other makes one system call, not one for each.
  Result<IncomingMessage> peek_fetched();
  /// Takes the message last shown, into a buffer.
  Result<MessageInfo> take(std::span<std::byte> buffer);
  void drop();

  /// Takes the offered message last shown out of the ring and leaves it in its sender's memory,
  /// for a caller that decides later where it goes. EINVAL: it is not offered. A sender has at most
  /// 64 offers open with one peer; further messages of it go through the ring.
  Result<SetAside> set_aside();
  /// Copies a part of it. ERANGE; ESTALE: the sender took it back; EFAULT: its memory cannot be
  /// read; ECONNRESET: the sender is gone.
  Status copy(const SetAside& message, std::uint64_t offset, std::span<std::byte> buffer);
  /// Ends it: the sender's post() is complete, with EFAULT where `received` is false.
  void finish(const SetAside& message, bool received = true);

  // A message that both sides work on. Over shared memory it stays where reserve() has put it until
  // its receiver drops it, and either side may change its bytes meanwhile: by an atomic word in it
  // they agree which side does what.
  /// Whether messages to this peer are such, and no thread there sleeps until one comes.
  bool shares_messages(PeerIndex to) const;
  /// A mark behind the last message committed to this peer.
  std::uint64_t sent_mark(PeerIndex to) const;
  /// The receiver has dropped all that was sent before the mark, and said so: that memory may be in
  /// use again. Checks only local state; a sender that finds a message's word unchanged and this
  /// false knows that it lies there still.
  bool has_left(PeerIndex to, std::uint64_t mark) const;
  /// Receiver: the aligned word at `offset` of the message that peek() has shown; null: there is
  /// none to share.
  std::atomic<std::uint64_t>* shared_word(std::size_t offset);
  /// Receiver: leaves the message that peek() has shown, and this peer's others behind it, until
  /// resume().
  void hold();
  /// Precondition: hold() was called for this peer. Its departure is not reported in between.
  void resume(PeerIndex peer);
  /// Sender: has changed bytes of a message that the peer may be holding. Wakes threads that sleep
  /// there.
  void nudge(PeerIndex to);
  /// The peer has closed or died; what it had sent may be there still.
  bool has_gone(PeerIndex peer) const;

  /// Names peers that have gone since last asked, also those that recv() has failed for. False:
  /// none. `reason` (may be null): 0, it ended in order; ECONNRESET, EPROTO.
  bool take_departed(PeerIndex* peer, int* reason = nullptr);

  /// Posts Event{tag, kMessage} when there may be something to receive or a send has completed.
  /// EBUSY: it does already; ENOSPC: it cannot be posted for one of the peers.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit MessageEndpoint(std::shared_ptr<engine::MessageEndpointCore> core);
  std::shared_ptr<engine::MessageEndpointCore> core_;
};

}  // namespace clan
