// libtirpc's own headers, and nothing of them that this library would have to define.
#pragma once

#include <rpc/rpc.h>
// after rpc.h, which they need
#include <rpc/svc_auth.h>
#include <rpc/svc_mt.h>

namespace clan::rpc {

using TransportOps = struct __rpc_svcxprt::xp_ops;
using TransportOps2 = struct __rpc_svcxprt::xp_ops2;

/// A routine that encodes and decodes, as libtirpc passes them about: its type says nothing of its
/// arguments.
template <typename Function>
xdrproc_t as_xdrproc(Function* function) {
  return reinterpret_cast<xdrproc_t>(reinterpret_cast<void (*)()>(function));
}
inline xdrproc_t no_data() { return as_xdrproc(xdr_void); }

}  // namespace clan::rpc
