// Messages: ping-pong, windows, and ping-pong of two that sleep.
#include "side.h"

namespace clan::bench::ofi {

// Messages to and fro, sent and waited for as the caller says.
template <typename Send, typename Wait>
double Side::back_and_forth(const Order& order, const char* what, Send&& send, Wait&& wait) {
  const std::size_t bytes = order.bytes;
  meet([&] { post_receive(bytes); });
  const double began = now();
  for (std::uint64_t i = 0; i < order.times; ++i) {
    if (client_) {
      mark(out_, bytes, i);
      send(bytes);
    }
    wait();
    if (!marked(in_, bytes, i)) give_up(what, "wrong data");
    if (i + 1 < order.times) post_receive(bytes);
    if (!client_) {
      mark(out_, bytes, i);
      send(bytes);
    }
  }
  return (now() - began) / 2;
}

double Side::ping_pong(const Order& order) {
  return back_and_forth(
      order, "ping-pong", [this](std::size_t bytes) { send(bytes); },
      [this] { wait(received_, 1, "a message"); });
}

// The sender may be early, as in programs: messages that find no receive are part of it.
double Side::window(const Order& order) {
  const std::size_t bytes = order.bytes;
  const std::uint64_t windows = order.times / kWindow;
  meet();
  const double began = now();
  for (std::uint64_t w = 0; w < windows; ++w) {
    if (client_) {
      post_note();
      mark(out_, bytes, w);
      for (int i = 0; i < kWindow; ++i) {
        injects(bytes) ? inject(bytes) : post_send(bytes, i);
      }
      if (!injects(bytes)) wait(sent_, kWindow, "a send");
      wait(received_, 1, "an answer");
    } else {
      for (int i = 0; i < kWindow; ++i) post_receive(bytes, i);
      wait(received_, kWindow, "a message");
      if (!marked(in_, bytes, w)) give_up("window", "wrong data");
      send_note();
    }
  }
  return now() - began;
}

double Side::wake_up(const Order& order) {
  return back_and_forth(
      order, "wake-up", [this](std::size_t bytes) { inject(bytes); },
      [this] { sleep_until_received(); });
}

}  // namespace clan::bench::ofi
