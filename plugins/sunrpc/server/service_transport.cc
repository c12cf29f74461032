// A transport of libtirpc's whose requests come over CLAN, or by its socket as before.
#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "fragments.h"
#include "server/server.h"
#include "stock_socket.h"

namespace clan::rpc {
namespace {

bool_t op_receive(SVCXPRT* xprt, rpc_msg* message) {
  return static_cast<bool_t>(ServiceTransport::known(xprt).receive(message));
}
enum xprt_stat op_state(SVCXPRT* xprt) { return ServiceTransport::known(xprt).state(); }
bool_t op_arguments(SVCXPRT* xprt, xdrproc_t proc, void* to) {
  return static_cast<bool_t>(ServiceTransport::known(xprt).arguments(proc, to));
}
bool_t op_reply(SVCXPRT* xprt, rpc_msg* message) {
  return static_cast<bool_t>(ServiceTransport::known(xprt).reply(message));
}
bool_t op_free(SVCXPRT*, xdrproc_t proc, void* at) {
  XDR xdrs;
  freeing_xdr(&xdrs);
  return (*proc)(&xdrs, at);
}
void op_destroy(SVCXPRT* xprt) { ServiceTransport::known(xprt).destroy(); }

}  // namespace

ServiceTransport::ServiceTransport(Hub& hub, SVCXPRT* xprt)
    : operations_{op_receive, op_state, op_arguments, op_reply, op_free, op_destroy},
      stock_(xprt->xp_ops),
      hub_(&hub),
      xprt_(xprt),
      datagram_(is_datagram_socket(xprt->xp_fd)),
      generation_(generation()) {
  xprt->xp_ops = &operations_;
}

ServiceTransport& ServiceTransport::known(SVCXPRT* xprt) {
  static_assert(std::is_standard_layout_v<TransportOps>);
  return *reinterpret_cast<ServiceTransport*>(
      reinterpret_cast<char*>(const_cast<TransportOps*>(xprt->xp_ops)) -
      offsetof(ServiceTransport, operations_));
}

ServiceTransport* ServiceTransport::of(SVCXPRT* xprt) {
  return xprt->xp_ops != nullptr && xprt->xp_ops->xp_recv == op_receive ? &known(xprt) : nullptr;
}

// --- requests ------------------------------------------------------------------------------------

/// Whether a transport is there yet, behind services that may have destroyed it: also from within a
/// second function of it, by a loop of their own.
class ServiceTransport::Life {
 public:
  explicit Life(ServiceTransport& transport)
      : transport_(&transport), outer_(std::exchange(transport.life_, this)) {}
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;
  // Not inline: gcc would warn of life_ where it is not set back, that of a transport that has
  // gone.
  [[gnu::noinline]] ~Life() {
    if (transport_ != nullptr) transport_->life_ = outer_;
  }
  static void end(const ServiceTransport& transport) {
    for (Life* life = transport.life_; life != nullptr; life = life->outer_)
      life->transport_ = nullptr;
  }
  bool is_over() const { return transport_ == nullptr; }

