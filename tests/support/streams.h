// Two contexts of one process and a stream between them, and loops that send and verify patterns.
#pragma once

#include <clan/stream.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "support/pattern.h"
#include "support/process.h"

namespace clan::test {

/// The value, or the end of the program: for set-up that is not what a test is about.
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "test set-up: %s\n", result.error().message().c_str());
    std::abort();
  }
  return std::move(*result);
}

inline ContextOptions with_mode(WaitOptions::Mode mode, std::uint32_t ring_bytes = 64 * 1024) {
  ContextOptions options;
  options.wait.mode = mode;
  options.ring_bytes = ring_bytes;
  return options;
}

/// The contexts of the memory's owner, and of the peer that writes to it.
struct OwnerAndPeer {
  Context owner = must(Context::create()), peer = must(Context::create());
};

/// client — server, connected.
struct StreamPair {
  Context client_context, server_context;
  Listener listener;
  Stream client, server;

  explicit StreamPair(const ContextOptions& options = {})
      : StreamPair(options, options, unique_name("pair")) {}
  StreamPair(const ContextOptions& client_options, const ContextOptions& server_options)
      : StreamPair(client_options, server_options, unique_name("pair")) {}

 private:
  StreamPair(const ContextOptions& client_options, const ContextOptions& server_options,
             const std::string& name)
      : client_context(must(Context::create(client_options))),
        server_context(must(Context::create(server_options))),
        listener(must(Listener::create(server_context, name))),
        client(must(Stream::connect(client_context, name, 10'000))),
        server(must(listener.accept(10'000))) {}
};

/// Sends bytes [from, to) of pattern `seed` in pieces of random size. The number of bytes sent.
inline std::uint64_t send_pattern(Stream& stream, std::uint64_t seed, std::uint64_t from,
                                  std::uint64_t to, std::size_t most = 64 * 1024,
                                  std::int64_t timeout_ms = 20'000) {
  Random random(seed * 7 + 1);
  std::vector<std::byte> piece(most);
  while (from < to) {
    std::size_t n = random.size_up_to(most);
    if (n > to - from) n = static_cast<std::size_t>(to - from);
    fill_pattern({piece.data(), n}, seed, from);
    auto sent = stream.send({piece.data(), n}, timeout_ms);
    if (!sent.ok()) return from;
    from += *sent;
    if (*sent < n) return from;
  }
  return from;
}

/// How a receiving loop ended.
struct Received {
  std::uint64_t bytes = 0;  ///< position after the last right byte
  bool right = true;        ///< no wrong byte
  int err = 0;              ///< errno of the call that ended it; 0 = end of stream or `to` reached
  bool end_of_stream = false;
};

/// Receives pattern `seed` from position `from` until `to`, the end of the stream or an error.
inline Received receive_pattern(Stream& stream, std::uint64_t seed, std::uint64_t from,
                                std::uint64_t to, std::size_t most = 64 * 1024,
                                std::int64_t timeout_ms = 20'000) {
  Random random(seed * 13 + 5);
  std::vector<std::byte> piece(most);
  Received r;
  r.bytes = from;
  while (r.bytes < to) {
    std::size_t n = random.size_up_to(most);
    if (n > to - r.bytes) n = static_cast<std::size_t>(to - r.bytes);
    auto got = stream.recv({piece.data(), n}, timeout_ms);
    if (!got.ok()) {
      r.err = got.error().err;
      return r;
    }
    if (*got == 0) {
      r.end_of_stream = true;
      return r;
    }
    const std::size_t wrong = first_wrong_byte({piece.data(), *got}, seed, r.bytes);
    r.bytes += wrong;
    if (wrong < *got) {
      r.right = false;
      return r;
    }
  }
  return r;
}

inline std::span<const std::byte> text(const char* s) {
  return std::as_bytes(std::span(s, std::strlen(s)));
}

/// What arrives within `timeout_ms` up to `most` bytes, as a string; "<errno>" on an error.
inline std::string receive_text(Stream& stream, std::size_t most = 64,
                                std::int64_t timeout_ms = 10'000) {
  std::string s(most, '\0');
  auto n = stream.recv(std::as_writable_bytes(std::span(s)), timeout_ms);
  if (!n.ok()) return "<" + std::to_string(n.error().err) + ">";
  s.resize(*n);
  return s;
}

}  // namespace clan::test
