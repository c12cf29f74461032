// What `clan stat` has found, and how it is written: stat.cc finds, stat_output.cc writes.
#pragma once

#include <sys/types.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace clan::tool {

/// IPv4 as ::ffff:a.b.c.d, so that a connection between an IPv6 and an IPv4 socket has equal ends.
struct Address {
  std::array<unsigned char, 16> ip{};
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;
};

struct TcpPair {
  Address local;
  Address remote;
  auto operator<=>(const TcpPair&) const = default;
  TcpPair mirrored() const { return {remote, local}; }
};

constexpr std::array<unsigned char, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

struct EndView {
  Address address;
  std::set<pid_t> processes;
  std::uint64_t bytes = 0;  // sent by this end, through the pipe
  std::uint64_t messages = 0;
  std::uint64_t sleeps = 0;
  std::uint64_t wakeups = 0;
  std::uint64_t tcp_bytes = 0;  // sent by TCP before the move
  std::uint64_t state = 0;
  std::optional<uid_t> owner;  // of the socket
  std::uint64_t network = 0;   // number of its network namespace, 0: not known
};

/// What stays the same from one look to the next: device, inode and time of creation of the memfd.
using Identity = std::tuple<dev_t, ino_t, std::uint64_t>;

struct Connection {
  Identity id{};
  bool in_pipe = false;  // false: a TCP connection that has not moved; it has no counters
  EndView ends[2];
  const char* path = "tcp";
  std::string why;
  bool corba = false;          // a connection of omniORB's, which has no addresses
  bool about_to_move = false;  // there is a pipe, and nothing has gone through it
};

struct Look {
  std::vector<Connection> connections;
  std::size_t refused = 0;         // processes we may not look at
  std::size_t unseen = 0;          // local connections whose ends only such processes can have
  std::size_t other_versions = 0;  // pipes of another CLAN
  std::vector<pid_t> absent;       // asked for, and not there
};

struct Rate {
  double bytes[2] = {0, 0};
  double messages[2] = {0, 0};
};

using Row = std::vector<std::string>;

/// Columns, the first row their names. `watch`: with rates.
Row heading(bool watch);
Row text_row(const Connection& connection, const std::optional<Rate>& rate, bool watch);
void print_text(const std::vector<Row>& rows);

std::string json_object(const Connection& connection, const std::optional<Rate>& rate);
void print_json(const std::vector<std::string>& objects, bool one_line);

/// Prometheus' text format: for a file of node_exporter's textfile collector.
void print_prometheus(const Look& seen);

}  // namespace clan::tool
