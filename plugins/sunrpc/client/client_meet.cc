// How a client meets its server: by the socket, then over CLAN, by shared memory on this host, by
// the UDP link to another.
#include <arpa/inet.h>
#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "client/client.h"

namespace clan::rpc {
namespace {

constexpr int kMostAttempts = 3;
constexpr unsigned kMostPauseS = 64;      ///< between attempts after those
constexpr std::uint64_t kAskMs = 1000;    ///< for a server's answer by the socket
constexpr std::uint64_t kDialMs = 500;    ///< for its UDP link
constexpr std::uint64_t kWelcomeMs = 20;  ///< for its loop to serve CLAN

/// UDP addresses that have not answered, for all handles: each would wait for them.
class Silent {
 public:
  bool has(const std::string& address) {
    std::lock_guard lock(mutex_);
    const auto found = until_ns_.find(address);
    return found != until_ns_.end() && monotonic_ns() < found->second;
  }
  void add(const std::string& address) {
    std::lock_guard lock(mutex_);
    if (until_ns_.size() >= kMost) until_ns_.clear();
    until_ns_[address] = monotonic_ns() + kForMs * kMs;
  }

 private:
  static constexpr std::size_t kMost = 256;
  static constexpr std::uint64_t kForMs = 30'000;
  std::mutex mutex_;
  std::map<std::string, std::uint64_t> until_ns_;
};

Silent& silent() {
  static Silent* const all = new Silent;  // threads may outlive static destructors
  return *all;
}

// "10.0.0.1:4711", "[fd00::1]:4711"; empty: no address that can be named so.
std::string address_text(const sockaddr_storage& address, std::uint32_t port) {
  char text[INET6_ADDRSTRLEN];
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(port);
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || six.sin6_scope_id != 0) return {};
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  return "[" + std::string(text) + "]:" + std::to_string(port);
}

}  // namespace

void Client::stays(const char* why) {
  CLAN_INFO("calls of program %u version %u go by the socket: %s", prog_, vers_, why);
}

void Client::meet(std::uint64_t deadline) {
  state_ = State::kStock;
  if (++attempts_ > kMostAttempts) return late();
  const bool marked = marker_is_there(marker_);
  if (!marked && !calls_other_hosts())
    return stays("its server has not libclanrpc, or is not in this network namespace");
  const auto* address = reinterpret_cast<const sockaddr*>(&server_);
  const bool near = is_local(fd_, datagram_ ? SOCK_DGRAM : SOCK_STREAM, address, server_length_);
  if (near && !marked) return stays("its server has not libclanrpc");
  if (!near && !calls_other_hosts())
    return stays(
        "its server is on another host, and neither CLAN_KEY nor CLAN_NETWORK_MODE is set");
  Context* ours = context();
  if (ours == nullptr) return stays("CLAN cannot be used in this process (clan doctor)");
  if (!near && ours->network_port() == 0)
    return stays("its server is on another host, and the UDP link cannot be used");
  MessageOptions options;
  options.max_message = kFragment;
  options.eager_bytes = kEager;
  auto endpoint = MessageEndpoint::create(*ours, {}, options);
  if (!endpoint) return stays(endpoint.error().message().c_str());
  endpoint_ = std::move(*endpoint);
  near ? meet_near(deadline) : meet_far(deadline);
  if (state_ != State::kOffered) endpoint_.reset();
}

void Client::meet_near(std::uint64_t deadline) {
  MeetArguments arguments;
  arguments.uid = geteuid();
  MeetResults results;
  if (!ask(kMeet, as_xdrproc(clan_rpc_xdr_meet_arguments), &arguments,
           as_xdrproc(clan_rpc_xdr_meet_results), &results,
           std::min(deadline, monotonic_ns() + kAskMs * kMs)) ||
      results.status != 0) {
    return refused(results.status);
  }
  const std::uint64_t in_time = std::min(deadline, monotonic_ns() + kAskMs * kMs);
  offer(endpoint_->connect(results.address, left_ms(in_time)), results.token);
}

// Between hosts the path of the calls is not that of the socket: what keeps it closed is found by
// waiting.
void Client::meet_far(std::uint64_t deadline) {
  MeetArguments arguments;
  arguments.uid = geteuid();
  FarResults results;
  if (!ask(kMeetFar, as_xdrproc(clan_rpc_xdr_meet_arguments), &arguments,
           as_xdrproc(clan_rpc_xdr_far_results), &results,
           std::min(deadline, monotonic_ns() + kAskMs * kMs)) ||
      results.status != 0) {
    return refused(results.status);
  }
  const std::string address = address_text(server_, results.port);
  if (address.empty()) return stays("its address cannot be named to the UDP link");
  if (silent().has(address)) return late();
  const std::uint64_t left = left_ns(deadline) / 2 / kMs;
  auto peer = endpoint_->connect("udp:" + address + "/" + far_service(results.service),
                                 static_cast<std::int64_t>(std::min(kDialMs, left)));
  if (!peer && peer.error().err == ETIMEDOUT && left >= kDialMs) {
    silent().add(address);
    CLAN_INFO("UDP address %s does not answer: another CLAN_KEY, or packets are filtered",
              address.c_str());
  }
  const bool connected = peer.ok();
  offer(peer, results.token);
  if (connected && state_ == State::kOffered) token_ = results.token;
}

