// SocketIo: PacketIo over UDP sockets, without privilege. Trains leave by GSO and arrive by GRO
// where the kernel has them (4.18, 5.0). IPv6 that takes IPv4, or IPv4 where there is no IPv6.
//
//   main     bound to the port, never connected: every peer's packets may come and go here
//   second   the same port, connected to the peer that most packets go to: the kernel finds route
//            and socket of its packets without a look-up, each way
//
// Both are read, mostly the one that had something last. A second socket that is left is
// disconnected, read empty, then closed. While its arrivals are short and alone, as in a ping-pong,
// it is plain: without GRO, asked for bytes only. A train ends that.
//
// The port is shared only while the second socket is being bound, and with processes of the same
// user that ask for it. docs/wire.md, Sockets.
#pragma once

#include <memory>
#include <vector>

#include "base/fd.h"
#include "link/udp/io/connected_peer_vote.h"
#include "link/udp/io/datagram_socket.h"
#include "link/udp/io/packet_io.h"

namespace clan::udp {

class SocketIo final : public PacketIo {
 public:
  struct Options {
    bool segment_offload = true;  ///< false: as a kernel without GSO and GRO
  };
  struct Counters {
    std::uint64_t joined = 0, left = 0;  ///< second sockets
    std::uint64_t refused = 0;           ///< that could not be made
    std::uint64_t strays = 0;            ///< packets of its peer that came by the main one
    std::uint64_t asked = 0;             ///< a socket for a packet: a system call each
    std::uint64_t plain = 0;             ///< how often the second one has become plain
  };

  /// Sockets bound to `local`; port 0: any.
  static Result<std::unique_ptr<SocketIo>> open(const SocketAddress& local, const Options& options);

  Sent send(const Train& train, std::span<const std::byte> bytes) override;
  std::size_t receive(std::span<Arrival> out) override;
  bool next_refusal(SocketAddress* to) override;
  void doubt(const SocketAddress& peer) override;
  void woken() override {
    look_at_all_ = true;
    in_a_row_ = false;
  }
  std::size_t sources(std::span<pollfd> out) const override;
  void woken_by(std::span<const pollfd> ready) override;
  void want_room(bool on) override;
  /// From now on packets arrive one by one: the kernel makes none of several.
  void stop_gro();
  /// A set of epoll, to which other descriptors may be added.
  int descriptor() const override { return ready_.get(); }
  bool arm(bool on) override;
  SocketAddress local_address() const override { return local_; }
  std::uint32_t packets_of_room() const override { return packets_of_room_; }
  const Counters& counters() const { return counters_; }
  /// Which peer has the second socket, if one has.
  const SocketAddress* connected_peer() const { return connected() ? &peer_ : nullptr; }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = 65'536;
  static constexpr std::size_t kLoneBytes = 1024;  ///< shorter arrivals are passed on at once
  static constexpr unsigned kAlone = 64, kMostAlone = 8192;

  SocketIo() = default;
  Status prepare(const SocketAddress& local, const Options& options);
  bool connected() const { return second_ && !leaving_; }
  Status watch(const DatagramSocket& socket, int how) const;
  void ask_for_room();
  bool waits_at(const DatagramSocket& socket) const;
  void note_full(bool second);
  std::size_t look(std::span<Arrival> out), look_at_other(std::span<Arrival> out);
  std::size_t receive_from(DatagramSocket& socket, std::span<Arrival> out);
  std::size_t receive_from_second(std::span<Arrival> out);
  void set_plain(bool on);
  std::size_t receive_from_main(std::span<Arrival> out);
  Sent send_by(DatagramSocket& socket, const SocketAddress* to, std::span<const std::byte> bytes,
               std::size_t segment, const SocketAddress* from);
  bool can_join(const SocketAddress& peer) const;
  Status join(const SocketAddress& peer, const SocketAddress& source);
  void leave();
  void close_second();

  DatagramSocket main_, second_;
  Fd ready_;  ///< an epoll set of both, if it is armed
  bool armed_ = true;
  bool leaving_ = false;
  SocketAddress peer_, source_;  ///< of the second socket; source_ all 0: the routes' choice
  ConnectedPeerVote vote_;
  bool second_first_ = false;   ///< it had something last
  unsigned looks_ = 0;          ///< at one of the two, since the last at the other
  bool look_at_all_ = false;    ///< a read that finds nothing at one reads the other
  bool in_a_row_ = false;       ///< the last look has found something
  bool fresh_ = false;          ///< main may have packets of that peer that came before
  unsigned reads_ = 0;          ///< of the socket that is to be empty, since join() or leave()
  unsigned strays_ = 0;         ///< of this peer
  bool plain_ = false;          ///< the second has no GRO, and is asked for bytes alone
  bool emptied_ = false;        ///< nothing is in the second of before it was connected
  unsigned alone_ = 0;          ///< short packets by the second that came alone, of late
  unsigned patience_ = kAlone;  ///< so many make it plain
  bool want_room_ = false;
  bool second_is_full_ = false;  ///< the train that waits for room goes by that one
  bool trains_ = false;          ///< leave in one call
  bool gro_ = false;             ///< on arrivals
  std::uint32_t packets_of_room_ = 0;
  SocketAddress local_;
  std::vector<std::byte> slots_;
  Counters counters_;
};

}  // namespace clan::udp