 private:
  ServiceTransport* transport_;
  Life* const outer_;
};

bool ServiceTransport::receive(rpc_msg* message) {
  Hub* hub = generation_ == generation() ? hub_ : nullptr;
  if (hub == nullptr || !hub->front_) {
    // What the client has sent over CLAN comes before what it sends, or ends, by the socket.
    const Life life(*this);
    if (hub != nullptr) hub->drain();
    if (life.is_over()) return false;
    from_clan_ = false;
    return stock_->xp_recv(xprt_, message) != FALSE;
  }
  const Hub::Front front = *hub->front_;
  hub->front_.reset();
  std::lock_guard lock(hub->mutex());
  const PeerState& peer = *hub->peer(front.peer);
  from_clan_ = true;
  if (!kept_.empty()) std::vector<std::byte>().swap(kept_);
  receiver_ = this_thread();
  hub->current_ = this;
  count(counters().served_clan);
  if (peer.token != 0) count(counters().served_far);
  fill(message, peer, front.head);
  peer_ = front.peer;
  if (front.head.go_on == kFollows) {
    in_ring_ = front.bytes;
    where_ = Where::kFragments;
  } else if (front.bytes.size() <= kCopied) {
    if (!front.bytes.empty()) std::memcpy(copied_, front.bytes.data(), front.bytes.size());
    copied_bytes_ = front.bytes.size();
    where_ = Where::kCopied;
    hub->let_go();
  } else {
    in_ring_ = front.bytes;
    where_ = Where::kInRing;
  }
  return true;
}

void ServiceTransport::fill(rpc_msg* message, const PeerState& peer, const CallHead& head) {
  xid_ = head.xid;
  message->rm_xid = head.xid;
  message->rm_direction = CALL;
  call_body& call = message->rm_call;
  call.cb_rpcvers = RPC_MSG_VERSION;
  call.cb_prog = peer.caller.head.prog;
  call.cb_vers = peer.caller.head.vers;
  call.cb_proc = head.proc;
  call.cb_cred.oa_flavor = peer.caller.head.flavor;
  call.cb_cred.oa_length = peer.caller.head.length;
  if (peer.caller.head.length > 0) {
    std::memcpy(call.cb_cred.oa_base, peer.caller.credential, peer.caller.head.length);
  }
  call.cb_verf.oa_flavor = AUTH_NONE;
  call.cb_verf.oa_length = 0;
  if (!datagram_ || peer.from_length == 0) return;
  netbuf& to = xprt_->xp_rtaddr;
  if (to.buf == nullptr || to.maxlen < peer.from_length)
    return;  // the socket's own requests have set it
  std::memcpy(to.buf, &peer.from, peer.from_length);
  to.len = peer.from_length;
  if (peer.from_length <= sizeof xprt_->xp_raddr) {
    std::memcpy(&xprt_->xp_raddr, &peer.from, peer.from_length);
    xprt_->xp_addrlen = static_cast<int>(peer.from_length);
  }
}

/// The arguments of a call of several fragments.
class CallIn final : public InMessage {
 public:
  CallIn(Hub& hub, PeerIndex peer, std::uint32_t xid, std::span<const std::byte> first)
      : InMessage(first), hub_(hub), peer_(peer), xid_(xid) {}
  ~CallIn() override {
    std::lock_guard lock(hub_.mutex());
    if (PeerState* peer = hub_.peer(peer_)) peer->skipping = go_on_ == kFollows;
    hub_.let_go();
    for (const PeerIndex other : held_) hub_.endpoint().resume(other);
  }

 private:
  bool await_more(std::span<const std::byte>* bytes) override {
    return go_on_ == kFollows && hub_.await_more(peer_, xid_, &held_, &go_on_, bytes);
  }
  Hub& hub_;
  const PeerIndex peer_;
  const std::uint32_t xid_;
  GoOn go_on_ = kFollows;
  std::vector<PeerIndex> held_;
};

/// A reply on its way out. The hub's mutex is held all the while, but for the time that its client
/// takes to read.
class ReplyOut final : public OutMessage {
 public:
  ReplyOut(Hub& hub, PeerIndex to, std::uint32_t xid)
      : OutMessage(hub.endpoint(), to, xid), lock_(hub.mutex()), hub_(hub), to_(to) {}

