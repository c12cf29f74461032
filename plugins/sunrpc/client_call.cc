// One call over CLAN: encode into the server's ring, wait, decode out of the client's own.
#include <clan/clock.h>
#include <clan/log.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "client.h"
#include "fragments.h"
#include "stock_socket.h"

namespace clan::rpc {
namespace {

int milliseconds_until(std::uint64_t deadline) {
  if (deadline == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  if (now >= deadline) return 0;
  return static_cast<int>(std::min<std::uint64_t>((deadline - now) / 1'000'000 + 1, 1'000'000));
}

}  // namespace

// The server has gone in the middle of it. A datagram's call is repeated over its socket, as it would be anyway. A
// stream's socket has ended, too: to ask there again would be one write more than libtirpc's, and a SIGPIPE. Between
// hosts it may be the path that has gone.
Client::Outcome Client::lost(const Call& call) {
  count(counters().lost);
  char byte;
  const bool path_alone = token_ != 0 && (datagram_ || recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0);
  const bool again = path_alone && !datagram_ && was_not_taken(call.deadline);
  leave(datagram_ ? State::kFresh : State::kStock);
  if (path_alone) late();
  error_.re_status = RPC_CANTRECV;
  error_.re_errno = ECONNRESET;
  return again ? Outcome::kNotSent : Outcome::kLost;
}

Client::Outcome Client::by_clan(const Call& call) {
  error_ = {};
  error_.re_status = RPC_SUCCESS;
  xid_ = datagram_ ? xid_ + 1 : ntohl(htonl(xid_) - 1);  // as libtirpc counts
  xid_moved_ = true;
  const Outcome sent = send_call(call);
  if (sent != Outcome::kDone || error_.re_status != RPC_SUCCESS || !call.wait) return sent;
  const Outcome outcome = await_reply(call);
  // Packets may be lost, all of them, where the socket's are not: it is asked for the way again.
  if (token_ != 0 && outcome == Outcome::kDone && error_.re_status == RPC_TIMEDOUT) {
    leave(State::kStock);
    late();
  }
  return outcome;
}

// --- sending -----------------------------------------------------------------------------------------

Caller Client::caller_now() const {
  const opaque_auth& credential = handle_.cl_auth->ah_cred;
  Caller caller;
  caller.prog = static_cast<std::uint32_t>(prog_);
  caller.vers = static_cast<std::uint32_t>(vers_);
  caller.flavor = credential.oa_flavor;
  caller.length = std::min<std::uint32_t>(credential.oa_length, MAX_AUTH_BYTES);
  return caller;
}

// The heads of a call, and of its caller if the server does not know it. Returns their size, a multiple of 4.
std::size_t Client::put_heads(std::byte* to, const Call& call, bool new_caller) const {
  CallHead head;
  head.new_caller = new_caller ? 1 : 0;
  head.xid = xid_;
  head.proc = static_cast<std::uint32_t>(call.proc);
  std::memcpy(to, &head, sizeof head);
  if (!new_caller) return sizeof head;
  const Caller caller = caller_now();
  std::memcpy(to + sizeof head, &caller, sizeof caller);
  const std::size_t at = sizeof head + sizeof caller;
  if (caller.length > 0) std::memcpy(to + at, handle_.cl_auth->ah_cred.oa_base, caller.length);
  std::memset(to + at + caller.length, 0, padded(caller.length) - caller.length);
  return at + padded(caller.length);
}

constexpr std::size_t kMostHeads = sizeof(CallHead) + sizeof(Caller) + MAX_AUTH_BYTES;

Client::Outcome Client::send_call(const Call& call) {
  const bool reduced = stage() != Stage::kOptimized;
  const bool new_caller =
      reduced || !known_.is(caller_now(), static_cast<const char*>(handle_.cl_auth->ah_cred.oa_base));
  bool sent = false;
  if (stage() != Stage::kDirect && hint_ <= kFragment && fits_in_place(call, new_caller, &sent)) {
    if (!sent) return Outcome::kNotSent;
  } else if (const Outcome outcome = send_fragments(call, new_caller);
             outcome != Outcome::kDone || error_.re_status != RPC_SUCCESS) {
    return outcome;
  }
  if (new_caller) known_.set(caller_now(), static_cast<const char*>(handle_.cl_auth->ah_cred.oa_base));
  return Outcome::kDone;
}

// Encodes straight into the server's ring. False: it may not fit, try otherwise. `sent` false with true: the
// server has gone, nothing has been sent.
bool Client::fits_in_place(const Call& call, bool new_caller, bool* sent) {
  auto room = endpoint_->reserve(peer_, std::min(kFragment, hint_ + kMostHeads));
  if (!room) {
    const int err = room.error().err;
    if (err == EAGAIN || err == EMSGSIZE) return false;
    leave(State::kFresh);
    return true;
  }
  const std::size_t heads = put_heads(room->data(), call, new_caller);
  XDR xdrs;
  xdrmem_create(&xdrs, reinterpret_cast<char*>(room->data() + heads), static_cast<u_int>(room->size() - heads),
                XDR_ENCODE);
  if (AUTH_WRAP(handle_.cl_auth, &xdrs, call.xargs, static_cast<caddr_t>(call.args)) == FALSE) return false;
  const std::size_t used = XDR_GETPOS(&xdrs);
  endpoint_->commit(peer_, heads + used);
  hint_ = std::clamp<std::size_t>(used * 2, 512, kFragment);
  *sent = true;
  return true;
}

/// A call of several fragments.
class CallOut final : public OutMessage {
 public:
  CallOut(Client& client, std::uint64_t deadline)
      : OutMessage(*client.endpoint_, client.peer_, client.xid_), client_(client), deadline_(deadline) {}

