// A network of endpoints in one process, under a virtual clock: everything that happens follows
// from one seed.
//
//   Node --transmit--> Path (rate, queue, loss, bursts, copies, damage, delay, size limit, cut) -->
//   Node::receive
//
// Nodes have traffic of their own (messages of all sizes on all channels, both ways), whose bytes
// know where they belong, so a receiver finds what is lost, repeated, displaced or damaged.
// Single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "link/udp/transport/endpoint.h"
#include "support/pattern.h"

namespace clan::test {

/// What a direction of a path does to packets. Times in ns; parts in a million.
struct PathModel {
  std::uint64_t delay = 50'000;
  std::uint64_t jitter = 0;            ///< a packet takes up to that much longer: reorders
  std::uint64_t bytes_per_second = 0;  ///< 0: no limit
  std::uint64_t queue_bytes = 1 << 20;
  std::uint64_t loss_ppm = 0, copy_ppm = 0, damage_ppm = 0;
  std::uint64_t burst_ppm = 0;      ///< a burst of loss begins at this packet
  std::uint64_t burst_packets = 0;  ///< and lasts for up to so many
  std::size_t mtu = 65'535;         ///< larger packets vanish
  bool cut = false;
};

/// How much a node sends over each connection.
struct Traffic {
  std::uint64_t seed = 1;
  std::uint32_t messages[udp::kChannels] = {20, 0, 0, 5};
  std::size_t most_bytes[udp::kChannels] = {200, 2000, 20'000, 200'000};
  std::uint64_t interval = 200'000;  ///< between two checks of what may be sent
};

struct NetworkCounters {
  std::uint64_t sent = 0, delivered = 0, lost = 0, copied = 0, damaged = 0, too_big = 0,
                queue_full = 0;
};

class Node;

class Network {
 public:
  explicit Network(std::uint64_t seed) : random_(seed) {}
  ~Network();

  std::uint64_t now() const { return now_; }
  Random& random() { return random_; }
  Node& add_node(const udp::Options& options, udp::Security* security = nullptr);
  Node& node(std::size_t i) { return *nodes_[i]; }
  std::size_t nodes() const { return nodes_.size(); }
  /// The path from node a to node b; that of a node to itself is not used.
  PathModel& path(std::size_t a, std::size_t b);
  /// Also forgets bursts and queues under way.
  void set_all_paths(const PathModel& model);
  /// All that goes to a node passes one port of that rate, with one queue.
  void share_arrivals(std::size_t node, std::uint64_t bytes_per_second, std::uint64_t queue_bytes);
  const NetworkCounters& counters() const { return counters_; }

  /// Runs until `done` or until the clock is at `end`. True: done. `done` is asked at every so many
  /// events.
  template <typename Done>
  bool run(std::uint64_t end, Done&& done, std::uint64_t every = 1) {
    for (std::uint64_t n = 0;; ++n) {
      if (n % every == 0 && done()) return true;
      if (!step(end)) return done();
      if (!problem_.empty()) return false;
    }
  }
  void run_for(std::uint64_t ns) {
    (void)run(now_ + ns, [] { return false; });
  }