// Says Hello to a server that has been connected to.
void Client::offer(Result<PeerIndex> peer, std::uint64_t token) {
  if (!peer && peer.error().err == ETIMEDOUT) return late();
  if (!peer) return stays(peer.error().message().c_str());
  Hello hello;
  hello.token = token;
  if (!endpoint_->try_send(*peer, std::as_bytes(std::span(&hello, 1)), {})) return;
  peer_ = *peer;
  waited_ = false;
  state_ = State::kOffered;
}

// The server has answered that it does not take our calls, or not in time.
void Client::refused(std::uint32_t status) {
  if (state_ == State::kFresh) return late();
  stays(status == EPROTONOSUPPORT ? "the server has another version of libclanrpc"
                                  : "the server does not take calls over CLAN");
}

// The server has not answered in time, as on a busy machine: asked again at the next call, later at
// growing distances.
void Client::late() {
  state_ = State::kFresh;
  if (attempts_ >= kMostAttempts) rest("the server was late or has gone");
}

// Calls go by the socket for a while, each time for longer.
void Client::rest(const char* why) {
  attempts_ = kMostAttempts - 1;
  state_ = State::kStock;
  pause_s_ = std::clamp(2 * pause_s_, 1u, kMostPauseS);
  again_at_ns_ = monotonic_ns() + pause_s_ * 1000 * kMs;
  CLAN_INFO("calls of program %u version %u go by the socket for %u s: %s", prog_, vers_, pause_s_,
            why);
}

// The call goes by the stock handle, without credentials. A server that is busy will answer the
// program's own call no sooner.
bool Client::ask(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                 std::uint64_t deadline) {
  if (!is_at_a_record(deadline, PTHREAD_CANCEL_DISABLE)) {
    state_ = State::kFresh;  // as where there is no answer in time
    return false;
  }
  rpcprog_t prog = kProgram;
  rpcvers_t vers = kVersion;
  AUTH* const auth = stock_->cl_auth;
  stock_->cl_auth = authnone_create();
  (void)CLNT_CONTROL(stock_, CLSET_PROG, &prog);
  (void)CLNT_CONTROL(stock_, CLSET_VERS, &vers);
  const timeval timeout = until(deadline);
  enum clnt_stat stat = RPC_TIMEDOUT;
  if (timeout.tv_sec != 0 || timeout.tv_usec != 0)
    stat = CLNT_CALL(stock_, proc, xargs, args, xres, res, timeout);
  prog = prog_;
  vers = vers_;
  (void)CLNT_CONTROL(stock_, CLSET_PROG, &prog);
  (void)CLNT_CONTROL(stock_, CLSET_VERS, &vers);
  stock_->cl_auth = auth;
  // One that the program has set, or that a call over CLAN has had, is what its next call counts on
  // from.
  if (!xid_moved_) (void)CLNT_CONTROL(stock_, CLGET_XID, &xid_);
  if (stat == RPC_TIMEDOUT) state_ = State::kFresh;  // ask again at another call
  return stat == RPC_SUCCESS;
}

void Client::await_welcome(std::uint64_t deadline) {
  waited_ = true;
  const std::uint64_t end = std::min(deadline, monotonic_ns() + kWelcomeMs * kMs);
  for (;;) {
    look_for_welcome();
    const std::int64_t ms = left_ms(end);
    if (state_ != State::kOffered || ms == 0) return;
    if (!endpoint_->spin()) (void)endpoint_->sleep(ms);
  }
}

void Client::look_for_welcome() {
  auto message = endpoint_->peek();
  if (!message) {
    PeerIndex gone;
    if (message.error().err != EAGAIN || endpoint_->take_departed(&gone)) leave(State::kFresh);
    return;
  }
  Hello welcome;
  std::span<const std::byte> bytes = message->bytes;
  const bool good = take_front(&bytes, &welcome) && welcome.kind == kWelcome && welcome.abi == kAbi;
  endpoint_->drop();
  if (!good) {
    makes_no_sense();
    return leave(State::kStock);
  }
  state_ = State::kMet;
  count(counters().met);
  CLAN_INFO("calls of program %u version %u go over CLAN%s (%s)", prog_, vers_,
            token_ != 0 ? " to another host, by UDP" : "", marker_.c_str());
}

// The path to another host has ended with a call on it, of a stream. Its socket may live: over that
// the server says whether it has taken the call, and takes it no more. True: it has not, so the
// call may be made again.
bool Client::was_not_taken(std::uint64_t deadline) {
  LeaveArguments arguments{token_, xid_};
  LeaveResults results;
  const bool answered = ask(kLeave, as_xdrproc(clan_rpc_xdr_leave_arguments), &arguments,
                            as_xdrproc(clan_rpc_xdr_leave_results), &results,
                            std::min(deadline, monotonic_ns() + kAskMs * kMs));
  return answered && results.status == 0 && results.taken == 0;
}

}  // namespace clan::rpc
