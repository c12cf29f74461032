// Whether all bytes arrive.
#include <cstring>

#include "side.h"

namespace clan::bench::ofi {

void Side::verify_message(std::size_t bytes) {
  const unsigned seed = ++seed_;
  meet([&] { post_receive(bytes); });
  fill(out_, bytes, seed);
  if (client_) send(bytes);
  wait(received_, 1, "a message");
  if (!filled(in_, bytes, seed)) give_up("message", "wrong data");
  if (!client_) send(bytes);
}

void Side::verify_write(bool inject, bool both, std::size_t bytes) {
  const unsigned seed = ++seed_;
  fill(out_, bytes, seed);
  meet();
  if (client_ || both) {
    if (inject) {
      inject_write(bytes);
    } else {
      access(true, bytes);
      wait(sent_, 1, "a write");
    }
  }
  if (!client_ || both) {
    const double until = now() + kPatience;
    while (!filled(in_, bytes, seed)) {
      progress();
      if (now() > until) give_up("write", "wrong data");
      asm volatile("" ::: "memory");  // the other side writes it
    }
  }
  meet();
}

void Side::verify_read(bool both, std::size_t bytes) {
  const unsigned seed = ++seed_;
  fill(in_, bytes, seed);
  std::memset(out_, 0, bytes);
  meet();
  if (client_ || both) {
    access(false, bytes);
    wait(sent_, 1, "a read");
    if (!filled(out_, bytes, seed)) give_up("read", "wrong data");
  }
  meet();
}

void Side::verify(const Order& order) {
  switch (order.kind) {
    case Kind::kTagged:
    case Kind::kMessage:
    case Kind::kTaggedWindow: return verify_message(order.bytes);
    case Kind::kWriteInject: return verify_write(true, true, order.bytes);
    case Kind::kWriteWindow: return verify_write(false, true, order.bytes);
    case Kind::kWrite: return verify_write(false, false, order.bytes);
    case Kind::kReadWindow: return verify_read(true, order.bytes);
    case Kind::kRead: return verify_read(false, order.bytes);
    default: return;  // these check all they do
  }
}

}  // namespace clan::bench::ofi
