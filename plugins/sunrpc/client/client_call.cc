// One call over CLAN: encode into the server's ring. client_reply.cc waits for the answer.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "client/client.h"
#include "fragments.h"

namespace clan::rpc {

constexpr int kMostTimeouts = 2;  ///< in a row

// The server has gone in the middle of it. A datagram's call is repeated over its socket, as it
// would be anyway. A stream's socket has ended, too: to ask there again would be one write more
// than libtirpc's, and a SIGPIPE. Between hosts it may be the path that has gone.
Client::Outcome Client::lost(const Call& call) {
  count(counters().lost);
  char byte;
  const bool path_alone =
      token_ != 0 && (datagram_ || recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0);
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
  sent_.size = 0;
  const Outcome sent = send_call(call);
  if (sent != Outcome::kDone || error_.re_status != RPC_SUCCESS || !call.wait) return sent;
  const Outcome outcome = await_reply(call);
  if (outcome != Outcome::kDone) return outcome;
  if (error_.re_status == RPC_TIMEDOUT) {
    ++timeouts_;
  } else {
    timeouts_ = 0;
    if (!unheard_) attempts_ = 0, pause_s_ = 0;  // what may come is another trouble
  }
  if (nonsense_) {
    leave(State::kStock);
  } else if (token_ != 0 && timeouts_ > 0) {
    // Packets may be lost, all of them, where the socket's are not: it is asked for the way again.
    leave(State::kStock);
    late();
  } else if (unheard_ || timeouts_ >= kMostTimeouts) {
    const char* const why =
        unheard_ ? "a reply has woken nobody" : "the server does not answer over CLAN";
    leave(State::kStock);
    rest(why);
  }
  return outcome;
}

// --- sending -------------------------------------------------------------------------------------

Caller Client::caller_now() const {
  const opaque_auth& credential = handle_.cl_auth->ah_cred;
  Caller caller;
  caller.prog = static_cast<std::uint32_t>(prog_);
  caller.vers = static_cast<std::uint32_t>(vers_);
  caller.flavor = credential.oa_flavor;
  caller.length = std::min<std::uint32_t>(credential.oa_length, MAX_AUTH_BYTES);
  return caller;
}

// The heads of a call, and of its caller if the server does not know it. Returns their size, a
// multiple of 4.
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

/// A call on its way out.
class CallOut final : public OutMessage {
 public:
  CallOut(Client& client, std::uint64_t deadline)
      : OutMessage(*client.endpoint_, client.peer_, client.xid_),
        client_(client),
        deadline_(deadline) {}

 private:
  bool is_in_time() override { return client_.is_in_time(deadline_); }
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

Client::Outcome Client::send_call(const Call& call) {
  const bool reduced = stage() != Stage::kOptimized;
  const bool new_caller =
      reduced ||
      !known_.is(caller_now(), static_cast<const char*>(handle_.cl_auth->ah_cred.oa_base));
  if (new_caller) known_.known = false;  // the server may know it from a call that was given up
  Outcome outcome;
  try {
    outcome = send_message(call, new_caller);
  } catch (...) {
    leave(State::kFresh);  // the server may have a part of it
    throw;
  }
  if (outcome == Outcome::kDone && error_.re_status == RPC_SUCCESS && new_caller)
    known_.set(caller_now(), static_cast<const char*>(handle_.cl_auth->ah_cred.oa_base));
  return outcome;
}

Client::Outcome Client::send_message(const Call& call, bool new_caller) {
  CallOut out(*this, call.deadline);
  std::byte* const heads = out.begin(stage() == Stage::kDirect ? kFragment : kMostHeads + hint_);
  if (heads == nullptr) {
    if (error_.re_status != RPC_SUCCESS) return Outcome::kDone;
    leave(State::kFresh);
    return Outcome::kNotSent;
  }
  const std::size_t head_bytes = put_heads(heads, call, new_caller);
  out.headed(head_bytes);
  if (encode(call, &out)) {
    hint_ = std::clamp<std::size_t>(2 * out.position(), 512, kFragment);
    if ((datagram_ || token_ != 0) && !out.in_the_middle()) keep(out.last(), head_bytes);
    if (out.finish()) return Outcome::kDone;
  }
  if (out.in_the_middle() && endpoint_->has_gone(peer_)) return lost(call);
  if (error_.re_status == RPC_SUCCESS) {
    error_.re_status = RPC_CANTENCODEARGS;
    out.give_up();
  } else if (out.in_the_middle()) {
    leave(State::kFresh);  // there was no room in time for the rest, nor for a word about it
  }
  return Outcome::kDone;
}

// What may have to be sent again is not encoded again: the arguments' routine may have read them
// from a file. Calls of several fragments are not sent again.
void Client::keep(std::span<const std::byte> message, std::size_t head_bytes) {
  if (!sent_.reserve(message.size())) return;
  std::memcpy(sent_.data, message.data(), message.size());
  sent_.size = message.size();
  sent_heads_ = head_bytes;
  sent_.data[offsetof(CallHead, again)] = 1;
}

void Client::send_again() {
  auto room = endpoint_->reserve(peer_, sent_.size);
  if (!room) return;  // the server is behind with what it has to read
  std::memcpy(room->data(), sent_.data, sent_.size);
  endpoint_->commit(peer_, sent_.size);
}

// The arguments as they have been encoded.
bool Client::put_kept(XDR* xdrs) {
  return XDR_PUTBYTES(xdrs, sent_.data + sent_heads_,
                      static_cast<u_int>(sent_.size - sent_heads_)) != FALSE;
}

bool Client::is_in_time(std::uint64_t deadline) {
  if (left_ns(deadline) > 0) return true;
  error_.re_status = RPC_CANTSEND;
  error_.re_errno = ETIMEDOUT;
  return false;
}

// The server is behind with what it has to read. What it sends us meanwhile nobody waits for.
// False: it has gone, or the call's time is over.
bool Client::await_room(std::uint64_t deadline) {
  for (int n = 0; n < kMostMessages && endpoint_->peek().ok(); ++n) endpoint_->drop();
  if (endpoint_->has_gone(peer_) || !is_in_time(deadline)) return false;
  const timespec pause{0, 50'000};
  const Cancellable here(cancel_state_);
  nanosleep(&pause, nullptr);
  return true;
}

}  // namespace clan::rpc
