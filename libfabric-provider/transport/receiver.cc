#include "transport/receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "objects/av.h"
#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "objects/memory_region.h"
#include "wire/pieces.h"

namespace clan::ofi {

Receiver::~Receiver() {
  while (Unexpected* message = unclaimed_.first()) {
    unclaimed_.remove(*message);
    Unexpected::destroy(message);
  }
}

void Receiver::attach(Endpoint& endpoint, unsigned context) {
  if (endpoints_.size() <= context) endpoints_.resize(context + 1);
  endpoints_[context] = &endpoint;
  unclaimed_.for_each([&](List<Unexpected>& list, Unexpected& message) {
    if (message.header.context != context) return;
    list.remove(message);
    message.to = &endpoint;
    const bool tagged = message.header.op == Op::kTagged;
    endpoint.receives()
        .unexpected(tagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged)
        .push_back(message);
  });
}

void Receiver::detach(Endpoint& endpoint, unsigned context) {
  if (context < endpoints_.size() && endpoints_[context] == &endpoint)
    endpoints_[context] = nullptr;
  endpoint.receives().for_each_unexpected([&](List<Unexpected>& list, Unexpected& message) {
    if (message.to != &endpoint) return;
    list.remove(message);
    Unexpected::destroy(&message);
  });
  far_.take([&](const FarReceive& receive) { return receive.to == &endpoint; },
            [](FarReceive& receive) {
              if (--receive.posted->writers == 0 && receive.posted->given_up)
                receive.queue->free_posted(*receive.posted);
            });
}

bool Receiver::any_counted_by(const Counter& counter) const {
  bool any = false;
  far_.for_each([&](const FarReceive& receive) {
    any = any || (receive.posted->deferred && receive.posted->counter == &counter);
  });
  if (any) return true;
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged}) {
      for (const Posted* p = endpoint->receives().posted(kind).first(); p != nullptr; p = p->next)
        if (p->deferred && p->counter == &counter) return true;
    }
  }
  return false;
}

void Receiver::mark_referenced() {
  const auto mark_sender = [](List<Unexpected>&, Unexpected& message) {
    message.from->referenced = true;
  };
  unclaimed_.for_each(mark_sender);
  far_.for_each([](const FarReceive& receive) { receive.from->referenced = true; });
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    endpoint->mark_peers();
    ReceiveQueue& queue = endpoint->receives();
    queue.for_each_unexpected(mark_sender);
    for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged}) {
      for (Posted* posted = queue.posted(kind).first(); posted != nullptr; posted = posted->next) {
        if (posted->from != nullptr) posted->from->referenced = true;
      }
    }
  }
}

void Receiver::forget_offers(const Peer& peer, PeerIndex index) {
  const auto is_lost = [&](const Unexpected& message) {
    return message.from == &peer && message.offered && message.aside.from == index;
  };
  const auto forget = [&](List<Unexpected>& list, Unexpected& message) {
    if (!is_lost(message)) return;
    list.remove(message);
    Unexpected::destroy(&message);
  };
  // A program that has claimed one receives it, and hears that it cannot be copied any more.
  const auto keep = [&](List<Unexpected>&, Unexpected& message) {
    if (is_lost(message)) message.far = {};
  };
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    ReceiveQueue& queue = endpoint->receives();
    for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged})
      queue.unexpected(kind).for_each(forget);
    queue.claimed().for_each(keep);
  }
  unclaimed_.for_each(forget);
}

// --- completing a receive ------------------------------------------------------------------------

void fill_receive(const Posted& posted, const std::byte* bytes, std::size_t n) {
  if (posted.pieces == 1) [[likely]] {
    copy_short(static_cast<std::byte*>(posted.iov[0].iov_base) + posted.used, bytes, n);
    return;
  }
  for_each_piece(posted.iov, posted.pieces, posted.used, n,
                 [&](std::span<std::byte> piece, std::size_t at) {
                   std::memcpy(piece.data(), bytes + at, piece.size());
                 });
}

