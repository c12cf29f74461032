// The hub: how clients come and, from other hosts, ask about their last call. See client_meet.cc.
#include <clan/detail/log.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "server/server.h"

namespace clan::rpc {

ServiceTransport* Hub::transport_of(SVCXPRT* xprt) {
  ServiceTransport* known = ServiceTransport::of(xprt);
  if (known != nullptr && known->generation_ != generation()) {  // the parent's
    known->hub_ = this;
    known->generation_ = generation();
    known->where_ = ServiceTransport::Where::kNowhere;
    known->from_clan_ = false;
    known->clients_.clear();
  }
  return known != nullptr ? known : new (std::nothrow) ServiceTransport(*this, xprt);
}

// A client may come with the token now. 0 or an errno.
std::uint32_t Hub::expect(SVCXPRT* xprt, const MeetArguments& arguments, bool far,
                          std::uint64_t* token) {
  if (arguments.abi != kAbi) return EPROTONOSUPPORT;
  Expected expected{random_word(), nullptr, {}, 0, far};
  const netbuf& from = xprt->xp_rtaddr;
  if (from.buf != nullptr && from.len <= sizeof expected.from) {
    std::memcpy(&expected.from, from.buf, from.len);
    expected.from_length = from.len;
  }
  expected.transport = expected.token != 0 ? transport_of(xprt) : nullptr;
  if (expected.transport == nullptr) return ENOMEM;
  std::lock_guard lock(mutex_);
  if (expected_.size() == kMostExpected) expected_.pop_front();
  expected_.push_back(expected);
  *token = expected.token;
  return 0;
}

MeetResults Hub::meet(SVCXPRT* xprt, const MeetArguments& arguments) {
  MeetResults results;
  results.status = expect(xprt, arguments, false, &results.token);
  if (results.status == 0) results.address = endpoint_->address();
  return results;
}

FarResults Hub::meet_far(SVCXPRT* xprt, const MeetArguments& arguments) {
  FarResults results;
  results.status = service_ == 0 ? ENONET : expect(xprt, arguments, true, &results.token);
  if (results.status != 0) return results;
  results.port = context()->network_port();
  results.service = service_;
  return results;
}

// What the client has sent by that path and we have not taken is dropped with it: it will not be
// served twice.
LeaveResults Hub::leave(SVCXPRT*, const LeaveArguments& arguments) {
  std::lock_guard lock(mutex_);
  const auto expected = std::find_if(expected_.begin(), expected_.end(),
                                     [&](const Expected& e) { return e.token == arguments.token; });
  if (expected != expected_.end()) {
    expected_.erase(expected);
    return {0, 0};
  }
  for (PeerIndex i = 0; i < peers_.size(); ++i) {
    if (peers_[i] && peers_[i]->token != 0 && peers_[i]->token == arguments.token)
      drop_peer(i, false);
  }
  for (const Departed& d : departed_) {
    if (d.token == arguments.token) return {0, d.last_xid == arguments.xid ? 1u : 0u};
  }
  return {ENOENT, 0};
}

void Hub::welcome(PeerIndex index, std::span<const std::byte> bytes) {
  Hello hello;
  const bool good = take_front(&bytes, &hello) && hello.kind == kHello && hello.abi == kAbi;
  const auto at = std::find_if(expected_.begin(), expected_.end(),
                               [&](const Expected& e) { return good && e.token == hello.token; });
  endpoint_->drop();
  if (at == expected_.end()) return drop_peer(index, true);
  PeerState& peer = *peers_[index];
  try {
    at->transport->clients_.push_back(index);
  } catch (const std::bad_alloc&) {
    expected_.erase(at);
    return drop_peer(index, false);
  }
  peer.transport = at->transport;
  peer.from = at->from;
  peer.from_length = at->from_length;
  peer.token = at->far ? at->token : 0;
  const char* const from = at->far ? "another host's client" : "a client";
  expected_.erase(at);
  Hello answer;
  answer.kind = kWelcome;
  if (!endpoint_->try_send(index, std::as_bytes(std::span(&answer, 1)), {}))
    return drop_peer(index, false);
  count(counters().clients);
  CLAN_INFO("%s's calls come over CLAN", from);
}

}  // namespace clan::rpc
