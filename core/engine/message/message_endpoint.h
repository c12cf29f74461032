// MessageEndpointCore: many connections behind one interface.
//
// Hot peers' rings are polled: one load each, and the sender finds no tripwire armed. Cold peers
// have their event tripwire armed and post to the endpoint's own queue, so a thousand silent ones
// cost one load together. A peer becomes hot when it sends, cold when the hot list is full or the
// endpoint sleeps.
//
// Large messages are offers: the sender exports the message and sends the cookie in a record; the
// receiver reads it by DMA and answers by a bit in the sender's offer line, which does not queue
// behind unread messages. 64 offers per peer may be open.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "clan/message.h"
#include "engine/context/own_endpoint.h"
#include "engine/message/message_peer.h"

namespace clan::engine {

class MessageEndpointCore final : public OobSink,
                                  public AnswerSink,
                                  public std::enable_shared_from_this<MessageEndpointCore> {
 public:
  MessageEndpointCore(std::shared_ptr<ContextCore> context, const MessageOptions& options)
      : context_(std::move(context)),
        options_(options),
        endpoint_(context_),
        waiter_(context_->options().wait) {}
  ~MessageEndpointCore() override;
  Status start(const std::string& service);

  Address address() const;
  Status await(PeerIndex peer, std::uint64_t deadline_ns);
  void disconnect(PeerIndex peer);

  Status send(PeerIndex to, std::span<const std::byte> message, std::uint64_t deadline_ns);
  Result<bool> post(PeerIndex to, std::span<const std::byte> header,
                    std::span<const std::byte> message, std::uint64_t cookie);
  Result<std::span<std::byte>> reserve(PeerIndex to, std::size_t bytes);
  Status try_send(PeerIndex to, std::span<const std::byte> header,
                  std::span<const std::byte> message);

  Result<IncomingMessage> peek(Fetch fetch = Fetch::kYes);
  Result<MessageInfo> take(std::span<std::byte> buffer);
  Result<MessageInfo> try_recv(std::span<std::byte> buffer);

  // OobSink, driver thread. Every connection learns by itself of a peer that has gone.
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override;
  // AnswerSink: a connection attempt of this endpoint has ended
  void on_answer() override;

 private:
  friend class clan::MessageEndpoint;
  using Offer = MessageOffer;
  using Peer = MessagePeer;
  using Departure = MessageDeparture;
  using Front = MessageFront;
  static constexpr std::size_t kMaxHot = 8;
  static constexpr std::uint64_t kAdoptTag = ~std::uint64_t{0};  ///< event of adopt_event_

  /// A peer that is or was connected.
  Peer* find(PeerIndex index) const {
    Peer* peer = find_any(index);
    return peer != nullptr && peer->connection ? peer : nullptr;
  }
  Peer* find_any(PeerIndex index) const {
    return index < peers_.size() ? peers_[index].get() : nullptr;
  }
  Error no_peer(PeerIndex index);
  Result<PeerIndex> add_peer(std::shared_ptr<Connection> connection, bool chosen);
  Status join(Peer& peer, std::shared_ptr<Connection> connection);
  void look_at_attempts();
  void look_at_attempt(Peer& peer);
  void adopt();
  void make_hot(Peer& peer);
  void make_cold(Peer& peer);
  bool look_at(Peer& peer);
  bool show_held(Peer& peer);
  bool look_closely(Peer& peer, int rc);
  bool find_front(Fetch fetch = Fetch::kYes);
  void take_arrivals();
  void depart(Peer& peer, bool told = false);
  Status tell_departure();
  bool progress_sends(Fetch fetch = Fetch::kYes);
  bool progress_offers(Peer& peer);
  bool progress_fragments(Peer& peer);
  Result<bool> offer(Peer& peer, std::span<const std::byte> header,
                     std::span<const std::byte> message, std::uint64_t cookie);
  void report_sent(const Peer& peer, std::uint64_t cookie, int status);
  void end_sends(Peer& peer, int status);
  void announce_arrival();
  void note_sending(Peer& peer);
  void finish_offer(Peer& peer, std::uint32_t slot, int status);
  Status send_error(const Peer& peer) const;
  int copy_offer(Peer& peer, const RdmaCookie& cookie, std::uint64_t offset,
                 std::span<std::byte> buffer);
  bool hot_pending() const;
  bool something_new();
  PeerHint awaited() const;
  bool cool();
  void look_at_cooled();
  bool something_told() const;
  Status sleep(std::uint64_t deadline_ns);
  Status bind_peer(Peer& peer);

  std::shared_ptr<ContextCore> context_;
  const MessageOptions options_;
  OwnEndpoint endpoint_;

  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> connecting_;
  std::vector<Peer*> hot_;
  std::vector<PeerIndex> cooled_;  ///< that were hot before the last sleep
  std::size_t next_hot_ = 0;
  std::shared_ptr<EventQueueCore> arrivals_;
  std::uint32_t adopt_event_ = 0;
  Front front_;
  unsigned turns_ = 0;
  std::deque<SendCompletion> sent_;
  std::deque<Departure> departed_;
  std::size_t untold_ = 0;      ///< of them, those that recv() has yet to speak of
  std::vector<Peer*> sending_;  ///< peers with open offers or fragments to send
  bool blocking_open_ = false;  ///< send() waits for the large message without a cookie
  int blocking_status_ = 0;     ///< how it ended
  Waiter waiter_;
  /// a guess: a peer has copied our large message, and answered, by then
  std::uint64_t copied_until_ns_ = 0;
  bool armed_fd_ = false;  ///< the next spin() comes after a sleep on fd()
  EventBinding user_;      ///< written under the mutex

  std::mutex mutex_;  ///< between the driver thread and adopt()
  std::vector<std::shared_ptr<Connection>> accepted_;
  std::atomic<bool> any_accepted_{false};
};

}  // namespace clan::engine
