#include "net/sockets.h"

#include <utility>

#include "clan/detail/words.h"
#include "clan/face/socket_face.h"
#include "net/bell.h"
#include "state/face.h"

namespace clan::preload {
namespace {

using reasons::Why;

template <typename Do>
bool with(void* socket, Do what) {
  return the_program->with(*static_cast<Socket*>(socket), what);
}

void ring(void* socket) {
  (void)with(socket, [](int fd, Socket& s) { return ring_here(fd, s), true; });
}

bool may_switch(void* socket) {
  return with(socket, [](int fd, Socket& s) {
    constexpr std::uint64_t kDecided = socket_face::kGone | socket_face::kLeaving;
    return !s.shared() || ((state_of(s.mine()) | state_of(s.theirs())) & kDecided) != 0 ||
           the_program->switch_sending(fd, s);
  });
}

void park(void* socket) {
  (void)with(socket, [](int fd, Socket& s) {
    if (!park_byte(fd)) the_program->break_off(fd, s, "the other host cannot be waited for by TCP");
    // PAIR preload.parked: what is sent by TCP after this lies behind that byte
    words::store_release(s.remote_parked, true);
    return true;
  });
}

void comes_back(void* socket) {
  (void)with(socket, [](int fd, Socket& s) { return end_bells(fd, s), true; });
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
                                 .park = park,
                                 .comes_back = comes_back,
                                 .answer = answer,
                                 .lost = lost};

void enter(int fd, Socket& s, const Route& route, bool (*attach)(Socket& s, Pipe&& end)) {
  if (!s.pipe && !make_pipe(fd, s, attach)) return;
  begin_bells(s);
  (void)the_program->enter_pipe(fd, s, route);
}

}  // namespace clan::preload
