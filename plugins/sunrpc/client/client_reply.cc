// The reply of a call over CLAN: wait, decode out of the client's own ring.
#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "client/client.h"
#include "fragments.h"
#include "log_rate_limit.h"

namespace clan::rpc {
namespace {

constexpr std::uint64_t kNapNs = 1'000'000'000;  ///< the first one

/// A call has ended, also where its thread is cancelled: nobody waits for the record that its reply
/// by the socket may be in the middle of.
class Forgetting {
 public:
  explicit Forgetting(SocketReply& socket) : socket_(socket) {}
  Forgetting(const Forgetting&) = delete;
  Forgetting& operator=(const Forgetting&) = delete;
  ~Forgetting() { socket_.forget(); }

 private:
  SocketReply& socket_;
};

}  // namespace

// A sleep ends after a second, then two, then four, to check the ring itself: where a child of this
// process has written over CLAN's memory nobody is woken.
Client::Outcome Client::await_reply(const Call& call) {
  const Forgetting forgetting(socket_);
  Nap nap{kNapNs, false};
  const bool may_repeat = datagram_ && sent_.size > 0;
  for (bool done = false;;) {
    const bool something = endpoint_->spin();
    if (!take_reply(call, &done)) return lost(call);
    if (done) {
      unheard_ = nap.over;
      return Outcome::kDone;
    }
    if (something && (call.deadline == kNoDeadline || monotonic_ns() < call.deadline)) continue;
    if (left_ns(call.deadline) == 0) {
      error_.re_status = RPC_TIMEDOUT;
      return Outcome::kDone;
    }
    if (may_repeat && left_ns(nap.again_at) == 0) {
      send_again();
      nap.again_at = kNoDeadline;
    }
    if (may_repeat && nap.again_at == kNoDeadline) nap.again_at = monotonic_ns() + retry_ns_;
    const Outcome outcome = sleep(call, &nap, &done);
    if (outcome != Outcome::kDone || done) return outcome;
  }
}

// Until something comes over CLAN or, from a server that has forked, by the socket.
Client::Outcome Client::sleep(const Call& call, Nap* nap, bool* done) {
  nap->over = false;
  auto number = endpoint_->fd();
  if (!number) return lost(call);
  if (!endpoint_->arm_fd()) return Outcome::kDone;
  pollfd fds[2] = {{*number, POLLIN, 0}, {fd_, POLLIN, 0}};
  sigset_t all;
  sigfillset(&all);
  if (nap->ends_at == 0) nap->ends_at = monotonic_ns() + nap->ns;
  const std::uint64_t end = std::min(call.deadline, nap->ends_at);
  const std::uint64_t left = left_ns(std::min(end, nap->again_at));
  const timespec most = {static_cast<time_t>(left / 1'000'000'000),
                         static_cast<long>(left % 1'000'000'000)};
  count(counters().sleeps);
  int ready = 0;
  {
    const Cancellable here(cancel_state_);
    ready = ::ppoll(fds, 2, &most, &all);
  }
  nap->over = ready == 0 && left_ns(end) == 0;
  if (nap->over) nap->ns *= 2;
  if (nap->over || ready != 0) nap->ends_at = 0;
  if (ready <= 0 || fds[1].revents == 0) return Outcome::kDone;
  if (!take_reply(call, done))
    return lost(call);  // by CLAN first: it may be why the socket has ended
  if (*done) return Outcome::kDone;
  return take_from_socket(call, done);
}

Client::Outcome Client::take_from_socket(const Call& call, bool* done) {
  const SocketReply::State state = socket_.look();
  if (state == SocketReply::State::kEnd) return lost(call);
  if (state != SocketReply::State::kWhole) return Outcome::kDone;
  auto& message = socket_.message();
  std::uint32_t xid = 0;
  if (message.size() < sizeof xid) return Outcome::kDone;
  std::memcpy(&xid, message.data(), sizeof xid);
  if (ntohl(xid) != xid_) return Outcome::kDone;
  XDR xdrs;
  memory_xdr(&xdrs, std::as_bytes(std::span(message)));
  decode_full(call, &xdrs);
  *done = true;
  return Outcome::kDone;
}

// A call over CLAN may have ended with a part of a record read: its time was over, its thread
// cancelled, its reply there by CLAN. The stock handle would take the rest for another record.
// False: the rest has not come in time.
bool Client::is_at_a_record(std::uint64_t deadline, int cancel_state) {
  while (socket_.in_the_middle()) {
    // of a socket that has ended the stock handle finds that, too
    if (socket_.look() == SocketReply::State::kEnd) return true;
    if (!socket_.in_the_middle()) break;
    const std::uint64_t left = left_ns(deadline);
    if (left == 0) return false;
    pollfd fds{fd_, POLLIN, 0};
    sigset_t all;
    sigfillset(&all);
    const timespec most = {static_cast<time_t>(left / 1'000'000'000),
                           static_cast<long>(left % 1'000'000'000)};
    const Cancellable here(cancel_state);
    (void)::ppoll(&fds, 1, &most, &all);
  }
  return true;
}

// Every field but the xid.
static bool has_sense(const ReplyHead& head) {
  return head.kind == kMore
             ? head.go_on <= kGivenUp
             : (head.kind == kReply || head.kind == kReplyFull) && head.go_on <= kFollows;
}

// What the server has sent is no reply of this library: the call fails, and the server is not
// listened to any more.
void Client::makes_no_sense() {
  count(counters().hostile);
  nonsense_ = true;
  error_.re_status = RPC_CANTDECODERES;
  static LogRateLimit limit;
  if (!limit.allows()) return;
  CLAN_WARN(
      "a reply of program %u version %u makes no sense: its calls go by the socket from now on",
      prog_, vers_);
}

// Takes what has come over CLAN. False: the server has gone.
bool Client::take_reply(const Call& call, bool* done) {
  for (int n = 0; n < kMostMessages; ++n) {
    auto message = endpoint_->peek();
    if (!message) {
      PeerIndex gone;
      int reason = 0;
      if (message.error().err != EAGAIN) return false;
      if (!endpoint_->take_departed(&gone, &reason)) return true;
      if (reason == EPROTO) makes_no_sense();
      *done = nonsense_;
      return nonsense_;
    }
    std::span<const std::byte> bytes = message->bytes;
    ReplyHead head;
    if (!take_front(&bytes, &head) || !has_sense(head)) {
      makes_no_sense();
      *done = true;
      return true;
    }
    if (head.xid != xid_ || head.kind == kMore) {  // of a call that was given up
      endpoint_->drop();
      continue;
    }
    take_this(call, head, bytes);
    endpoint_->drop();
    *done = error_.re_status != RPC_CANTRECV;  // the server has gone in the middle of it
    return *done;
  }
  return true;
}

/// A reply of several fragments.
class ReplyIn final : public InMessage {
 public:
  ReplyIn(Client& client, std::span<const std::byte> first, std::uint64_t deadline)
      : InMessage(first), client_(client), deadline_(deadline) {}

 private:
  bool await_more(std::span<const std::byte>* bytes) override {
    return client_.await_more(deadline_, bytes);
  }
  Client& client_;
  const std::uint64_t deadline_;
};

void Client::take_this(const Call& call, const ReplyHead& head, std::span<const std::byte> bytes) {
  XDR xdrs;
  more_follows_ = head.go_on == kFollows;
  if (more_follows_) {
    ReplyIn reply(*this, bytes, call.deadline);
    reply.xdr(&xdrs);
    return decode_reply(call, head,
                        &xdrs);  // fragments that are left have an xid that nobody waits for
  }
  if (stage() == Stage::kDirect) {  // the paper's first stage copies what it has received
    OutBuffer copy;
    if (!copy.reserve(bytes.size() + 4)) return;
    std::memcpy(copy.data, bytes.data(), bytes.size());
    memory_xdr(&xdrs, {reinterpret_cast<std::byte*>(copy.data), bytes.size()});
    return decode_reply(call, head, &xdrs);
  }
  memory_xdr(&xdrs, bytes);
  decode_reply(call, head, &xdrs);
}

// False leaves a fragment at the front of the ring, for take_reply() to drop.
bool Client::await_more(std::uint64_t deadline, std::span<const std::byte>* bytes) {
  if (!more_follows_) return false;
  endpoint_->drop();
  for (;;) {
    if (left_ns(deadline) == 0) {
      error_.re_status = RPC_TIMEDOUT;
      return false;
    }
    auto message = endpoint_->peek();
    if (message.ok()) {
      *bytes = message->bytes;
      ReplyHead head;
      if (!take_front(bytes, &head) || !has_sense(head)) {
        makes_no_sense();
        return false;
      }
      if (head.kind == kMore && head.xid == xid_) {
        more_follows_ = head.go_on == kFollows;
        return head.go_on != kGivenUp && !bytes->empty();
      }
      endpoint_->drop();  // of a call that was given up
    } else if (endpoint_->has_gone(peer_)) {
      if (endpoint_->peek().ok()) continue;  // what it had sent
      error_.re_status = RPC_CANTRECV;
      return false;
    } else if (!endpoint_->spin()) {
      {
        const Cancellable here(cancel_state_);
        pthread_testcancel();
      }
      (void)endpoint_->sleep(left_ms(std::min(deadline, monotonic_ns() + kNapNs)));
    }
  }
}

void Client::decode_reply(const Call& call, const ReplyHead& head, XDR* xdrs) {
  if (head.kind == kReplyFull) return decode_full(call, xdrs);
  opaque_auth verifier = _null_auth;
  if (AUTH_VALIDATE(handle_.cl_auth, &verifier) == FALSE) {
    error_.re_status = RPC_AUTHERROR;
    error_.re_why = AUTH_INVALIDRESP;
  } else {
    unwrap(call, xdrs);
  }
}

void Client::unwrap(const Call& call, XDR* xdrs) {
  if (AUTH_UNWRAP(handle_.cl_auth, xdrs, call.xres, static_cast<caddr_t>(call.res)) == FALSE &&
      error_.re_status == RPC_SUCCESS) {
    error_.re_status = RPC_CANTDECODERES;
  }
}

// An xdr_replymsg, as RFC 5531 defines it.
void Client::decode_full(const Call& call, XDR* xdrs) {
  rpc_msg reply{};
  reply.acpted_rply.ar_verf = _null_auth;
  reply.acpted_rply.ar_results.where = nullptr;
  reply.acpted_rply.ar_results.proc = no_data();
  if (xdr_replymsg(xdrs, &reply) != FALSE) {
    take_full(call, &reply, xdrs);
  } else if (error_.re_status == RPC_SUCCESS) {
    makes_no_sense();
  }
  int stat = MSG_DENIED;  // as a number: what has been decoded need not be one of its names
  std::memcpy(&stat, &reply.rm_reply.rp_stat, sizeof stat);
  if (stat != MSG_ACCEPTED || reply.acpted_rply.ar_verf.oa_base == nullptr) return;
  XDR freeing;
  freeing_xdr(&freeing);
  (void)xdr_opaque_auth(&freeing, &reply.acpted_rply.ar_verf);
}

void Client::take_full(const Call& call, rpc_msg* reply, XDR* xdrs) {
  _seterr_reply(reply, &error_);
  if (error_.re_status != RPC_SUCCESS) {
    refresh_ = error_.re_status == RPC_AUTHERROR && AUTH_REFRESH(handle_.cl_auth, reply) != FALSE;
  } else if (AUTH_VALIDATE(handle_.cl_auth, &reply->acpted_rply.ar_verf) == FALSE) {
    error_.re_status = RPC_AUTHERROR;
    error_.re_why = AUTH_INVALIDRESP;
  } else {
    unwrap(call, xdrs);
  }
}

}  // namespace clan::rpc
