// How clients and servers of libclanrpc meet and leave, for peers of the tests' own making.
#pragma once

#include "plugins/sunrpc/wire.h"

namespace clan::test {

inline bool xdr_both_words(XDR* xdrs, std::uint64_t* word) {
  auto high = static_cast<std::uint32_t>(*word >> 32), low = static_cast<std::uint32_t>(*word);
  const bool good = xdr_uint32_t(xdrs, &high) != FALSE && xdr_uint32_t(xdrs, &low) != FALSE;
  *word = std::uint64_t{high} << 32 | low;
  return good;
}
inline bool_t xdr_meeting(XDR* xdrs, rpc::MeetArguments* a) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &a->abi) != FALSE &&
                             xdr_uint32_t(xdrs, &a->uid) != FALSE);
}
inline bool_t xdr_met(XDR* xdrs, rpc::MeetResults* r) {
  return static_cast<bool_t>(
      xdr_uint32_t(xdrs, &r->status) != FALSE && xdr_both_words(xdrs, &r->address.node.value) &&
      xdr_uint32_t(xdrs, &r->address.endpoint) != FALSE &&
      xdr_uint32_t(xdrs, &r->address.uid) != FALSE && xdr_both_words(xdrs, &r->token));
}
inline bool_t xdr_leaving(XDR* xdrs, rpc::LeaveArguments* a) {
  return static_cast<bool_t>(xdr_both_words(xdrs, &a->token) &&
                             xdr_uint32_t(xdrs, &a->xid) != FALSE);
}
inline bool_t xdr_left(XDR* xdrs, rpc::LeaveResults* r) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &r->status) != FALSE &&
                             xdr_uint32_t(xdrs, &r->taken) != FALSE);
}

}  // namespace clan::test
