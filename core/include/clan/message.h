// Message endpoints: reliable, ordered messages between one endpoint and any number of peers.
//
//   auto a = MessageEndpoint::create(context, "worker");           // or without a name
//   auto to = b->connect(a->address());                            // a number for the peer
//   b->send(*to, bytes);
//   auto m = a->recv(buffer);                                      // {from, size}; answer to
//                                                                  m->from
//
// Small messages are one record in the peer's ring. The receiver copies a large one from the
// sender's memory straight into its buffer (process_vm_readv), with the sender's help if that is
// polling; where the kernel forbids that, or over a network, it travels in fragments. One peer's
// messages arrive in order. Rings bound the memory, whatever the number of peers: a sender waits.
// Silent peers do not add to the cost of receiving.
//
// Thread-safety: one thread at a time uses an endpoint, any thread. Errors common to all: ESHUTDOWN
// (context ended, or forked child), EINTR (a signal while asleep). For one peer: ECONNRESET (it
// died), EPROTO (it wrote nonsense into shared memory), EPIPE (it closed, or ended in order).
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
  /// Connects without waiting: until the peer accepts, sends answer EAGAIN. `greetings` are its
  /// first messages once it accepts, whatever the caller does meanwhile. If it does not, within
  /// `timeout_ms` and at most ten seconds, it has departed (take_departed()): ECONNREFUSED,
  /// ETIMEDOUT, EACCES; EMSGSIZE: its ring does not hold the greetings. ECONNREFUSED at once:
  /// nobody offers the service. EAGAIN: too many ask it now. A host's name in `service` is resolved
  /// first, within this call.
  Result<PeerIndex> begin_connect(const std::string& service,
                                  std::span<const std::span<const std::byte>> greetings = {},
                                  std::int64_t timeout_ms = -1, std::int64_t uid = -1);
  /// Waits until a peer has accepted. EAGAIN: not in time. Takes no message.
  Status await(PeerIndex peer, std::int64_t timeout_ms = -1);
  /// Where a peer can be connected to (its endpoint). ENOTCONN: it has not accepted.
  Result<Address> peer_address(PeerIndex peer) const;
  /// Whether a peer that has accepted is on another host (ContextOptions::network).
  bool is_far(PeerIndex peer) const;
  /// Ends the relation with a peer and drops its unreceived messages. One that has yet to accept
  /// gets its greetings all the same, if it does so in time.
  void disconnect(PeerIndex peer);

  /// Sends one message and waits until the buffer may be reused. Receives nothing, but helps peers
  /// that copy. EMSGSIZE, ETIMEDOUT (nothing of it will arrive); EPIPE, ECONNRESET, EPROTO.
  Status send(PeerIndex to, std::span<const std::byte> message, std::int64_t timeout_ms = -1);
  /// The same without waiting. EAGAIN: no room now. A large message is accepted at once; its memory
  /// must stay until poll_sent() gives back `cookie`. True = complete already.
  Result<bool> post(PeerIndex to, std::span<const std::byte> message, std::uint64_t cookie);
  /// The same in two parts. Through the ring the receiver sees them as one; in an offer the header
  /// goes ahead (IncomingMessage::header). EINVAL: it is longer than kMaxMessageHeader.
  Result<bool> post(PeerIndex to, std::span<const std::byte> header,
                    std::span<const std::byte> message, std::uint64_t cookie);
  /// Takes completions of posted sends.
  std::size_t poll_sent(std::span<SendCompletion> completions);

  /// Sends without a copy by the engine: fill, then commit. EAGAIN, EMSGSIZE (max_eager()).
  Result<std::span<std::byte>> reserve(PeerIndex to, std::size_t bytes);
  void commit(PeerIndex to, std::size_t bytes);
  std::size_t max_eager(PeerIndex to) const;
  /// The same in one call; the receiver sees one message. EAGAIN, EMSGSIZE (max_eager()).
  Status try_send(PeerIndex to, std::span<const std::byte> header,
                  std::span<const std::byte> message);

  // For callers that wait by peek() and not by recv(): spin(), then one of the two ways to sleep,
  // then peek() again. All three may end spuriously.
  /// Looks as long as WaitOptions make worth while. True: there may be something to find.
  bool spin();
  /// Sleeps until there may be something to find. ETIMEDOUT, EINTR.
  Status sleep(std::int64_t timeout_ms = -1);
  /// A descriptor, the endpoint's, that is readable when there is something to find, for epoll and
  /// friends. Unlike an event queue it costs a sender nothing while nobody sleeps.
  Result<int> fd();
  /// Call before sleeping on fd(). False: look first, whatever the descriptor shows. One that woke
  /// the sleeper stays readable until this call.
  bool arm_fd();
  /// Makes the descriptor readable: for a caller that looks elsewhere before it looks here again.
  void ring_fd();
  /// Ends another thread's sleep(), or the next one; the peek() behind that sees what was written
  /// before. Async-signal-safe.
  void wake();

  /// True when peek(), poll_sent() and take_departed() would find nothing. Cheap, for pollers.
  bool quiet() const;

  /// Receives one message of any peer. EAGAIN.
  Result<MessageInfo> try_recv(std::span<std::byte> buffer);
  /// The same, waiting. ETIMEDOUT. With nothing left to receive, it fails once for each peer that
  /// has gone: ECONNRESET or EPROTO for any, EPIPE for one that *we* had connected to; not for a
  /// client that ended in order, nor one that take_departed() named. It stays usable.
  Result<MessageInfo> recv(std::span<std::byte> buffer, std::int64_t timeout_ms = -1);

  /// Shows the next message without taking it. EAGAIN.
  Result<IncomingMessage> peek();
  /// The same just after quiet(), which fetches packets of other hosts: one system call, not one
  /// for each message.
  Result<IncomingMessage> peek_fetched();
  /// Takes the message last shown, into a buffer.
  Result<MessageInfo> take(std::span<std::byte> buffer);
  void drop();

  /// Takes the offered message last shown out of the ring and leaves it with its sender, to decide
  /// later where it goes. EINVAL: not offered. A sender has at most 64 offers open with a peer.
  Result<SetAside> set_aside();
  /// Copies a part. ERANGE; ESTALE: taken back; EFAULT: unreadable; ECONNRESET: the sender is gone.
  Status copy(const SetAside& message, std::uint64_t offset, std::span<std::byte> buffer);
  /// Ends it: the sender's post() is complete, with EFAULT where `received` is false.
  void finish(const SetAside& message, bool received = true);

  // Messages that both sides work on: over shared memory one stays where reserve() put it until its
  // receiver drops it; by an atomic word in it they agree which side does what.
  /// Whether messages to this peer are such, and no thread there sleeps until one comes.
  bool shares_messages(PeerIndex to) const;
  /// A mark behind the last message committed to this peer.
  std::uint64_t sent_mark(PeerIndex to) const;
  /// The receiver has dropped, and said so, all that was sent before the mark: that memory may be
  /// reused. Local state only: if this is false, a message whose word is unchanged is still there.
  bool has_left(PeerIndex to, std::uint64_t mark) const;
  /// Receiver: the aligned word at `offset` of the message that peek() has shown, or null.
  std::atomic<std::uint64_t>* shared_word(std::size_t offset);
  /// Receiver: leaves the message that peek() has shown, and this peer's others, until resume().
  void hold();
  /// Precondition: hold() was called for this peer. Its departure is not reported in between.
  void resume(PeerIndex peer);
  /// Sender: has changed a message that the peer may hold. Wakes threads that sleep there.
  void nudge(PeerIndex to);
  /// The peer has closed or died; what it had sent may be there still.
  bool has_gone(PeerIndex peer) const;

  /// Names peers that have gone, also those that recv() has failed for. False: none. `reason` (may
  /// be null): 0, it ended in order; ECONNRESET, EPROTO.
  bool take_departed(PeerIndex* peer, int* reason = nullptr);

  /// Posts Event{tag, kMessage} on a message or a completed send. EBUSY: already; ENOSPC: not
  /// possible for one of the peers.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit MessageEndpoint(std::shared_ptr<engine::MessageEndpointCore> core);
  std::shared_ptr<engine::MessageEndpointCore> core_;
};

}  // namespace clan
