// The four functions of libtirpc that this library stands before. Their names are in no version node: a node
// other than libtirpc's own would switch them off without a word.
#include <new>

#include <clan/export.h>

#include "client.h"
#include "server.h"

using clan::rpc::announce;
using clan::rpc::Client;
using clan::rpc::count;
using clan::rpc::counters;
using clan::rpc::disabled;
using clan::rpc::real;

namespace {

CLIENT* with_clan(CLIENT* stock, int fd, int type, const netbuf* server, rpcprog_t prog, rpcvers_t vers) {
  if (stock == nullptr || server == nullptr || server->buf == nullptr || disabled()) return stock;
  count(counters().handles);
  return Client::around(stock, fd, type, *server, prog, vers);
}

}  // namespace

extern "C" {

CLAN_EXPORT CLIENT* clnt_vc_create(int fd, const netbuf* server, const rpcprog_t prog, const rpcvers_t vers,
                                   u_int send_size, u_int receive_size) {
  CLIENT* stock = real().clnt_vc_create(fd, server, prog, vers, send_size, receive_size);
  return with_clan(stock, fd, SOCK_STREAM, server, prog, vers);
}

CLAN_EXPORT CLIENT* clnt_dg_create(int fd, const netbuf* server, const rpcprog_t prog, const rpcvers_t vers,
                                   u_int send_size, u_int receive_size) {
  CLIENT* stock = real().clnt_dg_create(fd, server, prog, vers, send_size, receive_size);
  return with_clan(stock, fd, SOCK_DGRAM, server, prog, vers);
}

CLAN_EXPORT SVCXPRT* svc_vc_create(const int fd, const u_int send_size, const u_int receive_size) {
  SVCXPRT* xprt = real().svc_vc_create(fd, send_size, receive_size);
  announce(xprt);
  return xprt;
}

CLAN_EXPORT SVCXPRT* svc_dg_create(const int fd, const u_int send_size, const u_int receive_size) {
  SVCXPRT* xprt = real().svc_dg_create(fd, send_size, receive_size);
  announce(xprt);
  return xprt;
}

}  // extern "C"