 private:
  bool await_room() override {
    if (position() != at_) {
      at_ = position();
      since_ns_ = monotonic_ns();
    }
    return hub_.await_room(to_, since_ns_);
  }
  std::lock_guard<std::mutex> lock_;
  Hub& hub_;
  const PeerIndex to_;
  std::uint64_t at_ = ~std::uint64_t{0};
  std::uint64_t since_ns_ = 0;
};

// libtirpc asks when a request has been dispatched: arguments that the service has not read are
// skipped.
enum xprt_stat ServiceTransport::state() {
  if (!from_clan_) return stock_->xp_stat(xprt_);
  forget_arguments();
  return XPRT_IDLE;
}

bool ServiceTransport::decode(XDR* xdrs, xdrproc_t proc, void* to) {
  return SVCAUTH_UNWRAP(&SVC_XP_AUTH(xprt_), xdrs, proc, static_cast<caddr_t>(to)) != FALSE;
}

bool ServiceTransport::arguments(xdrproc_t proc, void* to) {
  if (!from_clan_) return stock_->xp_getargs(xprt_, proc, to) != FALSE;
  XDR xdrs;
  bool good = false;
  switch (where_) {
    case Where::kCopied:
      memory_xdr(&xdrs, {copied_, copied_bytes_});
      return decode(&xdrs, proc, to);
    case Where::kKept: memory_xdr(&xdrs, kept_); return decode(&xdrs, proc, to);
    case Where::kInRing:
      if (generation_ != generation()) {
        memory_xdr(&xdrs, kept_);
        return decode(&xdrs, proc, to);
      }
      // libtirpc reads each word once and bounds what it reads by its copy: the peer may change
      // them meanwhile.
      memory_xdr(&xdrs, in_ring_);
      good = decode(&xdrs, proc, to);
      break;
    case Where::kFragments: {
      if (generation_ != generation()) return false;
      CallIn call(*hub_, peer_, xid_, in_ring_);
      where_ = Where::kNowhere;  // its end lets the fragments go
      call.xdr(&xdrs);
      return decode(&xdrs, proc, to);
    }
    case Where::kNowhere: return false;
  }
  forget_arguments();
  return good;
}

// The thread that has taken the request forks. When its child decodes the arguments they are not
// in the ring any more, or have not come.
void ServiceTransport::keep_arguments() {
  if (receiver_ != this_thread()) return;
  try {
    if (where_ == Where::kInRing) {  // they may be being decoded
      kept_.assign(in_ring_.begin(), in_ring_.end());
    } else if (where_ == Where::kFragments) {
      CallIn call(*hub_, peer_, xid_, in_ring_);
      where_ = Where::kKept;
      call.append_to(&kept_);
    }
  } catch (const std::bad_alloc&) {  // they cannot be decoded
  }
}

// The client may use its memory again. Only by the thread that has taken the request: one that
// replies late may do so while this one decodes the next.
void ServiceTransport::forget_arguments() {
  if (where_ == Where::kNowhere || where_ == Where::kCopied || receiver_ != this_thread()) return;
  const Where where = std::exchange(where_, Where::kNowhere);
  if (where == Where::kKept || generation_ != generation()) return;
  std::lock_guard lock(hub_->mutex());
  PeerState* peer = hub_->peer(peer_);
  if (where == Where::kFragments && peer != nullptr) peer->skipping = true;
  hub_->let_go();
}

// --- replies -------------------------------------------------------------------------------------

bool ServiceTransport::encode(XDR* xdrs, rpc_msg* message, bool plain, xdrproc_t results,
                              caddr_t where) {
  if (!plain && xdr_replymsg(xdrs, message) == FALSE) return false;
  return results == nullptr || SVCAUTH_WRAP(&SVC_XP_AUTH(xprt_), xdrs, results, where) != FALSE;
}

bool ServiceTransport::reply(rpc_msg* message) {
  if (!from_clan_) return stock_->xp_reply(xprt_, message) != FALSE;
  const bool accepted =
      message->rm_reply.rp_stat == MSG_ACCEPTED && message->rm_reply.rp_acpt.ar_stat == SUCCESS;
  xdrproc_t results = nullptr;
  caddr_t where = nullptr;
  if (accepted) {
    results = message->acpted_rply.ar_results.proc;
    where = message->acpted_rply.ar_results.where;
    message->acpted_rply.ar_results.proc = no_data();
    message->acpted_rply.ar_results.where = nullptr;
  }
  message->rm_xid = xid_;
  if (generation_ != generation()) return reply_by_socket(message, results, where);
  forget_arguments();
  const opaque_auth& verifier = message->acpted_rply.ar_verf;
  const bool plain = stage() == Stage::kOptimized && accepted && verifier.oa_flavor == AUTH_NONE &&
                     verifier.oa_length == 0;
  return send_reply(message, plain, results, where);
}

bool ServiceTransport::send_reply(rpc_msg* message, bool plain, xdrproc_t results, caddr_t where) {
  ReplyOut out(*hub_, peer_, xid_);
  ReplyHead head;
  head.kind = plain ? kReply : kReplyFull;
  head.xid = xid_;
  XDR xdrs;
  OutBuffer buffer;
  const bool direct = stage() == Stage::kDirect;
  std::byte* const at = out.begin(direct ? kFragment : hint_);
  bool good = at != nullptr;
  if (good) {
    std::memcpy(at, &head, sizeof head);
    out.headed(sizeof head);
  }
  if (direct) {  // the paper's first stage sends a copy of what it has encoded
    growing_xdr(&xdrs, &buffer);
    good =
        good && encode(&xdrs, message, plain, results, where) && out.put(buffer.data, buffer.size);
  } else {
    out.xdr(&xdrs);
    good = good && encode(&xdrs, message, plain, results, where);
  }
  hint_ = std::clamp<std::size_t>(2 * out.position(), 512, kFragment);
  if (good && out.finish()) {
    PeerState* const peer = hub_->peer(peer_);
    if (peer != nullptr && peer->last_xid == xid_) peer->answered = true;
    return true;
  }
  if (hub_->peer(peer_) != nullptr) out.give_up();
  return false;
}

// In the child of a fork CLAN is the parent's; the socket is both's. The client listens there as
// well.
bool ServiceTransport::reply_by_socket(rpc_msg* message, xdrproc_t results, caddr_t where) {
  OutBuffer buffer;
  XDR xdrs;
  growing_xdr(&xdrs, &buffer);
  if (!encode(&xdrs, message, false, results, where)) return false;
  count(counters().replies_stock);
  return send_by_socket(xprt_->xp_fd, buffer.data, buffer.size, &xprt_->xp_rtaddr);
}

void ServiceTransport::destroy() {
  SVCXPRT* const xprt = xprt_;
  if (generation_ == generation()) {
    forget_arguments();
    hub_->forget(this);
  }
  xprt->xp_ops = const_cast<TransportOps*>(stock_);
  Life::end(*this);
  delete this;
  SVC_DESTROY(xprt);
}

}  // namespace clan::rpc
