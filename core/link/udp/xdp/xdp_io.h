// XdpIo: PacketIo over AF_XDP sockets, beside UDP sockets at the same port.
//
//   send --+-- a peer that many packets go to, by a device of Ethernet --> [ lane ] --> device
//          +-- all others; packets that fit no frame; whatever has no lane --> SocketIo
//          +-- trains and full packets by a device whose driver does not run the program
//          +-- others for a while after what was too large: they must not overtake each other
//
//   lane   one device: an AF_XDP socket at one of its queues, and the share in the device's program
//          that brings it the packets to our port there (xdp_program.h)
//   way    one peer: its lane and the header of its frames
//
// The UDP sockets stay: they hold the port, and receive what the program leaves to the kernel. A
// peer earns its way by packets, unlike strangers' handshakes. A way in use is asked for anew each
// second, a few at a time, and dropped when the peer does not answer. Not thread-safe.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "link/udp/io/connected_peer_vote.h"
#include "link/udp/io/packet_io.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/xdp/rtnetlink.h"
#include "link/udp/xdp/xdp_program.h"
#include "link/udp/xdp/xdp_socket.h"

namespace clan::udp {

class XdpIo final : public PacketIo {
 public:
  /// Takes the sockets over, unless it fails. After XdpProgram::possible().
  static Result<std::unique_ptr<XdpIo>> open(std::unique_ptr<SocketIo>& sockets);
  ~XdpIo() override;

  Sent send(const Train& train, std::span<const std::byte> bytes) override;
  std::size_t receive(std::span<Arrival> out) override;
  bool next_refusal(SocketAddress* to) override { return sockets_->next_refusal(to); }
  void doubt(const SocketAddress& peer) override;
  void woken() override;
  void want_room(bool on) override;
  /// A lane is writable while frames are in the ring, and its frames may all be with the device.
  bool tells_of_room() const override { return !lane_is_full_; }
  int descriptor() const override { return sockets_->descriptor(); }
  bool arm(bool on) override;
  SocketAddress local_address() const override { return sockets_->local_address(); }
  std::uint32_t packets_of_room() const override;
  PacketPath path_to(const SocketAddress& peer) const override;

 private:
  static constexpr std::size_t kVotes = 64;
  static constexpr unsigned kSettle = 64;  ///< trains after one too large for frames
  static constexpr std::size_t kMostWays = 1024;
  static constexpr std::size_t kMostLanes = 8;
  static constexpr unsigned kMostAsked = 16;  ///< ways, between two turns of receive()

  struct Lane {
    NetDevice device;
    Ipv4 ip{};
    SocketAddress address;  ///< the same, without a port
    XdpProgram program;
    std::unique_ptr<XdpSocket> socket;
    bool native = false;  ///< takes packets of any size
    bool broken = false;
  };
  struct Way {
    Lane* lane = nullptr;  ///< null: by the UDP sockets for now
    FrameHeader header;
    bool stale = true;      ///< to be asked for anew
    unsigned settling = 0;  ///< how many more will, after one too large for frames has
    /// Its frames may carry packets with that source.
    bool leaves_from(const SocketAddress& source) const {
      return source == SocketAddress{} || source == lane->address;
    }
  };
  struct Hash {
    std::size_t operator()(const SocketAddress& a) const;
  };

  XdpIo(std::unique_ptr<SocketIo> sockets, Rtnetlink kernel);
  Way* way_to(const SocketAddress& peer);
  Way* earn(const SocketAddress& peer);
  ConnectedPeerVote& vote_of(const SocketAddress& peer) { return votes_[Hash()(peer) % kVotes]; }
  bool find_way(const SocketAddress& peer, Way* way);
  Lane* lane_at(int device, const Ipv4& ip);
  void refuse(int device, const Error& why);
  Result<std::unique_ptr<Lane>> make_lane(const NetDevice& device, const Ipv4& ip);
  void keep_apart(const Lane& lane);
  static bool fits(Way& way, std::size_t bytes, std::size_t segment);
  std::optional<Sent> send_frames(Way& way, std::span<const std::byte> bytes, std::size_t segment);
  std::size_t receive_frames(std::span<Arrival> out);
  std::size_t receive_by_sockets(std::span<Arrival> out);
  Status watch(int fd, int how) const;
  void ask_for_room();
  Sent note(Sent sent, bool by_lane);
  void forget_ways();
  void drop_broken_lanes();

  std::unique_ptr<SocketIo> sockets_;
  const pid_t owner_;
  Rtnetlink kernel_;
  std::uint64_t asked_at_ = 0;  ///< when all ways last became stale
  unsigned asked_ = 0;          ///< ways, since the last turn of receive()
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::map<int, std::uint64_t> refused_;  ///< devices that cannot, and when each is tried again
  std::unordered_map<SocketAddress, Way, Hash> ways_;
  SocketAddress last_peer_;  ///< of the last train, and its way
  Way* last_way_ = nullptr;
  /// Which peers have earned a way. Those that share an entry take votes, but not distrust.
  std::array<ConnectedPeerVote, kVotes> votes_;
  std::size_t first_lane_ = 0;  ///< that the last receive() read
  unsigned looks_ = 0;          ///< since the last at the sockets
  bool by_sockets_ = true;      ///< they had something last
  bool look_at_all_ = true;
  bool want_room_ = false;
  bool armed_ = true;
  bool lane_is_full_ = false;  ///< the train that waits for room goes by a lane
  bool any_broken_ = false;
};

}  // namespace clan::udp
