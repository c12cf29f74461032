// The functions of libtirpc that this library replaces: the four that make transports, the one that
// registers them, and xdr_bytes. Their names are in no version node: a node other than libtirpc's
// own would switch them off without a word.
//
// In libclanrpc.a they have the names that the linker gives to --wrap, which its user has to ask
// for: with libtirpc.a there is no second library in which the real ones could be found at run
// time.
#include <clan/detail/export.h>

#include <cstdlib>
#include <new>

#include "client/client.h"
#include "fragments.h"
#include "server/server.h"

using clan::rpc::announce;
using clan::rpc::Client;
using clan::rpc::count;
using clan::rpc::counters;
using clan::rpc::disabled;
using clan::rpc::Hub;
using clan::rpc::real;

#ifdef CLAN_RPC_WRAPPED
#define CLAN_RPC_STANDS_BEFORE(function) __wrap_##function
#else
#define CLAN_RPC_STANDS_BEFORE(function) function
#endif

namespace {

CLIENT* with_clan(CLIENT* stock, int fd, int type, const netbuf* server, rpcprog_t prog,
                  rpcvers_t vers) {
  if (stock == nullptr || server == nullptr || server->buf == nullptr || disabled()) return stock;
  count(counters().handles);
  return Client::around(stock, fd, type, *server, prog, vers);
}

}  // namespace

extern "C" {

CLAN_EXPORT CLIENT* CLAN_RPC_STANDS_BEFORE(clnt_vc_create)(int fd, const netbuf* server,
                                                           const rpcprog_t prog,
                                                           const rpcvers_t vers, u_int send_size,
                                                           u_int receive_size) {
  CLIENT* stock = real().clnt_vc_create(fd, server, prog, vers, send_size, receive_size);
  return with_clan(stock, fd, SOCK_STREAM, server, prog, vers);
}

CLAN_EXPORT CLIENT* CLAN_RPC_STANDS_BEFORE(clnt_dg_create)(int fd, const netbuf* server,
                                                           const rpcprog_t prog,
                                                           const rpcvers_t vers, u_int send_size,
                                                           u_int receive_size) {
  CLIENT* stock = real().clnt_dg_create(fd, server, prog, vers, send_size, receive_size);
  return with_clan(stock, fd, SOCK_DGRAM, server, prog, vers);
}

CLAN_EXPORT SVCXPRT* CLAN_RPC_STANDS_BEFORE(svc_vc_create)(const int fd, const u_int send_size,
                                                           const u_int receive_size) {
  SVCXPRT* xprt = real().svc_vc_create(fd, send_size, receive_size);
  announce(xprt);
  return xprt;
}

CLAN_EXPORT SVCXPRT* CLAN_RPC_STANDS_BEFORE(svc_dg_create)(const int fd, const u_int send_size,
                                                           const u_int receive_size) {
  SVCXPRT* xprt = real().svc_dg_create(fd, send_size, receive_size);
  announce(xprt);
  return xprt;
}

CLAN_EXPORT void CLAN_RPC_STANDS_BEFORE(xprt_register)(SVCXPRT* xprt) {
  Hub* const hub = Hub::of(xprt);  // then it may be another thread's, and gone
  real().xprt_register(xprt);
  if (hub != nullptr) hub->registered();
}

#ifndef CLAN_RPC_WRAPPED
// libtirpc fills the memory of a byte string with zeroes before it decodes into it: of a megabyte's
// call that is a fifth of the time. All of the rest is as there, also that what could not be
// decoded is freed again.
CLAN_EXPORT bool_t xdr_bytes(XDR* xdrs, char** bytes, u_int* size, u_int most) {
  if (xdrs->x_op != XDR_DECODE || *bytes != nullptr || !clan::rpc::InMessage::decodes(xdrs)) {
    return real().xdr_bytes(xdrs, bytes, size, most);
  }
  if (xdr_u_int(xdrs, size) == FALSE || *size > most) return FALSE;
  if (*size == 0) return TRUE;
  *bytes = static_cast<char*>(std::malloc(*size));
  if (*bytes == nullptr) return FALSE;
  if (xdr_opaque(xdrs, *bytes, *size) != FALSE) return TRUE;
  std::free(*bytes);
  *bytes = nullptr;
  return FALSE;
}
#endif

}  // extern "C"
