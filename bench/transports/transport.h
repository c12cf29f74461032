// What a measuring loop needs of a transport. One loop, instantiated per transport: no virtual call
// is between the loop and what it measures.
//
//   reporting process              member 0 (client)              member 1 (server)
//   t.prepare(size) ── fork ──►    t.open(Side::kClient)          t.open(Side::kServer)
//                                  end.send/recv …        ◄────►  end.recv/send …
//
// prepare() runs before the fork and makes what both sides inherit or need to find each other (a
// listener, a socket pair, shared memory). It answers why the transport can't be measured here, or
// nothing; a reason becomes a "skipped" line, never a failed run. open() runs in each member.
#pragma once

#include <unistd.h>

#include <concepts>
#include <optional>
#include <span>

#include "support/process_group.h"

namespace clan::bench {

/// One end of a connection. send() takes all of the message; recv() fills all of the buffer, which
/// has the size of the message that was sent. Both false when the connection is unusable.
template <class E>
concept TransportEnd = requires(E e, std::span<const std::byte> out, std::span<std::byte> in) {
  { e.send(out) } -> std::same_as<bool>;
  { e.recv(in) } -> std::same_as<bool>;
};

template <class T>
concept Transport = requires(T t, std::size_t bytes, Side side) {
  { t.name() } -> std::convertible_to<std::string>;
  { t.prepare(bytes) } -> std::same_as<std::string>;
  requires TransportEnd<typename decltype(t.open(side))::value_type>;
};

/// One process's ends of many connections, numbered alike on both sides, and a way to wait for
/// traffic on any of them. wait() fills `ready` with numbers of connections that have something to
/// read and answers how many; it blocks or polls as the variant says; 0 means failure.
template <class H>
concept ConnectionHub = requires(H h, std::uint32_t i, std::span<const std::byte> out,
                                 std::span<std::byte> in, std::span<std::uint32_t> ready) {
  { h.wait(ready) } -> std::same_as<std::size_t>;
  { h.send(i, out) } -> std::same_as<bool>;
  { h.recv(i, in) } -> std::same_as<bool>;
};

/// As a Transport; open() also takes the number of connections.
template <class T>
concept HubTransport = requires(T t, std::size_t connections, Side side) {
  { t.name() } -> std::convertible_to<std::string>;
  { t.prepare(connections) } -> std::same_as<std::string>;
  requires ConnectionHub<typename decltype(t.open(side, connections))::value_type>;
};

/// A name that nobody else has.
inline std::string unique_name() {
  static int number = 0;
  return "b" + std::to_string(::getpid()) + "." + std::to_string(++number);
}

/// A transport whose ends find each other by a name.
class Named {
 public:
  std::string prepare(std::size_t bytes) {
    name_ = unique_name();
    bytes_ = bytes;
    return "";
  }

 protected:
  std::string name_;
  std::size_t bytes_ = 0;
};

}  // namespace clan::bench
