// What is timed, and the checks before and after it.
#include <rdma/fi_atomic.h>
#include <sys/eventfd.h>

#include "side.h"

namespace clan::bench::ofi {

const Entry Side::kEntries[] = {
    {"tagged", "tagged", &Side::ping_pong, &Side::verify_message},
    {"tagged-window", "tagged", &Side::window, &Side::verify_message, true},
    {"msg", "msg", &Side::ping_pong, &Side::verify_message},
    {"write-window", "rma", &Side::access_window, &Side::verify_write, true, true, Access::kWrite},
    {"read-window", "rma", &Side::access_window, &Side::verify_read, true, true, Access::kRead},
    {"write-inject", "rma", &Side::access_window, &Side::verify_write, true, true, Access::kInject},
    // One at a time, until it is complete; the owner polls.
    {"write", "rma", &Side::access_single, &Side::verify_write, false, false, Access::kWrite},
    {"read", "rma", &Side::access_single, &Side::verify_read, false, false, Access::kRead},
    {"fetch-add", "atomic", &Side::fetch_add},
    {"idle", "wait", &Side::idle},
    {"wake-up", "wait", &Side::wake_up},
    {"eventfd", "wait", &Side::eventfd},
};

/// Seconds. On both sides; the client's figure counts.
double Side::run(Order order) {
  if (client_) channel_.send(&order, sizeof order);
  double took = 0;
  const Entry& entry = kEntries[order.entry];
  const Slice slice;
  if (order.times != 0) {
    took = (this->*entry.loop)(order);
  } else if (entry.verify != nullptr) {
    (this->*entry.verify)(order);
  }
  // Neither side stops making progress while the other may still need it.
  Spent spent = slice.spent();
  if (client_) {
    spent_ = spent;
    while (!channel_.ready()) progress();
    channel_.receive(&spent, sizeof spent);
    spent_ += spent;
  } else {
    channel_.send(&spent, sizeof spent);
  }
  return took;
}

void Side::serve() {
  for (;;) {
    const double until = now() + 0.001;
    while (!channel_.ready() && now() < until) progress();
    Order order;
    channel_.receive(&order, sizeof order);
    if (order.entry < 0) return;
    (void)run(order);
  }
}

Figure Side::measure(int entry, std::size_t bytes, double ms) {
  constexpr int kSlices = 9;
  /// as long as asked for, to get as many slices that nothing disturbed
  constexpr int kMostTimes = 5;
  const bool windows = kEntries[entry].windows, both = kEntries[entry].both;
  if (kEntries[entry].loop == &Side::idle) {
    const double us = run({entry, bytes, 1}) * 1e6;
    return {us, us};
  }
  const std::uint64_t unit = windows ? kWindow : 8;
  const std::uint64_t few = bytes <= 65536 ? 2 * kWindow : unit;
  (void)run({entry, bytes, 0});
  (void)run({entry, bytes, few});  // warm
  const double each = std::max(run({entry, bytes, few}) / static_cast<double>(few), 1e-9);
  const auto wanted = static_cast<std::uint64_t>(ms * 1e-3 / kSlices / each);
  const std::uint64_t times = std::clamp<std::uint64_t>(wanted, few, 4'000'000) / unit * unit;
  Slices slices;
  for (const double until = now() + kMostTimes * ms * 1e-3; slices.calm() < kSlices;) {
    const double us = run({entry, bytes, times}) / static_cast<double>(times) * 1e6;
    slices.add(us, spent_, static_cast<double>(times) * (both ? 2 : 1));
    if (now() > until) break;
  }
  (void)run({entry, bytes, 0});
  return slices.figure();
}

// --- messages: ping-pong, windows, and ping-pong of two that sleep ---

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

// --- accesses to the other side's memory ---

double Side::access_window(const Order& order) {
  const Access kind = kEntries[order.entry].access;
  meet();
  const double began = now();
  for (std::uint64_t w = 0; w < order.times / kWindow; ++w) {
    for (int i = 0; i < kWindow; ++i) {
      kind == Access::kInject ? inject_write(order.bytes)
                              : access(kind == Access::kWrite, order.bytes, i);
    }
    if (kind != Access::kInject) wait(sent_, kWindow, "an access");
  }
  const double took = now() - began;
  meet();
  return took;
}

double Side::access_single(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      access(kEntries[order.entry].access == Access::kWrite, order.bytes);
      wait(sent_, 1, "an access");
    }
    took = now() - began;
  }
  meet();  // where the owner polls meanwhile
  return took;
}

