#include "wire.h"

#include <cstdio>

namespace clan::rpc {

std::string far_service(std::uint64_t word) {
  char text[32];
  std::snprintf(text, sizeof text, "rpc.%016llx", static_cast<unsigned long long>(word));
  return text;
}

bool take_caller(std::span<const std::byte>* bytes, CallerState* caller) {
  Caller head;
  if (!take_front(bytes, &head)) return false;
  if (!carries_flavor(head.flavor) || head.length > MAX_AUTH_BYTES ||
      bytes->size() < padded(head.length))
    return false;
  caller->set(head, reinterpret_cast<const char*>(bytes->data()));
  *bytes = bytes->subspan(padded(head.length));
  return true;
}

namespace {
bool_t xdr_word64(XDR* xdrs, std::uint64_t* word) {
  std::uint32_t high = static_cast<std::uint32_t>(*word >> 32),
                low = static_cast<std::uint32_t>(*word);
  if (xdr_uint32_t(xdrs, &high) == FALSE || xdr_uint32_t(xdrs, &low) == FALSE) return FALSE;
  *word = std::uint64_t{high} << 32 | low;
  return TRUE;
}
}  // namespace

bool_t clan_rpc_xdr_meet_arguments(XDR* xdrs, MeetArguments* arguments) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &arguments->abi) != FALSE &&
                             xdr_uint32_t(xdrs, &arguments->uid) != FALSE);
}

bool_t clan_rpc_xdr_meet_results(XDR* xdrs, MeetResults* results) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &results->status) != FALSE &&
                             xdr_word64(xdrs, &results->address.node.value) != FALSE &&
                             xdr_uint32_t(xdrs, &results->address.endpoint) != FALSE &&
                             xdr_uint32_t(xdrs, &results->address.uid) != FALSE &&
                             xdr_word64(xdrs, &results->token) != FALSE);
}

bool_t clan_rpc_xdr_far_results(XDR* xdrs, FarResults* results) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &results->status) != FALSE &&
                             xdr_uint32_t(xdrs, &results->port) != FALSE &&
                             xdr_word64(xdrs, &results->service) != FALSE &&
                             xdr_word64(xdrs, &results->token) != FALSE);
}

bool_t clan_rpc_xdr_leave_arguments(XDR* xdrs, LeaveArguments* arguments) {
  return static_cast<bool_t>(xdr_word64(xdrs, &arguments->token) != FALSE &&
                             xdr_uint32_t(xdrs, &arguments->xid) != FALSE);
}

bool_t clan_rpc_xdr_leave_results(XDR* xdrs, LeaveResults* results) {
  return static_cast<bool_t>(xdr_uint32_t(xdrs, &results->status) != FALSE &&
                             xdr_uint32_t(xdrs, &results->taken) != FALSE);
}

}  // namespace clan::rpc