Completion receive_completion(const Posted& posted, const WireHeader& header,
                              ReceiveQueue::Kind kind, std::size_t n) {
  Completion completion;
  completion.context = posted.context;
  completion.flags = FI_RECV | (kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
  completion.length = n;
  if (posted.pieces > 0) {  // an address, of memory that may not be there: reckoned as a number
    const auto begin = reinterpret_cast<std::uintptr_t>(posted.iov[0].iov_base);
    completion.buffer = reinterpret_cast<std::byte*>(begin + posted.used);
  }
  if ((header.flags & kHasData) != 0) {
    completion.flags |= FI_REMOTE_CQ_DATA;
    completion.data = header.data;
  }
  completion.tag = header.tag;
  return completion;
}

// False: its sender took it back, and it is as if it had never been.
bool Receiver::copy_offer(const SetAside& aside, const Posted& posted, std::size_t n, int* err) {
  for_each_piece(posted.iov, posted.pieces, posted.used, n,
                 [&](std::span<std::byte> piece, std::size_t at) {
                   if (*err != 0) return;
                   if (auto s = channel_.messages->copy(aside, at, piece); !s) *err = s.error().err;
                 });
  if (*err != ESTALE) {
    channel_.messages->finish(aside, *err == 0);
    return true;
  }
  if (!posted.claims) return false;
  *err = ECONNRESET;
  return true;
}

inline Receiver::Ending Receiver::ending_of(const Endpoint& endpoint, const Posted& posted) {
  if (posted.deferred) {
    return {posted.counter,
            (posted.flags & FI_COMPLETION) != 0 && endpoint.receive_cq() != nullptr};
  }
  return {endpoint.counter(Endpoint::kReceives), endpoint.receives_complete(posted.flags)};
}

inline void Receiver::report(Endpoint& endpoint, Peer& from, Completion& completion,
                             const Ending& ending, int err, std::size_t missing) {
  if (endpoint.tells_source()) completion.source = PeerTable::address_of(from, av_);
  Cq* cq = endpoint.receive_cq();
  if (err != 0 || missing > 0) [[unlikely]] {
    if (ending.counter != nullptr) ending.counter->count_error();
    if (cq != nullptr) cq->write_error(completion, err != 0 ? err : FI_ETRUNC, missing);
    return;
  }
  if (ending.counter != nullptr) ending.counter->count();
  if (!ending.completion) return;
  if (endpoint.tells_unknown_source() && completion.source == FI_ADDR_NOTAVAIL) {
    cq->write_error(completion, FI_EADDRNOTAVAIL, 0, &from.raw.storage, from.raw.length);
    return;
  }
  cq->write(completion);
}

// In line: a call less for each message.
[[gnu::always_inline]] inline void Receiver::complete(Endpoint& endpoint, Peer& from,
                                                      const WireHeader& header,
                                                      const Content& content, Posted& posted,
                                                      ReceiveQueue& queue,
                                                      ReceiveQueue::Kind kind) {
  const std::size_t n = std::min(content.size, posted.length - posted.used);
  int err = 0;
  if (content.aside == nullptr) [[likely]] {
    fill_receive(posted, content.bytes, n);
  } else if (!copy_offer(*content.aside, posted, n, &err)) {
    return;
  }
  // Where it could not be copied, that has ended the operation of its sender, whose number may be
  // another one's by now.
  if ((header.flags & kWantsAck) != 0 && err == 0) acknowledge(from, header);

  Completion completion = receive_completion(posted, header, kind, n);
  const Ending ending = ending_of(endpoint, posted);
  const bool multiple = (posted.flags & FI_MULTI_RECV) != 0;
  posted.used += n;
  if (!multiple || posted.length - posted.used < posted.least) {
    queue.posted(kind).remove(posted);
    if (posted.writers > 0) [[unlikely]] {
      posted.given_up = true;  // the last of them says so
    } else {
      if (multiple) completion.flags |= FI_MULTI_RECV;
      queue.free_posted(posted);
    }
  }
  report(endpoint, from, completion, ending, err, content.size - n);
}

// Nobody can write into it any more.
void Receiver::finish_far(FarReceive& receive, int err) {
  Endpoint& endpoint = *receive.to;
  Posted& posted = *receive.posted;
  Completion completion =
      receive_completion(posted, receive.header, receive.kind, err == 0 ? receive.length : 0);
  if (posted.pieces > 0)
    completion.buffer = static_cast<std::byte*>(posted.iov[0].iov_base) + receive.begin;
  if ((receive.header.flags & kWantsAck) != 0 && err == 0)
    acknowledge(*receive.from, receive.header);
  const Ending ending = ending_of(endpoint, posted);
  const bool last = --posted.writers == 0 && posted.given_up;
  const bool cancelled = last && posted.cancelled;
  Completion rest;
  rest.context = posted.context;
  rest.flags = completion.flags;
  if (last) {
    if ((posted.flags & FI_MULTI_RECV) != 0 && !cancelled) completion.flags |= FI_MULTI_RECV;
    receive.queue->free_posted(posted);
  }
  report(endpoint, *receive.from, completion, ending, err, receive.missing);
  if (!cancelled) return;
  if (ending.counter != nullptr) ending.counter->count_error();
  if (endpoint.receive_cq() != nullptr) endpoint.receive_cq()->write_error(rest, FI_ECANCELED);
}

// --- a message has come --------------------------------------------------------------------------

// Null: it cannot be kept, and `otherwise` says what becomes of it.
Unexpected* Receiver::make_unexpected(Endpoint* endpoint, bool offered, std::size_t bytes,
                                      const List<Unexpected>& keep, Taken* otherwise) {
  // An offered message is none of a datagram endpoint: it is kept, as its sender expects.
  const bool may_drop = endpoint != nullptr && endpoint->datagrams() && !offered;
  *otherwise = Taken::kInFront;
  if (may_drop && keep.size() >= kMostUnheard) return nullptr;
  Unexpected* kept = Unexpected::make(bytes);
  if (kept != nullptr) {
    starving_ = false;
    return kept;
  }
  if (may_drop) return nullptr;
  if (!std::exchange(starving_, true))
    FI_WARN(&g_provider, FI_LOG_EP_DATA, "no memory for messages that have come: they wait\n");
  *otherwise = Taken::kWaits;
  return nullptr;
}

Receiver::Taken Receiver::take_offer(Endpoint* endpoint, Peer& peer, const WireHeader& header,
                                     const IncomingMessage& message, Posted* posted,
                                     Unexpected* kept, List<Unexpected>& keep) {
  auto aside = channel_.messages->set_aside();
  if (!aside) {
    if (kept != nullptr) Unexpected::destroy(kept);
    return Taken::kInFront;
  }
  if (posted != nullptr) {
    const auto kind = header.op == Op::kTagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged;
    complete(*endpoint, peer, header, {message.size, nullptr, &*aside}, *posted,
             endpoint->receives(), kind);
    return Taken::kGone;
  }
  kept->to = endpoint;
  kept->from = &peer;
  kept->header = header;
  kept->size = message.size;
  kept->offered = true;
  kept->aside = *aside;
  keep.push_back(*kept);
  return Taken::kGone;
}

Receiver::Taken Receiver::arrived(Peer& peer, const WireHeader& header,
                                  const IncomingMessage& message) {
  Endpoint* const endpoint = this->endpoint(header.context);
  const auto kind = header.op == Op::kTagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged;
  Posted* posted = nullptr;
  if (endpoint != nullptr) [[likely]] {
    ReceiveQueue& queue = endpoint->receives();
    posted = kind == ReceiveQueue::kTagged ? queue.match_tagged(&peer, header.tag)
                                           : queue.match_message(&peer);
  }
  // there will be none
  if (endpoint == nullptr && header.context >= contexts_) return Taken::kInFront;
  // Nothing of an offered message is here.
  const auto bytes = [&] { return message.bytes.data() + sizeof header; };
  if (posted != nullptr && !message.offered) [[likely]] {
    complete(*endpoint, peer, header, {message.bytes.size() - sizeof header, bytes(), nullptr},
             *posted, endpoint->receives(), kind);
    return Taken::kInFront;
  }
  List<Unexpected>& keep = endpoint != nullptr ? endpoint->receives().unexpected(kind) : unclaimed_;
  Unexpected* kept = nullptr;
  if (posted == nullptr) {
    Taken otherwise;
    kept = make_unexpected(endpoint, message.offered,
                           message.offered ? 0 : message.bytes.size() - sizeof header, keep,
                           &otherwise);
    if (kept == nullptr) return otherwise;
  }
  if (message.offered) return take_offer(endpoint, peer, header, message, posted, kept, keep);
  kept->to = endpoint;
  kept->from = &peer;
  kept->header = header;
  kept->size = message.bytes.size() - sizeof header;
  if (kept->size > 0) std::memcpy(kept->bytes(), bytes(), kept->size);
  keep.push_back(*kept);
  return Taken::kInFront;
}

// --- messages that have waited -------------------------------------------------------------------

void post_receive(ReceiveQueue& queue, ReceiveQueue::Kind kind, Posted& posted) {
  queue.posted(kind).push_back(posted);
  if (queue.unexpected(kind).empty()) [[likely]]
    return;
  const Peer* from = posted.from;
  const std::uint64_t tag = posted.tag, ignore = posted.ignore;
  while (Unexpected* message = queue.find(kind, from, tag, ignore)) {
    queue.unexpected(kind).remove(*message);
    message->to->transport().receiver().deliver(*message, posted, queue, kind);
    // One that has got its message, or is used up, is not the last of the list any more.
    if (queue.posted(kind).last() != &posted) return;
  }
}

void Receiver::deliver(Unexpected& message, Posted& posted, ReceiveQueue& queue,
                       ReceiveQueue::Kind kind) {
  if (message.far.length != 0) {
    begin_far(*message.to, *message.from, message.aside.from, message.header, message.far, posted,
              queue, kind);
    return Unexpected::destroy(&message);
  }
  const SetAside* const aside = message.offered ? &message.aside : nullptr;
  complete(*message.to, *message.from, message.header, {message.size, message.bytes(), aside},
           posted, queue, kind);
  Unexpected::destroy(&message);
}

void Receiver::discard(Unexpected& message) {
  if (message.far.length != 0) {
    decline(*message.from, message.header, message.far);
  } else if (message.offered) {
    channel_.messages->finish(message.aside);
  }
  if ((message.header.flags & kWantsAck) != 0) acknowledge(*message.from, message.header);
  Unexpected::destroy(&message);
}

void Receiver::acknowledge(Peer& peer, const WireHeader& header) {
  const WireHeader ack{.op = Op::kAck, .id = header.id};
  replies_.send(peer, bytes_of(ack));
}

// --- accesses to memory --------------------------------------------------------------------------

void Receiver::note_access(Peer& peer, const WireHeader& header, std::uint64_t what,
                           std::uint64_t length, const std::uint64_t* data) {
  if (MemoryRegion* region = domain_.find_region(header.tag)) region->note_access(what);
  Endpoint* const endpoint = this->endpoint(header.context);
  if (endpoint == nullptr) return;
  endpoint->note_access(what);
  if (data == nullptr || endpoint->receive_cq() == nullptr) return;
  Completion completion;
  completion.flags = FI_RMA | what | FI_REMOTE_CQ_DATA;
  completion.length = length;
  completion.data = *data;
  if (endpoint->tells_source()) completion.source = PeerTable::address_of(peer, av_);
  endpoint->receive_cq()->write(completion);
}

}  // namespace clan::ofi
