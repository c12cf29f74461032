// Messages that have come, and the receives that they are for.
//
// A message whose receive is posted is copied to its buffer; any other is kept until it is asked
// for. An offered message stays with its sender until then. Everything is under the domain's lock.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <span>
#include <vector>

#include "transport/far_receives.h"
#include "transport/peer_table.h"
#include "wire/channel.h"
#include "wire/matching.h"
#include "wire/reply_queue.h"

namespace clan::ofi {

class Av;
class Domain;
struct Completion;

/// A receive has been posted: puts it in the list, and gives it the message that waits for it.
void post_receive(ReceiveQueue& queue, ReceiveQueue::Kind kind, Posted& posted);

/// The completion of a message of `size` bytes, of which `n` have been copied to a receive.
Completion receive_completion(const Posted& posted, const WireHeader& header,
                              ReceiveQueue::Kind kind, std::size_t n);
/// Copies to the pieces of a receive, behind what earlier messages have used.
void fill_receive(const Posted& posted, const std::byte* bytes, std::size_t n);

class Receiver {
 public:
  Receiver(Domain& domain, Channel& channel, ReplyQueue& replies)
      : domain_(domain), channel_(channel), replies_(replies), far_(domain) {}
  ~Receiver();
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  /// From now on messages for this receive context are `endpoint`'s; those that have come already
  /// too.
  void attach(Endpoint& endpoint, unsigned context);
  void detach(Endpoint& endpoint, unsigned context);
  Endpoint* endpoint(unsigned context) const {
    return context < endpoints_.size() ? endpoints_[context] : nullptr;
  }
  const std::vector<Endpoint*>& endpoints() const { return endpoints_; }
  void set_contexts(std::size_t count) { contexts_ = count; }
  void set_av(Av* av) { av_ = av; }
  Av* av() const { return av_; }

  enum class Taken {
    kInFront,  ///< it is not needed any more, and the caller drops it
    kGone,     ///< it is not in front any more
    kWaits,    ///< it must stay: there is no memory to keep it
  };
  /// kWaits: all that comes after it waits too, and so do the senders when their rings are full. A
  /// receive that fits it, or memory, ends that.
  Taken arrived(Peer& peer, const WireHeader& header, const IncomingMessage& message);
  /// The same for one that its sender, on another host, has kept. It is not needed any more, or
  /// waits. `by`: the connection.
  Taken arrived_far(Peer& peer, PeerIndex by, const WireHeader& header, const FarOffer& offer);
  /// A peer has written a message that it had offered by this connection into the receive of this
  /// number; `err`: why it has not.
  void placed(PeerIndex by, std::uint64_t number, int err);
  /// Ends receives that peers write into by this connection: they cannot any more.
  void end_far(PeerIndex by, int err);
  /// Gives a message that has waited to a receive, which is in the list.
  void deliver(Unexpected& message, Posted& posted, ReceiveQueue& queue, ReceiveQueue::Kind kind);
  /// A message that no receive will get: tells its sender.
  void discard(Unexpected& message);
  /// What a peer had offered by this connection cannot be had any more.
  void forget_offers(const Peer& peer, PeerIndex index);
  /// A peer has accessed memory. `data`: remote CQ data.
  void note_access(Peer& peer, const WireHeader& header, std::uint64_t what, std::uint64_t length,
                   const std::uint64_t* data);

  bool any_counted_by(const Counter& counter) const;
  void mark_referenced();

 private:
  /// What a message brings: bytes that are here, or an offer.
  struct Content {
    std::size_t size = 0;
    const std::byte* bytes = nullptr;
    const SetAside* aside = nullptr;
  };
  Taken take_offer(Endpoint* endpoint, Peer& peer, const WireHeader& header,
                   const IncomingMessage& message, Posted* posted, Unexpected* kept,
                   List<Unexpected>& keep);
  Unexpected* make_unexpected(Endpoint* endpoint, bool offered, std::size_t bytes,
                              const List<Unexpected>& keep, Taken* otherwise);
  void complete(Endpoint& endpoint, Peer& from, const WireHeader& header, const Content& content,
                Posted& posted, ReceiveQueue& queue, ReceiveQueue::Kind kind);
  /// What a receive reports at its end.
  struct Ending {
    Counter* counter;
    bool completion;
  };
  static Ending ending_of(const Endpoint& endpoint, const Posted& posted);
  void report(Endpoint& endpoint, Peer& from, Completion& completion, const Ending& ending, int err,
              std::size_t missing);
  void begin_far(Endpoint& endpoint, Peer& peer, PeerIndex by, const WireHeader& header,
                 const FarOffer& offer, Posted& posted, ReceiveQueue& queue,
                 ReceiveQueue::Kind kind);
  void finish_far(FarReceive& receive, int err);
  void decline(Peer& peer, const WireHeader& header, const FarOffer& offer);
  bool copy_offer(const SetAside& aside, const Posted& posted, std::size_t n, int* err);
  void acknowledge(Peer& peer, const WireHeader& header);

  Domain& domain_;
  Channel& channel_;
  ReplyQueue& replies_;
  Av* av_ = nullptr;
  FarReceives far_;
  std::vector<Endpoint*> endpoints_;  ///< by receive context
  std::size_t contexts_ = 1;          ///< that there will be
  List<Unexpected> unclaimed_;        ///< messages for receive contexts that are not there yet
  bool starving_ = false;             ///< a message waits for memory
};

}  // namespace clan::ofi
