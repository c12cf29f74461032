#include "client.h"

#include <clan/clock.h>
#include <clan/log.h>
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

enum clnt_stat op_call(CLIENT* handle, rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                       timeval timeout) {
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

// libtirpc's rule.
bool acceptable(const timeval& t) {
  return t.tv_sec >= -1 && t.tv_sec <= 100'000'000 && t.tv_usec >= -1 && t.tv_usec <= 1'000'000;
}

bool is_zero(const timeval& t) { return t.tv_sec == 0 && t.tv_usec == 0; }

std::uint64_t deadline_after(const timeval& t) {
  const std::int64_t us = std::int64_t{t.tv_sec} * 1'000'000 + t.tv_usec;
  return us < 0 ? kNoDeadline : monotonic_ns() + static_cast<std::uint64_t>(us) * 1000;
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

// What CLAN carries: libtirpc's own NONE, SYS and SHORT. The flavour alone does not tell: an RPCSEC_GSS handle says NONE
// until it has been marshalled first, and its bytes are not what its credential says.
bool is_carried(const AUTH& auth) {
  static const AuthOperations none = authnone_create()->ah_ops, sys = operations_of_sys();
  return carries_flavor(auth.ah_cred.oa_flavor) && (auth.ah_ops == none || auth.ah_ops == sys);
}

const void* this_thread() {
  static thread_local char mark;
  return &mark;
}

}  // namespace

timeval until(std::uint64_t deadline) {
  if (deadline == kNoDeadline) return {100'000'000, 0};
  const std::uint64_t now = monotonic_ns();
  const std::uint64_t us = deadline > now ? (deadline - now) / 1000 : 0;
  return {static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
}

// --- life --------------------------------------------------------------------------------------------

Client::Client(CLIENT* stock, int fd, bool datagram, rpcprog_t prog, rpcvers_t vers)
    : stock_(stock), fd_(fd), datagram_(datagram), generation_(generation()), prog_(prog), vers_(vers) {
  handle_.cl_auth = stock->cl_auth;
  handle_.cl_ops = &operations;
  handle_.cl_private = this;
  wait_ = datagram ? timeval{-1, -1} : timeval{0, 0};
  (void)CLNT_CONTROL(stock_, CLGET_XID, &xid_);
}

CLIENT* Client::around(CLIENT* stock, int fd, int socket_type, const netbuf& server, rpcprog_t prog,
                       rpcvers_t vers) {
  try {
    auto* client = new Client(stock, fd, socket_type == SOCK_DGRAM, prog, vers);
    client->set_server(server);
    return &client->handle_;
  } catch (const std::bad_alloc&) {
    return stock;
  }
}

void Client::set_server(const netbuf& server) {
  server_length_ = std::min<socklen_t>(server.len, sizeof server_);
  server_ = {};
  std::memcpy(&server_, server.buf, server_length_);
  marker_ = marker_name(datagram_ ? SOCK_DGRAM : SOCK_STREAM, reinterpret_cast<sockaddr*>(&server_));
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

// The network was the parent's. The socket is shared with it, as ever: over that the child finds its own way.
void Client::after_fork() {
  generation_ = generation();
  leave(State::kFresh);
  attempts_ = 0;
  new (&mutex_) std::mutex;  // another thread of the parent may have held it
}

void Client::leave(State next) {
  endpoint_.reset();
  known_.known = false;
  token_ = 0;
  again_at_ns_ = 0;
  state_ = next;
}

// Whether this call goes over CLAN; meets the server first if it has not been met.
bool Client::serves(bool wait, timeval timeout) {
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
  const std::uint64_t deadline = deadline_after(timeout);
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

// --- calls -------------------------------------------------------------------------------------------

enum clnt_stat Client::by_stock(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                                timeval timeout) {
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
  if (owner_.load(std::memory_order_relaxed) == this_thread()) {  // relaxed: only our own mark matters
    stock_->cl_auth = handle_.cl_auth;
    return CLNT_CALL(stock_, proc, xargs, args, xres, res, timeout);
  }
  if (generation_ != generation()) after_fork();
  std::lock_guard lock(mutex_);
  owner_.store(this_thread(), std::memory_order_relaxed);
  const bool zero = is_zero(timeout);
  if (!datagram_ && !wait_set_ && acceptable(timeout)) wait_ = timeout;
  const bool own = datagram_ ? wait_.tv_usec != -1 : wait_set_ && !zero;
  const timeval limit = own ? wait_ : timeout;
  const bool wait = !is_zero(limit);
  // Without a reply only what libtirpc calls batched: of others the program may read the reply by itself.
  const bool batched = zero && xres == nullptr && !datagram_;
  enum clnt_stat stat = RPC_SUCCESS;
  bool done = false;
  if ((wait || batched) && serves(wait, limit)) {
    const Call call{proc, xargs, args, xres, res, wait, wait ? deadline_after(limit) : kNoDeadline};
    const bool far = token_ != 0;  // what loses the path forgets it
    Outcome outcome = Outcome::kDone;
    int refreshes = 2;
    do {
      refresh_ = false;
      outcome = by_clan(call);
    } while (outcome == Outcome::kDone && refresh_ && refreshes-- > 0);
    done = outcome == Outcome::kDone || (outcome == Outcome::kLost && !datagram_);
    if (done) {
      count(counters().calls_clan);
      if (far) count(counters().calls_far);
      stat = error_.re_status;
    } else {
      timeout = wait ? until(call.deadline) : timeout;
      if (wait && is_zero(timeout)) timeout.tv_usec = 1000;
    }
  } else if (own) {
    timeout = limit;
  }
  if (!done) {
    stat = by_stock(proc, xargs, args, xres, res, timeout);
    stock_batched_ = !wait || (stock_batched_ && stat != RPC_SUCCESS);
  }
  owner_.store(nullptr, std::memory_order_relaxed);
  return stat;
}

bool Client::set_timeout(const timeval& timeout) {
  if (!acceptable(timeout)) return false;
  wait_ = timeout;
  wait_set_ = true;
  return true;
}

bool Client::control(u_int request, void* info) {
  if (generation_ != generation()) after_fork();
  const bool inside = owner_.load(std::memory_order_relaxed) == this_thread();  // relaxed: as in call()
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!inside) lock.lock();
  const auto value = [&] { return *static_cast<std::uint32_t*>(info); };
  if (info != nullptr) {
    switch (request) {
      case CLSET_TIMEOUT:
        return set_timeout(*static_cast<timeval*>(info));
      case CLGET_TIMEOUT:
        *static_cast<timeval*>(info) = wait_;
        return true;
      case CLGET_XID:
        *static_cast<std::uint32_t*>(info) = xid_;
        return true;
      case CLSET_XID:
        xid_ = datagram_ ? value() - 1 : value() + 1;
        xid_moved_ = true;
        return true;
      default:
        break;
    }
  }
  if (CLNT_CONTROL(stock_, request, info) == FALSE) return false;
  switch (request) {
    case CLSET_VERS:
      vers_ = value();
      break;
    case CLSET_PROG:
      prog_ = value();
      break;
    case CLSET_SVC_ADDR:
      set_server(*static_cast<netbuf*>(info));
      leave(State::kFresh);
      attempts_ = 0;
      break;
    case CLSET_ASYNC:  // the program sends and receives by halves
      if (value() != 0) leave(State::kStock);
      break;
    default:
      break;
  }
  return true;
}

}  // namespace clan::rpc
