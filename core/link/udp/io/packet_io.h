// PacketIo: all that touches the network, as an interface: UDP sockets (socket_io.h), AF_XDP beside
// them (xdp_io.h). Trains of equal packets out, batches of arrivals in, a descriptor to sleep on.
// Nothing waits. One thread sends and one receives at a time.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "clan/face/path_page.h"
#include "clan/result.h"
#include "link/udp/io/datagram_socket.h"
#include "link/udp/transport/endpoint.h"
#include "link/udp/wire/socket_address.h"

namespace clan::udp {

class PacketIo {
 public:
  using Sent = udp::Sent;

  virtual ~PacketIo() = default;
  /// Sends, or loses. kLater: call want_room(), offer it again when the descriptor is readable.
  virtual Sent send(const Train& train, std::span<const std::byte> bytes) = 0;
  /// What has come, at most out.size() arrivals. 0: nothing.
  virtual std::size_t receive(std::span<Arrival> out) = 0;
  /// Where packets went of which a host has said since that nobody has the port. False: nowhere.
  virtual bool next_refusal(SocketAddress*) { return false; }
  /// Packets to that address go unanswered: what is kept for it alone may be out of date.
  virtual void doubt(const SocketAddress&) {}
  /// Readable when something has come, or there is room again and want_room() has asked for it.
  virtual int descriptor() const = 0;
  /// Whether anybody may sleep on the descriptor or sources(), as at first. If not, they may show
  /// nothing, and each packet costs 0.2 us less. False: they cannot be slept on.
  virtual bool arm(bool) { return true; }
  virtual void want_room(bool) {}
  /// Whether the descriptor reports room for what was kLater; else it is offered again in a while.
  virtual bool tells_of_room() const { return true; }
  /// A sleeper has woken: receive() begins where something came last, then checks all.
  virtual void woken() {}
  /// What is behind the descriptor, to sleep on directly: one wake-up less. Returns how many of
  /// `out` it fills. It may change in any other call, which then calls changed().
  virtual std::size_t sources(std::span<pollfd> out) const {
    out[0] = {descriptor(), POLLIN, 0};
    return 1;
  }
  static constexpr std::size_t kMostSources = 2;
  /// As woken(), and which of sources() were ready: the next receive() looks there only.
  virtual void woken_by(std::span<const pollfd>) { woken(); }
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }
  virtual SocketAddress local_address() const = 0;
  /// Which way packets to that peer leave now, of those that may.
  virtual PacketPath path_to(const SocketAddress&) const { return PacketPath::kSockets; }
  /// Packets of the least size that may be waiting here: what peers may have under way.
  virtual std::uint32_t packets_of_room() const = 0;

 protected:
  void changed() const {
    if (changed_) changed_();
  }

 private:
  std::function<void()> changed_;
};

/// Moves packets between an endpoint and its network.
class PacketPump {
 public:
  PacketPump(Endpoint& endpoint, PacketIo& io) : endpoint_(endpoint), io_(io) {}

  /// Takes what has come, runs due timers, sends what may be sent. True: there was anything.
  bool run(std::uint64_t now) {
    const bool some = take(now);
    return send(now) || some;
  }
  /// The same for a thread that looks again soon. Its first arrival mostly leads to an answer: so
  /// acknowledgements and credit leave with that, or when a look finds nothing more.
  bool look(std::uint64_t now) {
    const bool some = take(now);
    if (some && ++held_ < kMostHeld) return true;
    held_ = 0;
    return send(now) || some;
  }
  /// Sends what may be sent.
  bool send(std::uint64_t now) {
    bool any = false;
    has_more_ = false;
    tried_at_ = now;
    for (int i = 0; i < kMostTrains; ++i) {
      if (train_.bytes == 0) train_ = endpoint_.transmit(buffer_, now);
      if (train_.bytes == 0) return any;
      const PacketIo::Sent sent = io_.send(train_, std::span(buffer_).first(train_.bytes));
      if (sent == PacketIo::Sent::kLater) return any;
      any = true;
      if (sent == PacketIo::Sent::kTooBig) endpoint_.on_too_big(train_.to, train_.segment, now);
      train_.bytes = 0;
    }
    has_more_ = true;
    return true;
  }
  /// Whether a train waits for room in the socket.
  bool waits_for_room() const { return train_.bytes != 0; }
  /// The last call sent all that one may, and there may be more, which nothing reports.
  bool has_more() const { return has_more_; }
  /// When to run again if nothing comes. While a train waits for room, what is due stays due until
  /// the descriptor reports room, or that time.
  std::uint64_t next_timeout() const {
    if (has_more_) return 0;
    const std::uint64_t at = endpoint_.next_timeout();
    if (!waits_for_room()) [[likely]]
      return at;
    const std::uint64_t again = tried_at_ + kTryAgain;
    return io_.tells_of_room() ? std::max(at, again) : again;
  }

 private:
  static constexpr std::uint64_t kTryAgain = 1'000'000;  ///< ns
  static constexpr int kMostRefusals = 16;
  static constexpr int kMostTrains = 16;  ///< in one go: arrivals wait meanwhile
  static constexpr int kMostHeld = 4;     ///< looks in a row that find something and send nothing

  bool take(std::uint64_t now) {
    const bool some = receive(now);
    if (now >= endpoint_.next_timeout()) {
      endpoint_.on_timeout(now);
      SocketAddress silent;
      while (endpoint_.next_silent(&silent)) io_.doubt(silent);
    }
    return some;
  }

  bool receive(std::uint64_t now) {
    const std::size_t n = io_.receive(arrivals_);
    for (std::size_t i = 0; i < n; ++i) {
      const Arrival& a = arrivals_[i];
      for (std::size_t at = 0; at < a.bytes.size(); at += a.segment) {
        endpoint_.receive(a.from, a.bytes.subspan(at, std::min(a.segment, a.bytes.size() - at)),
                          now, a.at);
      }
    }
    SocketAddress refused;
    for (int i = 0; i < kMostRefusals && io_.next_refusal(&refused); ++i) {
      endpoint_.on_refused(refused, now);
    }
    return n > 0;
  }

  Endpoint& endpoint_;
  PacketIo& io_;
  Train train_;
  std::uint64_t tried_at_ = 0;  ///< when it last sent, or would have
  bool has_more_ = false;
  int held_ = 0;
  std::array<Arrival, 8> arrivals_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(Endpoint::kTrainBytes);
};

}  // namespace clan::udp
