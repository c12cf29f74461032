// How clients find out that a server has this library: a marker beside its socket, and a program of our own that
// libtirpc dispatches like any other (wire.h).
#include <clan/log.h>

#include <mutex>
#include <new>

#include "server.h"

namespace clan::rpc {
namespace {

extern "C" void clan_rpc_dispatch(svc_req* request, SVCXPRT* xprt) {
  MeetArguments arguments;
  if (request->rq_proc != kMeet) {
    if (request->rq_proc == NULLPROC) {
      (void)svc_sendreply(xprt, no_data(), nullptr);
    } else {
      svcerr_noproc(xprt);
    }
    return;
  }
  if (svc_getargs(xprt, as_xdrproc(clan_rpc_xdr_meet_arguments), &arguments) == FALSE) {
    svcerr_decode(xprt);
    return;
  }
  MeetResults results;
  results.status = ENOMEM;
  try {
    if (Hub* hub = Hub::get()) results = hub->meet(xprt, arguments);
  } catch (const std::bad_alloc&) {
    results.status = ENOMEM;
  }
  (void)svc_sendreply(xprt, as_xdrproc(clan_rpc_xdr_meet_results), &results);
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
  const std::string name = marker_name(type, reinterpret_cast<sockaddr*>(&address));
  if (name.empty()) return;
  if (svc_reg(xprt, kProgram, kVersion, clan_rpc_dispatch, nullptr) == FALSE) return;
  (void)bind_marker(name);
  CLAN_INFO("remote calls may come over CLAN (%s)", name.c_str());
}

}  // namespace clan::rpc
