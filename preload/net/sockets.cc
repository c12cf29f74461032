#include "net/sockets.h"

#include <utility>

#include "clan/detail/words.h"
#include "clan/face/socket_face.h"
#include "state/face.h"

namespace clan::preload {
namespace {

using reasons::Why;

template <typename Do>
bool with(void* socket, Do what) {
  return the_program->with(*static_cast<Socket*>(socket), what);
}

void ring(void* socket) {
  (void)with(socket, [](int, Socket& s) { return the_program->ring(s); });
}

bool may_switch(void* socket) {
  return with(socket, [](int fd, Socket& s) {
    constexpr std::uint64_t kDecided = socket_face::kGone | socket_face::kLeaving;
    return !s.shared() || ((state_of(s.mine()) | state_of(s.theirs())) & kDecided) != 0 ||
           the_program->switch_sending(fd, s);
  });
}

void switch_is_known(void* socket) {
  (void)with(socket, [](int, Socket& s) {
    // PAIR preload.switch_known: what is sent by TCP after this is not taken for older bytes
    words::store_release(s.switch_known, true);
    return true;
  });
}

void answer(void* socket) {
  (void)with(socket, [](int fd, Socket& s) { return the_program->answer(fd, s); });
}

void lost(void* socket) {
  (void)with(socket, [](int fd, Socket& s) {
    the_program->break_off(fd, s, "the way to the other host is gone, and bytes with it");
    return true;
  });
}

// The pipe, whose other end the carrier takes.
bool make_pipe(int fd, Socket& s, bool (*attach)(Socket& s, Pipe&& end)) {
  if (!the_program->create_pipe(fd, s)) return false;
  add_state(s.mine(), socket_face::kFar);
  add_state(s.theirs(), socket_face::kFar);
  auto end = s.pipe.at_other_end();
  if (end && attach(s, std::move(*end))) return true;
  the_program->stay(fd, s, Why::kOfferLost, 0);
  return false;
}

}  // namespace

const Interposer* the_program = nullptr;

const CarrierCalls kProgramCalls{.ring = ring,
                                 .may_switch = may_switch,
                                 .switch_is_known = switch_is_known,
                                 .answer = answer,
                                 .lost = lost};

void enter(int fd, Socket& s, const Route& route, bool (*attach)(Socket& s, Pipe&& end)) {
  if (!s.pipe && !make_pipe(fd, s, attach)) return;
  if (s.bell.get() < 0 && !the_program->make_own_bell(s))
    return the_program->stay(fd, s, Why::kNoDescriptors, 0);
  (void)the_program->enter_pipe(fd, s, route);
}

}  // namespace clan::preload
