#include "client/client.h"

#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace clan::rpc {
namespace {

Client& of(CLIENT* handle) { return *static_cast<Client*>(handle->cl_private); }

enum clnt_stat op_call(CLIENT* handle, rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres,
                       void* res, timeval timeout) {
  return of(handle).call(proc, xargs, args, xres, res, timeout);
}
void op_abort(CLIENT*) {}
void op_geterr(CLIENT* handle, rpc_err* error) { of(handle).error(error); }
bool_t op_freeres(CLIENT*, xdrproc_t xres, void* res) {
  XDR xdrs;
  freeing_xdr(&xdrs);
  return (*xres)(&xdrs, res);
}
void op_destroy(CLIENT* handle) { of(handle).destroy(); }
bool_t op_control(CLIENT* handle, u_int request, void* info) {
  return static_cast<bool_t>(of(handle).control(request, info));
}
CLIENT::clnt_ops operations = {op_call, op_abort, op_geterr, op_freeres, op_destroy, op_control};

// libtirpc's rule: -1 is for datagrams alone.
bool acceptable(const timeval& t, bool datagram) {
  const long least = datagram ? -1 : 0;
  return t.tv_sec >= least && t.tv_sec <= 100'000'000 && t.tv_usec >= least &&
         t.tv_usec <= 1'000'000;
}

bool is_zero(const timeval& t) { return t.tv_sec == 0 && t.tv_usec == 0; }

/// With a time below zero libtirpc waits for nothing.
std::int64_t microseconds(const timeval& t) {
  constexpr std::int64_t kMostS = 1'000'000'000, kMostUs = kMostS * 1'000'000;
  return std::clamp<std::int64_t>(t.tv_sec, -1, kMostS) * 1'000'000 +
         std::clamp<std::int64_t>(t.tv_usec, -1, kMostUs);
}

using AuthOperations = decltype(AUTH::ah_ops);

AuthOperations operations_of_sys() {
  char machine[] = "";
  AUTH* const auth = authunix_create(machine, 0, 0, 0, nullptr);
  if (auth == nullptr) return nullptr;
  const AuthOperations found = auth->ah_ops;
  auth_destroy(auth);
  return found;
}

// What CLAN carries: libtirpc's own NONE, SYS and SHORT. The flavour alone does not tell: an
// RPCSEC_GSS handle says NONE until it has been marshalled first, and its bytes are not what its
// credential says.
bool is_carried(const AUTH& auth) {
  static const AuthOperations none = authnone_create()->ah_ops, sys = operations_of_sys();
  return carries_flavor(auth.ah_cred.oa_flavor) && (auth.ah_ops == none || auth.ah_ops == sys);
}

// libtirpc's, which counts milliseconds: of less than one it makes none, and sends without end.
std::uint64_t retry_ns(const timeval& t) {
  const auto ms = std::clamp<std::int64_t>(t.tv_sec, 0, 100'000'000) * 1000 +
                  std::clamp<std::int64_t>(t.tv_usec, 0, 1'000'000) / 1000;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(ms), 1) * kMs;
}

/// The calling thread is in call(), also when it is cancelled there.
class Inside {
 public:
  explicit Inside(std::atomic<const void*>& owner) : owner_(owner) {
    owner_.store(this_thread(), std::memory_order_relaxed);  // relaxed: see call()
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { owner_.store(nullptr, std::memory_order_relaxed); }

 private:
  std::atomic<const void*>& owner_;
};

}  // namespace

std::uint64_t left_ns(std::uint64_t deadline) {
  if (deadline == kNoDeadline) return kNoDeadline;
  const std::uint64_t now = monotonic_ns();
  return deadline > now ? deadline - now : 0;
}

std::int64_t left_ms(std::uint64_t deadline) {
  const std::uint64_t ns = left_ns(deadline);
  return ns == kNoDeadline ? -1 : static_cast<std::int64_t>((ns + kMs - 1) / kMs);
}

