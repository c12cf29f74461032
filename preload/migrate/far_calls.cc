// What the carrier's threads do to sockets of the program: as any thread that looks at them.
#include <cstring>

#include "clan/socket_face.h"
#include "clan/words.h"
#include "far/bell.h"
#include "far/carrier.h"
#include "migrate/answer.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "stream/aborted.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

// The socket, and a descriptor of it, for as long as it lives. The carrier lets go of it before it
// is anything else's.
template <typename Do>
bool with(void* socket, Do&& what) {
  auto& s = *static_cast<Socket*>(socket);
  const Undisturbed undisturbed;
  KeepErrno keep;
  const int fd = some_descriptor_of(s);
  if (fd < 0) return true;
  const Held held = hold(fd);
  return held.get() != &s || what(fd, s);
}

void ring(void* socket) { ring_here(*static_cast<Socket*>(socket)); }

bool may_switch(void* socket) {
  return with(socket, [](int fd, Socket& s) {
    constexpr std::uint64_t kDecided = socket_face::kGone | socket_face::kLeaving;
    return !s.shared() || ((state_of(s.mine()) | state_of(s.theirs())) & kDecided) != 0 ||
           switch_sending(fd, s);
  });
}

void park(void* socket) {
  (void)with(socket, [](int fd, Socket& s) {
    if (!park_byte(fd)) {
      break_off(fd, s, "the other host cannot be waited for by TCP");
    }
    // PAIR preload.parked: what is sent by TCP after this lies behind that byte
    words::publish(s.far_parked, true);
    return true;
  });
}

void comes_back(void* socket) { end_far_bells(*static_cast<Socket*>(socket)); }

void answer(void* socket) {
  (void)with(socket, [](int fd, Socket& s) {
    if (s.shared() && is_to_go(s)) (void)answer_leaving(fd, s);
    return true;
  });
}

void lost(void* socket) {
  (void)with(socket, [](int fd, Socket& s) {
    break_off(fd, s, "the way to the other host is gone, and bytes with it");
    return true;
  });
}

}  // namespace

constinit CarrierCalls carrier_calls{.ring = ring,
                                     .may_switch = may_switch,
                                     .park = park,
                                     .comes_back = comes_back,
                                     .answer = answer,
                                     .lost = lost};

}  // namespace clan::preload