double Side::fetch_add(const Order& order) {
  meet();
  double took = 0;
  if (client_) {
    auto* const one = reinterpret_cast<std::uint64_t*>(out_);
    auto* const found = reinterpret_cast<std::uint64_t*>(out_ + 64);
    *one = 1;
    std::uint64_t first = 0;
    const double began = now();
    for (std::uint64_t i = 0; i < order.times; ++i) {
      post(
          [&] {
            return fi_fetch_atomic(ep_, one, 1, desc_, found, desc_, peer_, remote_.address,
                                   remote_.key, FI_UINT64, FI_SUM, &sends_[0]);
          },
          "fetch-and-add");
      wait(sent_, 1, "a fetch-and-add");
      if (i == 0) first = *found;
      if (*found != first + i) give_up("fetch-and-add", "wrong result");
    }
    took = now() - began;
  }
  meet();
  return took;
}

// --- waiting at the queue's descriptor, and the same with nothing but an eventfd ---

void Side::sleep_until_received() {
  while (!take(received_, "a message")) {
    fid* waited = &received_->fid;
    const int rc = fi_trywait(fabric_, &waited, 1);
    if (rc == -FI_EAGAIN) continue;
    must(rc, "fi_trywait");
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) == 0)
      give_up("a message", "has not come in time");
  }
}

/// Microseconds of CPU time in two seconds, on the side that used more.
double Side::idle(const Order&) {
  meet();
  const double used = cpu_ns(), until = now() + 2;
  for (double left = 2; left > 0; left = until - now()) {
    fid* waited = &received_->fid;
    if (fi_trywait(fabric_, &waited, 1) == 0) {
      pollfd p{fd_, POLLIN, 0};
      (void)::poll(&p, 1, static_cast<int>(left * 1000) + 1);
    }
    if (take(received_, "nothing")) give_up("idle", "a message that nobody sent");
  }
  double mine = (cpu_ns() - used) * 1e-9, other = 0;
  channel_.send(&mine, sizeof mine);
  channel_.receive(&other, sizeof other);
  return std::max(mine, other);
}

double Side::eventfd(const Order& order) {
  const int mine = eventfds_[client_ ? 1 : 0], theirs = eventfds_[client_ ? 0 : 1];
  const auto ring = [&] {
    if (::eventfd_write(theirs, 1) != 0) fail("eventfd");
  };
  meet();
  const double began = now();
  for (std::uint64_t i = 0; i < order.times; ++i) {
    if (client_) ring();
    pollfd p{mine, POLLIN, 0};
    eventfd_t value;
    if (::poll(&p, 1, static_cast<int>(kPatience * 1000)) != 1 ||
        ::eventfd_read(mine, &value) != 0) {
      give_up("eventfd", "has not come in time");
    }
    if (!client_) ring();
  }
  return (now() - began) / 2;
}

// --- whether all bytes arrive ---

void Side::verify_message(const Order& order) {
  const std::size_t bytes = order.bytes;
  const unsigned seed = ++seed_;
  meet([&] { post_receive(bytes); });
  fill(out_, bytes, seed);
  if (client_) send(bytes);
  wait(received_, 1, "a message");
  if (!filled(in_, bytes, seed)) give_up("message", "wrong data");
  if (!client_) send(bytes);
}

void Side::verify_write(const Order& order) {
  const std::size_t bytes = order.bytes;
  const bool both = kEntries[order.entry].both;
  const unsigned seed = ++seed_;
  fill(out_, bytes, seed);
  meet();
  if (client_ || both) {
    if (kEntries[order.entry].access == Access::kInject) {
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

void Side::verify_read(const Order& order) {
  const std::size_t bytes = order.bytes;
  const bool both = kEntries[order.entry].both;
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

}  // namespace clan::bench::ofi
