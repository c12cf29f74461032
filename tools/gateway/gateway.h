// The loop of the gateway: one thread, one epoll set.
//
//   listener -> accept -> (PROXY header) -> connect to a target -> bytes both ways -> end
//
// An event of the set carries the number of its connection and which end it is of (Kind).
// Files: gateway.cc, the loop; gateway_listen.cc, gateway_connect.cc, gateway_relay.cc, its steps.
#pragma once

#include <clan/face/gateway_face.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config.h"
#include "ends.h"
#include "native.h"
#include "relay.h"
#include "reload.h"
#include "route.h"

namespace clan::gateway {

/// A client and its target; without a client, a check of the target.
struct Connection {
  enum class Stage { kHeader, kConnecting, kChecking, kRelaying };
  std::uint64_t id = 0;
  Stage stage = Stage::kConnecting;
  std::shared_ptr<Route> route;
  Target* target = nullptr;
  std::uint64_t tried = 0;                      ///< targets, a bit for each
  std::size_t address = 0, addresses_left = 0;  ///< of the target; with the one that is tried
  Socket client, server;
  std::optional<Stream> stream;        ///< instead of `server`
  Direction in, out;                   ///< from the client, and to it
  Address peer;                        ///< the other end of the client's socket
  std::optional<ProxyAddresses> said;  ///< by a PROXY header
  std::string tlvs;                    ///< of that header
  std::optional<Ip> source;            ///< that it counts for
  std::uint64_t began_ms = 0, deadline_ms = 0;
  bool is_check() const { return !client; }
  const Address& from() const { return said ? said->source : peer; }
};

constexpr std::uint64_t kAcceptAgainMs = 100;  ///< after there was no descriptor

class Gateway {
 public:
  /// `arguments`: of this program, for the one that replaces it.
  Gateway(Config config, std::vector<std::string> arguments);
  /// Runs until a signal ends it. The exit code.
  int run();

 private:
  enum Kind : std::uint64_t { kClient, kServer, kListener, kOther, kKinds };
  enum class Other : std::uint64_t { kSignals, kNatives, kSuccessor };
  static std::uint64_t tag_of(std::uint64_t id, Kind kind) { return id * kKinds + kind; }
  static std::uint64_t tag_of(Other other) {
    return tag_of(static_cast<std::uint64_t>(other), kOther);
  }
  struct Listener {
    Socket socket;
    Address address;
    std::shared_ptr<Route> route;
  };
  using Count = GatewayPage::Count;

  // gateway.cc: the loop.
  bool begin();
  void turn();
  int sleep_ms();
  void take(std::uint64_t tag, std::uint32_t events);
  void take_natives();
  void take_signals();
  void sweep();
  void note_idle();
  void say(const std::string& line);
  void flush_log();

  // gateway_listen.cc: listeners, reload, clients that come.
  std::string open(const Rule& rule, std::vector<Socket>& inherited, Listener& listener);
  std::string apply(const std::vector<Rule>& rules, std::vector<Socket> inherited);
  void read_file_again();
  void start_successor();
  void count_failed_start();
  void hear_successor();
  void drain();
  bool takes(const Listener& listener) const;
  void watch_listeners();
  void accept_from(Listener& listener);
  void enter(Listener& listener, int fd, const Address& peer);
  void admit(Connection& connection);
  void read_header(Connection& connection);

  // gateway_connect.cc: targets.
  void connect(Connection& connection);
  bool connect_socket(Connection& connection);
  bool connect_address(Connection& connection);
  void finish_connect(Connection& connection);
  void connected(Connection& connection);
  void failed(Connection& connection, const char* why);
  void check(Connection& connection);
  void start_checks();
  std::string header_of(const Connection& connection) const;

  // gateway_relay.cc: bytes, and the end.
  void relay(Connection& connection, bool in, bool out);
  void watch(Connection& connection);
  void finish(Connection& connection, const char* reason);
  void reset(Connection& connection, const char* reason);
  void forget(Connection& connection, const char* reason);

  Connection* find(std::uint64_t id);
  Connection& add(std::shared_ptr<Route> route);
  void set_deadline(Connection& connection, std::uint64_t after_ms);
  static void count(Count& counter, std::uint64_t n = 1);

  Config config_;
  const std::vector<std::string> arguments_;
  GatewayPage* page_ = nullptr;
  Socket set_, signals_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::unique_ptr<Natives> natives_;  // where there are native targets
  std::string why_no_natives_;
  Successor successor_;
  std::vector<std::uint64_t> more_;  // connections that may go on at once
  std::vector<std::byte> buffer_;
  std::string log_;
  std::uint64_t next_id_ = 1, now_ms_ = 0;
  std::size_t most_connections_ = 0;  // by descriptors
  std::uint64_t sweep_at_ms_ = ~0ull, accept_at_ms_ = 0, end_at_ms_ = ~0ull;
  std::uint64_t idle_end_ms_ = ~0ull;  // when it ends, if no connection comes
  bool draining_ = false;
};

}  // namespace clan::gateway