 private:
  bool await_room() override { return client_.await_room(deadline_); }
  Client& client_;
  const std::uint64_t deadline_;
};

bool Client::encode(const Call& call, OutMessage* to) {
  XDR xdrs;
  if (stage() != Stage::kDirect) {
    to->xdr(&xdrs);
    return AUTH_WRAP(handle_.cl_auth, &xdrs, call.xargs, static_cast<caddr_t>(call.args)) != FALSE;
  }
  OutBuffer buffer;  // the paper's first stage sends a copy of what it has encoded
  growing_xdr(&xdrs, &buffer);
  return AUTH_WRAP(handle_.cl_auth, &xdrs, call.xargs, static_cast<caddr_t>(call.args)) != FALSE &&
         to->put(buffer.data, buffer.size);
}

Client::Outcome Client::send_fragments(const Call& call, bool new_caller) {
  CallOut out(*this, call.deadline);
  std::byte heads[kMostHeads];
  const bool begun = out.begin({heads, put_heads(heads, call, new_caller)});
  if (begun && encode(call, &out)) {
    hint_ = std::clamp<std::size_t>(out.position(), 512, kEager);
    if (out.finish()) return Outcome::kDone;
  }
  if (endpoint_->has_gone(peer_)) {
    if (out.in_the_middle()) return lost(call);
    leave(State::kFresh);
    return Outcome::kNotSent;
  }
  if (error_.re_status == RPC_SUCCESS) {
    error_.re_status = RPC_CANTENCODEARGS;
    out.give_up();
  } else if (out.in_the_middle()) {
    leave(State::kFresh);  // there was no room in time for the rest, nor for a word about it
  }
  return Outcome::kDone;
}

// The server is behind with what it has to read. What it sends us meanwhile nobody waits for. False: it has gone, or
// the call's time is over.
bool Client::await_room(std::uint64_t deadline) {
  for (auto message = endpoint_->peek(); message.ok(); message = endpoint_->peek()) endpoint_->drop();
  if (endpoint_->has_gone(peer_)) return false;
  if (deadline != kNoDeadline && monotonic_ns() >= deadline) {
    error_.re_status = RPC_CANTSEND;
    error_.re_errno = ETIMEDOUT;
    return false;
  }
  const timespec pause{0, 50'000};
  nanosleep(&pause, nullptr);
  return true;
}

// --- the reply ---------------------------------------------------------------------------------------

Client::Outcome Client::await_reply(const Call& call) {
  SocketReply socket(fd_);
  for (bool done = false;;) {
    const bool something = endpoint_->spin();
    if (!take_reply(call, &done)) return lost(call);
    if (done) return Outcome::kDone;
    if (something && (call.deadline == kNoDeadline || monotonic_ns() < call.deadline)) continue;
    if (milliseconds_until(call.deadline) == 0) {
      error_.re_status = RPC_TIMEDOUT;
      return Outcome::kDone;
    }
    const Outcome outcome = sleep(call, &socket, &done);
    if (outcome != Outcome::kDone || done) return outcome;
  }
}

// Until something comes over CLAN or, from a server that has forked, by the socket.
Client::Outcome Client::sleep(const Call& call, SocketReply* socket, bool* done) {
  auto number = endpoint_->fd();
  if (!number) return lost(call);
  if (!endpoint_->arm_fd()) return Outcome::kDone;
  pollfd fds[2] = {{*number, POLLIN, 0}, {fd_, POLLIN, 0}};
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  count(counters().sleeps);
  const int ready = ::poll(fds, 2, milliseconds_until(call.deadline));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ready <= 0 || fds[1].revents == 0) return Outcome::kDone;
  if (!take_reply(call, done)) return lost(call);  // by CLAN first: it may be why the socket has ended
  if (*done) return Outcome::kDone;
  switch (socket->look()) {
    case SocketReply::State::kWhole: {
      XDR xdrs;
      auto& message = socket->message();
      std::uint32_t xid = 0;
      if (message.size() >= 4) std::memcpy(&xid, message.data(), 4);
      if (ntohl(xid) != xid_) return Outcome::kDone;
      memory_xdr(&xdrs, std::as_bytes(std::span(message)));
      decode_full(call, &xdrs);
      *done = true;
      return Outcome::kDone;
    }
    case SocketReply::State::kEnd:
      return lost(call);
    default:
      return Outcome::kDone;
  }
}

// Looks at what has come over CLAN. False: the server has gone.
bool Client::take_reply(const Call& call, bool* done) {
  for (;;) {
    auto message = endpoint_->peek();
    if (!message) {
      PeerIndex gone;
      return message.error().err == EAGAIN && !endpoint_->take_departed(&gone);
    }
    std::span<const std::byte> bytes = message->bytes;
    ReplyHead head;
    if (!take_front(&bytes, &head) || (head.kind != kReply && head.kind != kReplyFull && head.kind != kMore)) {
      count(counters().hostile);
      return false;
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
}

/// A reply of several fragments.
class ReplyIn final : public InMessage {
 public:
  ReplyIn(Client& client, std::span<const std::byte> first, std::uint64_t deadline)
      : InMessage(first), client_(client), deadline_(deadline) {}

 private:
  bool await_more(std::span<const std::byte>* bytes) override { return client_.await_more(deadline_, bytes); }
  Client& client_;
  const std::uint64_t deadline_;
};

void Client::take_this(const Call& call, const ReplyHead& head, std::span<const std::byte> bytes) {
  XDR xdrs;
  more_follows_ = head.go_on == kFollows;
  if (more_follows_) {
    ReplyIn reply(*this, bytes, call.deadline);
    reply.xdr(&xdrs);
    return decode_reply(call, head, &xdrs);  // fragments that are left have an xid that nobody waits for
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
    auto message = endpoint_->peek();
    if (message.ok()) {
      *bytes = message->bytes;
      ReplyHead head;
      if (!take_front(bytes, &head)) return false;
      if (head.kind == kMore && head.xid == xid_) {
        more_follows_ = head.go_on == kFollows;
        return head.go_on != kGivenUp && !bytes->empty();
      }
      endpoint_->drop();  // of a call that was given up
    } else if (endpoint_->has_gone(peer_)) {
      if (endpoint_->peek().ok()) continue;  // what it had sent
      error_.re_status = RPC_CANTRECV;
      return false;
    } else if (deadline != kNoDeadline && monotonic_ns() >= deadline) {
      error_.re_status = RPC_TIMEDOUT;
      return false;
    } else if (!endpoint_->spin()) {
      (void)endpoint_->sleep(milliseconds_until(deadline));
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

// An xdr_replymsg, as it stands in RFC 5531.
void Client::decode_full(const Call& call, XDR* xdrs) {
  rpc_msg reply{};
  reply.acpted_rply.ar_verf = _null_auth;
  reply.acpted_rply.ar_results.where = nullptr;
  reply.acpted_rply.ar_results.proc = no_data();
  if (xdr_replymsg(xdrs, &reply) != FALSE) {
    take_full(call, &reply, xdrs);
  } else {
    error_.re_status = RPC_CANTDECODERES;
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
