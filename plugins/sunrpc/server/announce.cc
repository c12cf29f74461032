// How clients find out that a server has this library: a marker beside its socket, and a program of
// our own that libtirpc dispatches like any other (wire.h).
#include <clan/detail/log.h>
#include <unistd.h>

#include <memory>
#include <new>

#include "server/server.h"

namespace clan::rpc {
namespace {

// Arguments, then what the hub says to them. Without memory or a hub: ENOMEM.
template <typename Arguments, typename Results>
void answer(SVCXPRT* xprt, bool_t (*xdr_arguments)(XDR*, Arguments*),
            bool_t (*xdr_results)(XDR*, Results*),
            Results (Hub::*ask)(SVCXPRT*, const Arguments&)) {
  Arguments arguments;
  if (svc_getargs(xprt, as_xdrproc(xdr_arguments), &arguments) == FALSE) {
    svcerr_decode(xprt);
    return;
  }
  Results results;
  results.status = ENOMEM;
  try {
    if (Hub* hub = Hub::get()) results = (hub->*ask)(xprt, arguments);
  } catch (const std::bad_alloc&) {
    results.status = ENOMEM;
  }
  (void)svc_sendreply(xprt, as_xdrproc(xdr_results), &results);
}

extern "C" void clan_rpc_dispatch(svc_req* request, SVCXPRT* xprt) {
  switch (request->rq_proc) {
    case NULLPROC: (void)svc_sendreply(xprt, no_data(), nullptr); return;
    case kMeet:
      return answer(xprt, clan_rpc_xdr_meet_arguments, clan_rpc_xdr_meet_results, &Hub::meet);
    case kMeetFar:
      return answer(xprt, clan_rpc_xdr_meet_arguments, clan_rpc_xdr_far_results, &Hub::meet_far);
    case kLeave:
      return answer(xprt, clan_rpc_xdr_leave_arguments, clan_rpc_xdr_leave_results, &Hub::leave);
    default: svcerr_noproc(xprt);
  }
}

/// A transport whose marker goes with it.
struct Announced {
  TransportOps operations;  // first: found again from xprt->xp_ops
  const TransportOps* stock;
  int marker;
};

void destroy_announced(SVCXPRT* xprt) {
  auto* const announced = reinterpret_cast<const Announced*>(xprt->xp_ops);
  close(announced->marker);
  xprt->xp_ops = const_cast<TransportOps*>(announced->stock);
  delete announced;
  SVC_DESTROY(xprt);
}

}  // namespace

void announce(SVCXPRT* xprt) {
  if (xprt == nullptr || disabled()) return;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  int type = 0;
  socklen_t type_length = sizeof type;
  if (getsockname(xprt->xp_fd, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getsockopt(xprt->xp_fd, SOL_SOCKET, SO_TYPE, &type, &type_length) != 0) {
    return;
  }
  try {
    const std::string name = marker_name(type, reinterpret_cast<sockaddr*>(&address));
    if (name.empty()) return;
    if (svc_reg(xprt, kProgram, kVersion, clan_rpc_dispatch, nullptr) == FALSE) return;
    auto announced = std::make_unique<Announced>();
    announced->marker = bind_marker(name);
    if (announced->marker >= 0) {
      announced->operations = *xprt->xp_ops;
      announced->operations.xp_destroy = destroy_announced;
      announced->stock = xprt->xp_ops;
      xprt->xp_ops = &announced.release()->operations;
    }
    CLAN_INFO("remote calls may come over CLAN (%s)", name.c_str());
  } catch (const std::bad_alloc&) {  // clients go by the socket
  }
}

}  // namespace clan::rpc