  /// The first thing that went wrong; empty: nothing.
  const std::string& problem() const { return problem_; }
  void report(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  // For nodes.
  void send(std::size_t from, const udp::SocketAddress& to, std::span<const std::byte> packet);
  void wake_at(std::size_t node, std::uint64_t time);
  static udp::SocketAddress address_of(std::size_t node, std::uint16_t port = 1);

 private:
  struct Event {
    std::uint64_t time, order;
    std::size_t node, packet;  ///< packet kNone: a timer
    std::size_t from;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct PathState {
    PathModel model;
    std::uint64_t free_at = 0;
    std::uint64_t burst_left = 0;
  };
  static constexpr std::size_t kNone = ~std::size_t{0};

  bool step(std::uint64_t end);
  bool through_queue(PathState& path, std::size_t bytes, std::uint64_t* leaves);
  void deliver(std::size_t from, std::size_t to, PathState& path,
               std::span<const std::byte> packet);
  bool chance(std::uint64_t ppm) { return ppm != 0 && random_.below(1'000'000) < ppm; }

  std::uint64_t now_ = 1;
  std::uint64_t order_ = 0;
  std::uint64_t at_this_time_ = 0;
  Random random_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::vector<PathState>> paths_;
  std::vector<PathState> ports_;  ///< by node; without a rate: none
  std::priority_queue<Event> events_;
  std::vector<std::vector<std::byte>> packets_;
  std::vector<std::size_t> free_packets_;
  NetworkCounters counters_;
  std::string problem_;
};

/// One connection as its node sees it.
struct Talk final : udp::MessageSink {
  explicit Talk(Node& of) : node(of) {}
  bool on_fragment(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override;
  void on_message(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                  std::span<const std::byte> payload) override;
  void on_sent(std::uint8_t channel, std::uint64_t token) override;

  Node& node;
  udp::Connection* connection = nullptr;
  bool client = false;
  bool established = false;
  bool down = false;
  bool closing = false;
  int err = 0;
  std::size_t peer = 0;
  Traffic out;  ///< what we send
  Traffic in;   ///< what must come
  std::uint64_t next_out[udp::kChannels] = {};
  std::uint64_t next_in[udp::kChannels] = {};
  std::uint64_t confirmed = 0;
  struct Placing {
    std::uint8_t channel;
    std::uint64_t index;
    udp::RangeSet placed;
  };
  std::vector<Placing> placing;
  std::vector<std::vector<std::byte>> lent[udp::kChannels];  ///< payloads that were not copied
  bool received_all() const;
  bool sent_all() const;
};

class Node final : public udp::EndpointSink {
 public:
  Node(Network& network, std::size_t index, const udp::Options& options, udp::Security* security);

  Talk& connect(std::size_t to, const Traffic& out, const Traffic& in);
  void close(Talk& talk, int err = 0);
  /// As a process that was killed and started again: forgets everything.
  void restart();
  /// The node is at another address from now on.
  void move(std::uint16_t port) { port_ = port; }
  std::uint16_t port() const { return port_; }
  bool busy() const;  ///< one of our talks has something left to send or to receive
  std::vector<std::unique_ptr<Talk>>& talks() { return talks_; }
  udp::Endpoint& endpoint() { return *endpoint_; }
  void set_refusal(int err) { refusal_ = err; }
  /// The most that its endpoint has had allocated.
  std::int64_t most_memory() const { return most_memory_; }
  std::int64_t memory() const { return memory_; }
  void report(const std::string& what) { network_.report(what); }

  // The network.
  void receive(const udp::SocketAddress& from, std::span<std::byte> packet);
  void on_wake();
  void pump();
  std::uint64_t wake_ = udp::kNever;  ///< the network's note

  // EndpointSink
  int on_request(const udp::SocketAddress& from, std::span<const std::byte> greeting,
                 std::span<std::byte> answer, std::size_t* answer_bytes) override;
  void on_established(udp::Connection& c, std::span<const std::byte> greeting) override;
  void on_down(udp::Connection& c, int err) override;

 private:
  Talk& talk_of(udp::Connection& c) { return *static_cast<Talk*>(c.user); }
  void offer(Talk& talk);

  Network& network_;
  std::size_t index_;
  std::uint16_t port_ = 1;
  udp::Options options_;
  udp::Security* security_;
  std::unique_ptr<udp::Endpoint> endpoint_;
  std::vector<std::unique_ptr<Talk>> talks_;
  std::uint64_t look_at_ = udp::kNever;
  int refusal_ = 0;
  std::int64_t memory_ = 0, most_memory_ = 0;
};

/// The size and the header of message `index` of a channel of `traffic`.
std::size_t message_bytes(const Traffic& traffic, std::uint8_t channel, std::uint64_t index);

}  // namespace clan::test