timeval until(std::uint64_t deadline) {
  if (deadline == kNoDeadline) return {100'000'000, 0};
  const std::uint64_t us = left_ns(deadline) / 1000;
  return {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
}

// --- life ----------------------------------------------------------------------------------------

Client::Client(CLIENT* stock, int fd, bool datagram, rpcprog_t prog, rpcvers_t vers)
    : stock_(stock),
      fd_(fd),
      datagram_(datagram),
      socket_(fd),
      generation_(generation()),
      prog_(prog),
      vers_(vers) {
  handle_.cl_auth = stock->cl_auth;
  handle_.cl_ops = &operations;
  handle_.cl_private = this;
  wait_ = datagram ? timeval{-1, -1} : timeval{0, 0};
  (void)CLNT_CONTROL(stock_, CLGET_XID, &xid_);
  timeval retry{};
  if (datagram && CLNT_CONTROL(stock_, CLGET_RETRY_TIMEOUT, &retry) != FALSE)
    retry_ns_ = retry_ns(retry);
}

CLIENT* Client::around(CLIENT* stock, int fd, int socket_type, const netbuf& server, rpcprog_t prog,
                       rpcvers_t vers) {
  try {
    std::unique_ptr<Client> client(new Client(stock, fd, socket_type == SOCK_DGRAM, prog, vers));
    client->set_server(server);
    return &client.release()->handle_;
  } catch (const std::bad_alloc&) {
    return stock;
  }
}

void Client::set_server(const netbuf& server) {
  server_length_ = std::min<socklen_t>(server.len, sizeof server_);
  server_ = {};
  std::memcpy(&server_, server.buf, server_length_);
  marker_ =
      marker_name(datagram_ ? SOCK_DGRAM : SOCK_STREAM, reinterpret_cast<sockaddr*>(&server_));
}

void Client::destroy() {
  if (generation_ == generation()) {
    endpoint_.reset();
  } else if (endpoint_) {
    after_fork();
  }
  CLNT_DESTROY(stock_);
  // libtirpc has given the handle names of its own, unless they are literals.
  if (handle_.cl_netid != nullptr && handle_.cl_netid[0] != 0) std::free(handle_.cl_netid);
  if (handle_.cl_tp != nullptr && handle_.cl_tp[0] != 0) std::free(handle_.cl_tp);
  delete this;
}

// The network was the parent's. The socket is shared with it, as ever: over that the child finds
// its own way.
void Client::after_fork() {
  generation_ = generation();
  leave(State::kFresh);
  attempts_ = 0;
  new (&mutex_) std::mutex;  // another thread of the parent may have held it
}

void Client::leave(State next) {
  endpoint_.reset();
  known_.known = false;
  nonsense_ = false;
  unheard_ = false;
  timeouts_ = 0;
  token_ = 0;
  again_at_ns_ = 0;
  state_ = next;
}

// Whether this call goes over CLAN; meets the server first if it has not been met.
bool Client::serves(bool wait, std::uint64_t deadline) {
  if (stock_batched_) return false;
  if (state_ == State::kStock) {
    if (again_at_ns_ == 0 || monotonic_ns() < again_at_ns_) return false;
    again_at_ns_ = 0;
    state_ = State::kFresh;
  }
  if (!is_carried(*handle_.cl_auth)) return false;
  if (state_ == State::kMet) [[likely]]
    return true;
  if (!wait) return false;
  if (state_ == State::kFresh) meet(deadline);
  if (state_ == State::kOffered) {
    if (waited_) {
      look_for_welcome();
    } else {
      await_welcome(deadline);
    }
  }
  return state_ == State::kMet;
}

// Without memory a call goes by the socket, as all later ones of the handle do.
bool Client::serves_or_not(bool wait, std::uint64_t deadline) {
  try {
    return serves(wait, deadline);
  } catch (const std::bad_alloc&) {
    leave(State::kStock);
    return false;
  }
}

// Programs in C call us: none of our exceptions gets to them. That by which a thread is cancelled
// does, and whatever the arguments' routine throws.
Client::Outcome Client::attempt(const Call& call) {
  try {
    return by_clan(call);
  } catch (const std::bad_alloc&) {
    leave(State::kStock);
    error_.re_status = RPC_SYSTEMERROR;
    error_.re_errno = ENOMEM;
    return Outcome::kDone;
  }
}

// --- calls ---------------------------------------------------------------------------------------

enum clnt_stat Client::by_stock(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres,
                                void* res, timeval timeout) {
  if (std::exchange(xid_moved_, false)) {
    std::uint32_t next = datagram_ ? xid_ + 1 : xid_ - 1;
    (void)CLNT_CONTROL(stock_, CLSET_XID, &next);
  }
  stock_->cl_auth = handle_.cl_auth;
  const enum clnt_stat stat = CLNT_CALL(stock_, proc, xargs, args, xres, res, timeout);
  CLNT_GETERR(stock_, &error_);
  error_.re_status = stat;
  (void)CLNT_CONTROL(stock_, CLGET_XID, &xid_);
  count(counters().calls_stock);
  return stat;
}

enum clnt_stat Client::call(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                            timeval timeout) {
  if (owner_.load(std::memory_order_relaxed) ==
      this_thread()) {  // relaxed: only our own mark matters
    if (socket_.in_the_middle() && !is_zero(timeout)) return RPC_TIMEDOUT;  // it would read there
    stock_->cl_auth = handle_.cl_auth;
    return CLNT_CALL(stock_, proc, xargs, args, xres, res, timeout);
  }
  if (generation_ != generation()) after_fork();
  std::lock_guard lock(mutex_);
  const Inside inside(owner_);
  const bool zero = is_zero(timeout);
  // One that a stream does not accept leaves that of the call before in force.
  const bool accepted = acceptable(timeout, datagram_);
  if (!datagram_ && !wait_set_ && accepted) wait_ = timeout;
  const bool own = datagram_ ? wait_.tv_usec != -1 : (wait_set_ || !accepted) && !zero;
  const timeval limit = own ? wait_ : timeout;
  const std::int64_t limit_us = microseconds(limit);
  const bool wait = limit_us > 0;
  // Without a reply only what libtirpc calls batched: of others the program may read the reply by
  // itself.
  const bool batched = zero && xres == nullptr && !datagram_;
  const std::uint64_t deadline =
      wait ? monotonic_ns() + static_cast<std::uint64_t>(limit_us) * 1000 : kNoDeadline;
  enum clnt_stat stat = RPC_SUCCESS;
  bool done = false;
  sent_.size = 0;
  if (wait || batched) {
    const Uncancelled uncancelled(&cancel_state_);
    done =
        serves_or_not(wait, deadline) && attempts({proc, xargs, args, xres, res, wait, deadline});
    if (done) stat = error_.re_status;
  }
  if (!done) {
    if (sent_.size > 0) {  // over CLAN, and lost
      xargs = as_xdrproc(clan_rpc_xdr_kept);
      args = this;
    }
    if (own) timeout = limit;
    if (deadline != kNoDeadline) {  // what is left of it
      int state = 0;
      const Uncancelled uncancelled(&state);
      if (!is_at_a_record(deadline, state)) {
        error_ = {};
        return error_.re_status = RPC_TIMEDOUT;
      }
      timeout = until(deadline);
      if (is_zero(timeout)) timeout.tv_usec = 1000;
    }
    stat = by_stock(proc, xargs, args, xres, res, timeout);
    stock_batched_ = is_zero(limit) || (stock_batched_ && stat != RPC_SUCCESS);
  }
  return stat;
}

// Over CLAN, again where the credential has been refused and refreshed. False: it is to be made by
// the socket.
bool Client::attempts(const Call& call) {
  const bool far = token_ != 0;  // what loses the path forgets it
  Outcome outcome = Outcome::kDone;
  int refreshes = 2;
  do {
    refresh_ = false;
    outcome = attempt(call);
  } while (outcome == Outcome::kDone && refresh_ && refreshes-- > 0);
  if (outcome != Outcome::kDone && (outcome != Outcome::kLost || datagram_)) return false;
  count(counters().calls_clan);
  if (far) count(counters().calls_far);
  return true;
}

extern "C" bool_t clan_rpc_xdr_kept(XDR* xdrs, void* client) {
  return static_cast<bool_t>(static_cast<Client*>(client)->put_kept(xdrs));
}

bool Client::set_timeout(const timeval& timeout) {
  if (!acceptable(timeout, datagram_)) return false;
  wait_ = timeout;
  wait_set_ = true;
  return true;
}

bool Client::control(u_int request, void* info) {
  if (generation_ != generation()) after_fork();
  const bool inside =
      owner_.load(std::memory_order_relaxed) == this_thread();  // relaxed: as in call()
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!inside) lock.lock();
  const auto value = [&] { return *static_cast<std::uint32_t*>(info); };
  if (info != nullptr) {
    switch (request) {
      case CLSET_TIMEOUT: return set_timeout(*static_cast<timeval*>(info));
      case CLGET_TIMEOUT: *static_cast<timeval*>(info) = wait_; return true;
      case CLGET_XID: *static_cast<std::uint32_t*>(info) = xid_; return true;
      case CLSET_XID:
        xid_ = datagram_ ? value() - 1 : value() + 1;
        xid_moved_ = true;
        return true;
      default: break;
    }
  }
  if (CLNT_CONTROL(stock_, request, info) == FALSE) return false;
  switch (request) {
    case CLSET_VERS: vers_ = value(); break;
    case CLSET_PROG: prog_ = value(); break;
    case CLSET_RETRY_TIMEOUT:
      if (datagram_) retry_ns_ = retry_ns(*static_cast<timeval*>(info));
      break;
    case CLSET_SVC_ADDR:
      set_server(*static_cast<netbuf*>(info));
      leave(State::kFresh);
      attempts_ = 0;
      break;
    case CLSET_ASYNC:  // the program sends and receives by halves
      if (value() != 0) leave(State::kStock);
      break;
    default: break;
  }
  return true;
}

}  // namespace clan::rpc
