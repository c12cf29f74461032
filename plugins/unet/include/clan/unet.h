// U-Net endpoints in C++: unet.h with objects that end by themselves and Result<T> instead of errno
// values. Everything else is as there.
//
//   auto node = unet::Node::open();
//   auto endpoint = unet::Endpoint::create(*node, {.area_bytes = 1 << 20});
//   endpoint->connect(2, "worker", 1, key);
//   endpoint->send(2, bytes);           // into the send queue; then endpoint->doorbell()
//   while (auto* d = endpoint->next()) { ...; endpoint->take(); }
#pragma once

#include <clan/result.h>
#include <unet.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>

namespace clan::unet {

inline Status status_of(int error, const char* what) {
  return error == 0 ? Status() : Status(Error{error, what});
}

class Node {
 public:
  static Result<Node> open(const unet_node_options& options = {}) {
    unet_node* made = nullptr;
    const int error = unet_open(&options, &made);
    if (error != 0) return Error{error, "opening a U-Net node"};
    return Node(made);
  }
  unet_node* get() const { return node_.get(); }

 private:
  struct Close {
    void operator()(unet_node* node) const { unet_close(node); }
  };
  explicit Node(unet_node* node) : node_(node) {}
  std::unique_ptr<unet_node, Close> node_;
};

class Endpoint {
 public:
  static Result<Endpoint> create(const Node& node, const unet_endpoint_options& options) {
    unet_endpoint* made = nullptr;
    const int error = unet_create(node.get(), &options, &made);
    if (error != 0) return Error{error, "making a U-Net endpoint"};
    return Endpoint(made);
  }
  unet_endpoint* get() const { return endpoint_.get(); }
  unet_address address() const { return unet_address_of(get()); }
  std::span<std::byte> area() const {
    return {reinterpret_cast<std::byte*>(get()->area), get()->area_bytes};
  }

  Status accept(std::uint32_t tag, std::uint64_t key) {
    return status_of(unet_accept(get(), tag, key), "registering a tag");
  }
  Status connect(std::uint32_t tag, const unet_address& peer, std::uint32_t peer_tag,
                 std::uint64_t key, std::int64_t timeout_ms = -1) {
    return status_of(unet_connect(get(), tag, &peer, peer_tag, key, timeout_ms),
                     "connecting a tag");
  }
  Status connect(std::uint32_t tag, const std::string& service, std::uint32_t peer_tag,
                 std::uint64_t key, std::int64_t timeout_ms = -1) {
    const int error = unet_connect_service(get(), tag, service.c_str(), peer_tag, key, timeout_ms);
    return status_of(error, "connecting a tag");
  }
  Status close(std::uint32_t tag) { return status_of(unet_close_tag(get(), tag), "closing a tag"); }

  /// Into the send queue, in the descriptor itself. False: it is full. At most UNET_INLINE bytes.
  bool send(std::uint32_t tag, std::span<const std::byte> bytes, std::uint64_t cookie = 0) {
    unet_send* const d = unet_send_next(get());
    if (d == nullptr || bytes.size() > UNET_INLINE) return false;
    fill(*d, tag, cookie);
    d->bytes = static_cast<std::uint32_t>(bytes.size());
    if (!bytes.empty()) std::memcpy(d->u.data, bytes.data(), bytes.size());
    unet_send_push(get());
    return true;
  }
  /// The same from pieces of memory; at most UNET_PIECES.
  bool send(std::uint32_t tag, std::span<const unet_piece> pieces, std::uint64_t cookie = 0) {
    unet_send* const d = unet_send_next(get());
    if (d == nullptr || pieces.size() > UNET_PIECES) return false;
    fill(*d, tag, cookie);
    d->pieces = static_cast<std::uint16_t>(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) d->u.piece[i] = pieces[i];
    unet_send_push(get());
    return true;
  }
  /// The oldest send that is done; null: none is.
  const unet_send* done() const { return unet_send_done(get()); }
  void take_done() { unet_send_take(get()); }
  bool give(std::uint64_t buffer) { return unet_free_push(get(), buffer) != 0; }
  Status doorbell() { return status_of(unet_doorbell(get()), "the doorbell"); }

  /// What has arrived first; null: nothing has.
  const unet_receive* next() {
    const unet_receive* d = unet_receive_next(get());
    if (d == nullptr && unet_poll(get()) == 0) d = unet_receive_next(get());
    return d;
  }
  void take() { unet_receive_take(get()); }
  Status wait(std::int64_t timeout_ms = -1) {
    return status_of(unet_wait(get(), timeout_ms), "waiting at a U-Net endpoint");
  }
  unet_counters counters() const {
    unet_counters c;
    unet_count(get(), &c);
    return c;
  }

 private:
  struct Destroy {
    void operator()(unet_endpoint* endpoint) const { unet_destroy(endpoint); }
  };
  explicit Endpoint(unet_endpoint* endpoint) : endpoint_(endpoint) {}
  static void fill(unet_send& d, std::uint32_t tag, std::uint64_t cookie) {
    d.cookie = cookie;
    d.offset = 0;
    d.tag = tag;
    d.bytes = 0;
    d.pieces = d.flags = 0;
  }
  std::unique_ptr<unet_endpoint, Destroy> endpoint_;
};

}  // namespace clan::unet
