// Peers: both ends ask, at any time, and neither serves. The end with the lesser address serves all
// the same, so that both agree without a message; two ends of the same address race for it.
#include <chrono>
#include <thread>

#include "connect.h"

namespace clan::via {

struct Vi::Peering {
  NetAddress local, remote;
  std::uint64_t deadline_ns = 0;
  std::string service;
  std::optional<Listener> listener;  ///< of the end that serves
  std::optional<OwnService> waits;
  std::optional<Asker> guest;  ///< that has not said yet which end it is

  VIP_RETURN step(Vi& vi, VIP_VI_ATTRIBUTES* peer) {
    return listener ? serve(vi, peer) : ask_again(vi, peer);
  }

 private:
  VIP_RETURN serve(Vi& vi, VIP_VI_ATTRIBUTES* peer) {
    if (!guest) {
      auto accepted = listener->try_accept();
      if (!accepted) return VIP_NOT_DONE;
      guest.emplace(std::move(*accepted));
    }
    Hello hello;
    const Status s = guest->read_hello(&hello);
    if (!s && s.error().err == EAGAIN) return VIP_NOT_DONE;
    if (!s || !is_from_remote(hello)) {
      guest.reset();
      return VIP_NOT_DONE;
    }
    const VIP_RETURN rc = mismatch(vi.wire_attributes(), hello.attributes);
    if (rc != VIP_SUCCESS) {
      say_no(guest->stream, vi.wire_attributes());
      return rc;
    }
    if (!accept(vi, std::move(*guest), hello.attributes)) {
      guest.reset();
      return VIP_NOT_DONE;
    }
    if (peer != nullptr) *peer = attributes_of(hello.attributes);
    return VIP_SUCCESS;
  }

  bool is_from_remote(const Hello& hello) const {
    return hello.discriminator_bytes == remote.discriminator_bytes &&
           std::memcmp(hello.discriminator, remote.discriminator.data(),
                       remote.discriminator_bytes) == 0;
  }

  VIP_RETURN ask_again(Vi& vi, VIP_VI_ATTRIBUTES* peer) {
    if (!vi.stream) {
      auto reached =
          reach(remote.host, service, std::min<std::int64_t>(1000, ms_until(deadline_ns)));
      if (!reached || !ask(vi, std::move(*reached), local)) return VIP_NOT_DONE;
    }
    const VIP_RETURN rc = take_answer(vi, peer);
    return rc == VIP_NO_MATCH ? VIP_NOT_DONE : rc;
  }
};

bool Vi::abandon_peering() {
  if (!peering) return false;
  peering.reset();
  close_stream();
  state = VIP_STATE_IDLE;
  return true;
}

namespace {

// One step; where it is the last one the VI is connected, or idle.
VIP_RETURN step(Vi& vi, VIP_VI_ATTRIBUTES* theirs) {
  if (!vi.peering) return VIP_INVALID_STATE;
  VIP_RETURN rc = vi.peering->step(vi, theirs);
  if (rc == VIP_NOT_DONE && monotonic_ns() >= vi.peering->deadline_ns) rc = VIP_TIMEOUT;
  if (rc == VIP_SUCCESS) {
    vi.peering.reset();
  } else if (rc != VIP_NOT_DONE) {
    (void)vi.abandon_peering();
  }
  return rc;
}

int compare(const NetAddress& a, const NetAddress& b) {
  if (a.host != b.host) return a.host < b.host ? -1 : 1;
  if (a.discriminator_bytes != b.discriminator_bytes)
    return a.discriminator_bytes < b.discriminator_bytes ? -1 : 1;
  return std::memcmp(a.discriminator.data(), b.discriminator.data(), a.discriminator_bytes);
}

}  // namespace
}  // namespace clan::via

using namespace clan::via;

extern "C" CLAN_EXPORT VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE handle,
                                                        VIP_NET_ADDRESS* local,
                                                        VIP_NET_ADDRESS* remote,
                                                        VIP_ULONG timeout_ms) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  auto peering = std::make_shared<Vi::Peering>();
  if (!read_address(local, &peering->local) || !read_address(remote, &peering->remote) ||
      timeout_ms == 0) {
    return VIP_INVALID_PARAMETER;
  }
  const Held held(*vi);
  if (vi->state != VIP_STATE_IDLE) return VIP_INVALID_STATE;
  if (!is_own(peering->remote.host) && !provider()->network) return VIP_NOT_REACHABLE;
  peering->deadline_ns = deadline_of(timeout_ms);
  const int order = compare(peering->local, peering->remote);
  peering->service = order <= 0 ? service_of_pair(peering->local, peering->remote)
                                : service_of_pair(peering->remote, peering->local);
  if (order <= 0) {
    auto listener = clan::Listener::create(provider()->context, peering->service);
    if (listener) {
      peering->waits.emplace(peering->service, listener->address());
      peering->listener = std::move(*listener);
    } else if (order < 0) {
      return VIP_ERROR_RESOURCE;
    }
  }
  vi->state = VIP_STATE_CONNECT_PENDING;
  vi->peering = std::move(peering);
  return VIP_SUCCESS;
}

extern "C" CLAN_EXPORT VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE handle,
                                                     VIP_VI_ATTRIBUTES* theirs) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  const Held held(*vi);
  return step(*vi, theirs);
}

extern "C" CLAN_EXPORT VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE handle,
                                                     VIP_VI_ATTRIBUTES* theirs) {
  for (;;) {
    const VIP_RETURN rc = VipConnectPeerDone(handle, theirs);
    if (rc != VIP_NOT_DONE) return rc;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
