// Nodes and endpoints for tests, and two endpoints of this process with a channel between them.
#pragma once

#include <gtest/gtest.h>
#include <unet.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace clan::unet::testing {

inline constexpr std::int64_t kSoon = 20'000;  // ms, which a test never waits for
inline constexpr std::uint64_t kKey = 0x1234;

struct NodeEnd {
  explicit NodeEnd(const unet_node_options& options = {}) {
    EXPECT_EQ(unet_open(&options, &node), 0);
  }
  ~NodeEnd() { unet_close(node); }
  NodeEnd(const NodeEnd&) = delete;
  NodeEnd& operator=(const NodeEnd&) = delete;
  unet_node* node = nullptr;
};

inline unet_endpoint_options in_area(std::uint32_t flags = 0) {
  unet_endpoint_options options{};
  options.flags = flags;
  options.area_bytes = 1 << 20;
  return options;
}

/// An endpoint, with words for what tests do.
struct End {
  explicit End(unet_node* node, const unet_endpoint_options& options = in_area()) {
    EXPECT_EQ(unet_create(node, &options, &e), 0);
  }
  ~End() { destroy(); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  void destroy() {
    unet_destroy(e);
    e = nullptr;
  }

  unet_address address() const { return unet_address_of(e); }
  unet_counters counters() const {
    unet_counters c;
    unet_count(e, &c);
    return c;
  }
  /// False: the send queue is full.
  bool push(std::uint32_t tag, const std::string& text, std::uint64_t cookie = 0) {
    unet_send* const d = unet_send_next(e);
    if (d == nullptr) return false;
    *d = {};
    d->cookie = cookie;
    d->tag = tag;
    d->bytes = static_cast<std::uint32_t>(text.size());
    std::memcpy(d->u.data, text.data(), text.size());
    unet_send_push(e);
    return true;
  }
  bool push_pieces(std::uint32_t tag, const std::vector<unet_piece>& pieces,
                   std::uint64_t cookie = 0) {
    unet_send* const d = unet_send_next(e);
    if (d == nullptr) return false;
    *d = {};
    d->cookie = cookie;
    d->tag = tag;
    d->pieces = static_cast<std::uint16_t>(pieces.size());
    for (std::size_t i = 0; i < pieces.size() && i < UNET_PIECES; ++i) d->u.piece[i] = pieces[i];
    unet_send_push(e);
    return true;
  }
  /// Status of the oldest send, which is done with by then; UNET_PENDING.
  int taken_status(std::uint64_t* cookie = nullptr) {
    const unet_send* const d = unet_send_done(e);
    if (d == nullptr) return UNET_PENDING;
    const int status = d->status;
    if (cookie != nullptr) *cookie = d->cookie;
    unet_send_take(e);
    return status;
  }
  /// Sends `text`, and says what has become of it.
  int send(std::uint32_t tag, const std::string& text) {
    EXPECT_TRUE(push(tag, text));
    EXPECT_EQ(unet_doorbell(e), 0);
    return taken_status();
  }
  int send_pieces(std::uint32_t tag, const std::vector<unet_piece>& pieces) {
    EXPECT_TRUE(push_pieces(tag, pieces));
    EXPECT_EQ(unet_doorbell(e), 0);
    return taken_status();
  }
  /// The next descriptor of the receive queue; waits for it.
  unet_receive receive() {
    const unet_receive* d = unet_receive_next(e);
    if (d == nullptr) {
      EXPECT_EQ(unet_wait(e, kSoon), 0);
      d = unet_receive_next(e);
    }
    if (d == nullptr) {
      ADD_FAILURE() << "nothing has arrived";
      return {};
    }
    const unet_receive copy = *d;
    unet_receive_take(e);
    return copy;
  }
  /// Returns the text of a message; an area's, or this process's.
  std::string text_of(const unet_receive& d, bool area = true) const {
    if (d.buffers == 0) return {reinterpret_cast<const char*>(d.u.data), d.bytes};
    std::string text;
    for (unsigned i = 0; i < d.buffers; ++i) {
      const auto* from = area ? reinterpret_cast<const char*>(e->area) + d.u.buffer[i]
                              : reinterpret_cast<const char*>(d.u.buffer[i]);
      text.append(from, std::min<std::size_t>(e->buffer_bytes, d.bytes - text.size()));
    }
    return text;
  }
  bool poll_is_empty() { return unet_poll(e) == EAGAIN; }

  unet_endpoint* e = nullptr;
};

/// Tags 1 of `b` and 2 of `a` are the two ends of a channel.
inline void join(End& a, End& b) {
  ASSERT_EQ(unet_accept(b.e, 1, kKey), 0);
  const unet_address there = b.address();
  ASSERT_EQ(unet_connect(a.e, 2, &there, 1, kKey, kSoon), 0);
}

struct Pair {
  explicit Pair(const unet_endpoint_options& of_a = in_area(),
                const unet_endpoint_options& of_b = in_area(), const unet_node_options& nodes = {})
      : first(nodes), second(nodes), a(first.node, of_a), b(second.node, of_b) {
    join(a, b);
  }
  NodeEnd first, second;
  End a, b;
};

}  // namespace clan::unet::testing
