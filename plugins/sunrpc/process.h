// What there is one of in a process: the real functions of libtirpc, the settings, the Context, the
// counters.
#pragma once

#include <clan/context.h>
#include <clan/face/rpc_face.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "rpc.h"

namespace clan::rpc {

/// The functions that this library replaces.
struct Real {
  decltype(&::clnt_vc_create) clnt_vc_create = nullptr;
  decltype(&::clnt_dg_create) clnt_dg_create = nullptr;
  decltype(&::svc_vc_create) svc_vc_create = nullptr;
  decltype(&::svc_dg_create) svc_dg_create = nullptr;
  /// null in a program with libclanrpc.a that is not linked with --wrap=xprt_register
  decltype(&::xprt_register) xprt_register = nullptr;
  decltype(&::xdr_bytes) xdr_bytes = nullptr;  ///< null in libclanrpc.a, which leaves it alone
};
const Real& real();

/// How a call travels; the three stages of the paper. Read once from CLAN_RPC_STAGE, for
/// measurements.
enum class Stage { kDirect, kReduced, kOptimized };
Stage stage();

/// CLAN_DISABLE, or a setting that cannot be understood: everything stays with libtirpc.
bool disabled();

/// CLAN_KEY or CLAN_NETWORK_MODE: calls may go to other hosts by the UDP link.
bool calls_other_hosts();

/// The process's Context, made when first asked for; null when there can be none now.
Context* context();

/// The calling thread, by an address of its own.
inline const void* this_thread() {
  static thread_local char mark;
  return &mark;
}

/// Changes with every fork in the child: what was made before belongs to somebody else.
std::uint32_t generation();

/// Counters of this process, in a page that `clan stat` reads. Never null.
RpcPage& counters();
inline void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

/// A name in the abstract namespace by which a server on this address says that it may have this
/// library. It is a hint: nothing depends on its truth. Empty: this kind of address has none.
std::string marker_name(int socket_type, const sockaddr* address);
/// Binds it; the descriptor stays until exec. -1: somebody else has, or it cannot be had.
int bind_marker(const std::string& name);
bool marker_is_there(const std::string& name);

/// The address is one of this host, as the kernel routes.
bool is_local(int fd, int socket_type, const sockaddr* address, socklen_t length);

/// A number that nobody guesses.
std::uint64_t random_word();

}  // namespace clan::rpc
