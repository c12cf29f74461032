// Endpoint: the connections of one socket: handshakes, ids, timers, turns to send.
//
//   receive(from, datagram, now)  ->  [ Endpoint: check, id -> Connection ]  ->  EndpointSink
//   transmit(now, buffer)         <-  trains of equal packets, connection by connection in turn
//   next_timeout() / on_timeout(now)
//
// A pure state machine: no system call, clock or randomness but what is passed in. Idle connections
// cost nothing. A packet of no connection allocates nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "link/udp/transport/connection.h"
#include "link/udp/transport/ring_queue.h"

namespace clan::udp {

/// Packets for one address, all `segment` bytes long but the last, which may be shorter.
struct Train {
  SocketAddress to;
  std::size_t bytes = 0;  ///< 0: nothing to send
  std::size_t segment = 0;
  SocketAddress from{};  ///< which of our addresses they leave from; all 0: as the routes choose
};

struct EndpointCounters {
  std::uint64_t malformed = 0, wrong_check = 0, retries = 0, bad_cookies = 0, resets_taken = 0,
                wrong_mode = 0;
};

class Endpoint {
 public:
  static constexpr std::size_t kTrainBytes = 65'000;
  static constexpr std::size_t kTrainPackets = 64;

  /// `random` gives 64 unpredictable bits. `security` null: mode off. Both outlive the endpoint.
  Endpoint(const Options& options, EndpointSink& sink, std::function<std::uint64_t()> random,
           Security* security);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Connects; on_established or on_down follows. `greeting` up to kMostGreeting. Null: no keys.
  Connection* connect(const SocketAddress& to, std::span<const std::byte> greeting,
                      std::uint64_t now);
  /// EINVAL: the message is too long. ENOTCONN: the connection is closing.
  int send(Connection& connection, std::uint8_t channel, const Message& message);
  void close(Connection& connection, int err, std::uint64_t now);

  /// Takes a datagram to `at`, our address (all 0: not known), and decrypts it in place. Answers,
  /// and packets of a connection that it begins, leave from there.
  void receive(const SocketAddress& from, std::span<std::byte> datagram, std::uint64_t now,
               const SocketAddress& at = {});
  /// The next train, into `out` (at least kTrainBytes).
  Train transmit(std::span<std::byte> out, std::uint64_t now);
  /// The kernel refused packets of `bytes` to `to`: larger than the path takes.
  void on_too_big(const SocketAddress& to, std::size_t bytes, std::uint64_t now);
  /// The host of `to` has said that nobody has that port.
  void on_refused(const SocketAddress& to, std::uint64_t now);
  /// A thread sleeps until that peer sends something; or does no more.
  void watch(Connection& connection, bool on, std::uint64_t now);
  std::uint64_t next_timeout() const { return heap_.empty() ? kNever : heap_[0]->heap_time_; }
  void on_timeout(std::uint64_t now);
  /// Where a peer is that has left two probe time-outs in a row unanswered. False: no other.
  bool next_silent(SocketAddress* at);

  /// Whether an unestablished connection has had a RETRY, which proves no keys.
  static bool has_answered(const Connection& connection);

  std::size_t connections() const { return by_id_.size(); }
  std::size_t half_open() const { return half_open_; }
  const EndpointCounters& counters() const { return counters_; }
  /// The bytes of messages that have not been acknowledged.
  std::uint64_t bytes_left() const;

 private:
  struct Answer {  ///< a packet that belongs to no connection
    SocketAddress to, from;
    std::vector<std::byte> bytes;
  };

  /// Removes dead connections when a call returns. close() leaves them to the next.
  struct Sweep {
    Endpoint& endpoint;
    ~Sweep() { endpoint.sweep(); }
  };

  static void count(std::uint64_t& counter) { ++counter; }

  // endpoint.cc
  Connection& add(std::unique_ptr<Connection> connection);
  void touch(Connection& connection, std::uint64_t now);
  void sweep();
  void heap_update(Connection& connection, std::uint64_t time);
  void heap_sift(std::size_t i);
  void heap_remove(Connection& connection);
  void queue(Connection& connection);
  void seal(Connection& connection, std::span<std::byte> packet);
  void receive_data(const SocketAddress& from, std::span<std::byte> packet, std::uint64_t now);
  void fill_train(Connection& connection, std::span<std::byte> out, std::uint64_t now,
                  Train* train);
  bool next_answer(std::span<std::byte> out, Train* train);

  // handshake.cc
  Parameters parameters() const;
  Cookie make_cookie(const SocketAddress& from, const Handshake& hello, std::uint64_t now_ms) const;
  bool cookie_is_right(const SocketAddress& from, const Handshake& hello, std::uint64_t now) const;
  Answer* new_answer(const SocketAddress& to);
  void answer(const SocketAddress& to, Handshake& h);
  void on_hello(const SocketAddress& from, const Handshake& h, std::span<std::byte> packet,
                std::uint64_t now);
  void accept(const SocketAddress& from, const Handshake& h, std::span<std::byte> packet,
              std::uint64_t now);
  void refuse(const SocketAddress& from, const Handshake& h, int err);
  void on_retry(const Handshake& h, std::uint64_t now);
  void on_accept(const SocketAddress& from, const Handshake& h, std::span<const std::byte> packet,
                 std::uint64_t now);
  void on_refuse(const Handshake& h, std::span<const std::byte> packet, std::uint64_t now);
  void on_reset(const Handshake& h, std::span<const std::byte> packet, std::uint64_t now);
  void send_reset(const SocketAddress& from, std::uint64_t id, std::uint64_t number,
                  std::uint64_t now);
  void seal_hello(Connection& connection);
  void establish_server(Connection& connection);
  std::size_t handshake_packet(Connection& connection, std::span<std::byte> out, std::uint64_t now);
  Connection* in_hello(std::uint64_t id);
  bool mac_is_right(const Handshake& h, std::span<const std::byte> packet);

  const Options options_;
  EndpointSink& sink_;
  std::function<std::uint64_t()> random_;
  Security* security_;
  const Mode mode_;
  std::uint64_t cookie_key_[2];
  EndpointCounters counters_;
  SocketAddress asked_at_;  ///< of the datagram under look: to which of our addresses it came
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> by_id_;
  std::unordered_map<std::uint64_t, Connection*> by_peer_id_;
  std::vector<Connection*> heap_;      ///< by heap_time_
  std::vector<Connection*> due_;       ///< of this on_timeout()
  std::vector<SocketAddress> silent_;  ///< for next_silent()
  RingQueue<Connection*> turns_;       ///< connections that may have something to send
  RingQueue<Answer> answers_;
  bool answered_ = false;  ///< the last train was an answer
  std::vector<Connection*> gone_;
  std::size_t half_open_ = 0;
  std::uint64_t reset_second_ = 0;
  unsigned resets_this_second_ = 0;
};

}  // namespace clan::udp
