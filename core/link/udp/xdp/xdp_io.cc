#include "link/udp/xdp/xdp_io.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/wait_call.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"

namespace clan::udp {
namespace {

/// At the lanes, for one at the sockets: that is two system calls, and the others are none.
constexpr unsigned kLooksBetween = 256;

constexpr std::uint64_t kRefusedNs = 2'000'000'000;  ///< a device is left alone for so long
constexpr std::uint64_t kRefusedLongNs = 3'600 * 1'000'000'000ull;  ///< where it will not change
constexpr std::uint64_t kAskedAgainNs = 1'000'000'000;
constexpr std::size_t kMostRefusals = 64;

// Rights that we lack, or what the device or the kernel does not do.
bool will_stay(int err) {
  return err == EOPNOTSUPP || err == EPERM || err == EACCES || err == EINVAL;
}

}  // namespace

// --- life ----------------------------------------------------------------------------------------

Result<std::unique_ptr<XdpIo>> XdpIo::open(std::unique_ptr<SocketIo>& sockets) {
  auto kernel = Rtnetlink::open();
  if (!kernel) return kernel.error();
  return std::unique_ptr<XdpIo>(new XdpIo(std::move(sockets), std::move(*kernel)));
}

XdpIo::XdpIo(std::unique_ptr<SocketIo> sockets, Rtnetlink kernel)
    : sockets_(std::move(sockets)), owner_(::getpid()), kernel_(std::move(kernel)) {}

// A forked child closes what it has of the sockets and programs, which stay the parent's.
XdpIo::~XdpIo() {
  if (::getpid() != owner_) return;
  for (auto& lane : lanes_) lane->program.release(local_address().port);
}

Status XdpIo::watch(int fd, int how) const {
  epoll_event event{};
  event.events = EPOLLIN;
  return sys::epoll_ctl(descriptor(), how, fd, &event) == 0 ? Status() : errno_error("epoll_ctl");
}

bool XdpIo::arm(bool on) {
  if (armed_ == on) return true;
  bool done = sockets_->arm(on);
  for (auto& lane : lanes_) {
    done = watch(lane->socket->fd(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL) && done;
  }
  armed_ = on && done;
  if (on && !done) {
    (void)sockets_->arm(false);
    for (auto& lane : lanes_) (void)watch(lane->socket->fd(), EPOLL_CTL_DEL);
  }
  return armed_ == on;
}

void XdpIo::want_room(bool on) {
  if (std::exchange(want_room_, on) != on) ask_for_room();
}

// Where there was none: the sockets have some while a lane has not, and nobody would sleep.
void XdpIo::ask_for_room() { sockets_->want_room(want_room_ && !lane_is_full_); }

PacketIo::Sent XdpIo::note(Sent sent, bool by_lane) {
  const bool moved = sent == Sent::kLater && std::exchange(lane_is_full_, by_lane) != by_lane;
  if (moved && want_room_) ask_for_room();
  return sent;
}

void XdpIo::woken() {
  look_at_all_ = true;
  sockets_->woken();
}

std::uint32_t XdpIo::packets_of_room() const {
  return std::min(sockets_->packets_of_room(), XdpSocket::kReceive);
}

// --- lanes ---------------------------------------------------------------------------------------

Result<std::unique_ptr<XdpIo::Lane>> XdpIo::make_lane(const NetDevice& device, const Ipv4& ip) {
  auto lane = std::make_unique<Lane>();
  lane->device = device;
  lane->ip = ip;
  lane->address = socket_address_of(ip, 0);
  auto socket = XdpSocket::open(device.index);
  if (!socket) return socket.error();
  lane->socket = std::move(*socket);
  // Numbers of devices are a namespace's: that of our sockets is asked, and the thread's is meant.
  if (!same_network(lane->socket->fd(), kernel_.fd()))
    return Error{EXDEV, "the thread is in another network namespace"};
  using Where = XdpProgram::Where;
  // In veth's driver it takes segmentation offload from all packets of the device (docs/wire.md).
  const bool native = !device.veth;
  auto program = XdpProgram::join(kernel_, device.index, native ? Where::kNative : Where::kGeneric);
  if (!program && native && program.error().err != EBUSY)
    program = XdpProgram::join(kernel_, device.index, Where::kGeneric);
  if (!program) return program.error();
  lane->program = std::move(*program);
  const auto now = kernel_.device(device.index);
  lane->native = now && now->xdp_native;
  if (!lane->native && device.mtu < kBasePacket + kIpHeaders)
    return Error{EMSGSIZE, "the device's packets are smaller than 1200 bytes"};
  const std::uint16_t port = local_address().port;
  if (auto s = lane->program.claim(port, ip, lane->socket->queue(), lane->socket->fd()); !s)
    return s.error();
  if (auto s = armed_ ? watch(lane->socket->fd(), EPOLL_CTL_ADD) : Status(); !s) {
    lane->program.release(port);
    return s.error();
  }
  keep_apart(*lane);
  return lane;
}

// In the kernel's stack the program comes behind GRO, and would take merged packets for one
// datagram. If the sockets do not ask for GRO there is none.
void XdpIo::keep_apart(const Lane& lane) {
  if (!lane.native && kernel_.merges(lane.device.index)) sockets_->stop_gro();
}

// Said once, but tried again: another process may have the device's queues for now. Not at once: a
// lane costs megabytes, and system calls under the node's mutex.
void XdpIo::refuse(int index, const Error& why) {
  if (refused_.size() >= kMostRefusals) refused_.clear();
  const std::uint64_t wait_ns = will_stay(why.err) ? kRefusedLongNs : kRefusedNs;
  if (refused_.insert_or_assign(index, monotonic_ns() + wait_ns).second) {
    CLAN_WARN("packets at device %d go by UDP sockets, not by AF_XDP: %s", index,
              why.message().c_str());
  }
}

XdpIo::Lane* XdpIo::lane_at(int index, const Ipv4& ip) {
  const auto refusal = refused_.find(index);
  if (refusal != refused_.end() && monotonic_ns() < refusal->second) return nullptr;
  const auto device = kernel_.device(index);
  if (!device || !device->ethernet || !device->up) return nullptr;
  for (auto& lane : lanes_) {
    if (lane->device.index != index || lane->broken) continue;
    // One address of each device: peers that reach us by another one do so by the UDP sockets.
    if (lane->ip != ip) return nullptr;
    lane->device = *device;
    return lane.get();
  }
  if (lanes_.size() >= kMostLanes) return nullptr;
  auto lane = make_lane(*device, ip);
  if (!lane) {
    refuse(index, lane.error());
    return nullptr;
  }
  refused_.erase(index);
  CLAN_INFO("UDP port %u takes packets of device %d by AF_XDP", local_address().port, index);
  lanes_.push_back(std::move(*lane));
  look_at_all_ = true;
  return lanes_.back().get();
}

// Not while arrivals are processed: they are in the lanes' memory.
void XdpIo::drop_broken_lanes() {
  any_broken_ = false;
  last_way_ = nullptr;
  for (auto& [peer, way] : ways_) {
    if (way.lane != nullptr && way.lane->broken) way.lane = nullptr;
  }
  std::erase_if(lanes_, [&](const std::unique_ptr<Lane>& lane) {
    if (!lane->broken) return false;
    if (armed_) (void)watch(lane->socket->fd(), EPOLL_CTL_DEL);
    lane->program.release(local_address().port);
    return true;
  });
}

// --- ways ----------------------------------------------------------------------------------------

std::size_t XdpIo::Hash::operator()(const SocketAddress& a) const {
  std::uint32_t ip;
  std::memcpy(&ip, a.ip.data() + 12, sizeof ip);
  const std::uint64_t mixed = (std::uint64_t{ip} << 16 | a.port) * 0x9e37'79b9'7f4a'7c15u;
  return mixed >> 32;
}

PacketPath XdpIo::path_to(const SocketAddress& peer) const {
  const auto it = ways_.find(peer);
  if (it == ways_.end() || it->second.lane == nullptr || it->second.lane->broken)
    return PacketPath::kSockets;
  return it->second.lane->native ? PacketPath::kXdpDriver : PacketPath::kXdpStack;
}

XdpIo::Way* XdpIo::way_to(const SocketAddress& peer) {
  auto it = ways_.find(peer);
  Way* way = it == ways_.end() ? earn(peer) : &it->second;
  if (way == nullptr) return nullptr;
  if (way->stale) {
    if (asked_ >= kMostAsked) return way;  // as it was; the kernel is asked under the node's mutex
    ++asked_;
    way->stale = false;
    if (!find_way(peer, way)) way->lane = nullptr;
  }
  last_peer_ = peer;
  return last_way_ = way;
}

XdpIo::Way* XdpIo::earn(const SocketAddress& peer) {
  if (!is_ipv4(peer) || peer.scope != 0) return nullptr;
  const SocketAddress local = local_address();
  if (!is_ipv4(local) && !is_wildcard(local)) return nullptr;
  ConnectedPeerVote& vote = vote_of(peer);
  if (!vote.has_votes()) vote.begin_with(peer);
  vote.note(peer);
  if (!vote.is(peer)) return nullptr;
  if (ways_.size() >= kMostWays) {
    ways_.clear();
    last_way_ = nullptr;
  }
  return &ways_[peer];
}

bool XdpIo::find_way(const SocketAddress& peer, Way* way) {
  const SocketAddress local = local_address();
  const Ipv4 to = ipv4_of(peer);
  const auto route = kernel_.route(to, is_wildcard(local) ? Ipv4{} : ipv4_of(local));
  if (!route) return false;
  const auto mac = kernel_.neighbour(route->device, route->next);
  if (!mac) return false;
  way->lane = lane_at(route->device, route->source);
  if (way->lane == nullptr) return false;
  way->header = FrameHeader(way->lane->device.mac, *mac, route->source, local.port, to, peer.port);
  return true;
}

void XdpIo::forget_ways() {
  last_way_ = nullptr;
  for (auto& [peer, way] : ways_) way.stale = true;
  for (auto& lane : lanes_) {
    if (lane->program.attached() && kernel_.device(lane->device.index)) {
      keep_apart(*lane);
      continue;
    }
    lane->broken = any_broken_ = true;
  }
}

void XdpIo::doubt(const SocketAddress& peer) {
  sockets_->doubt(peer);
  if (ways_.erase(peer) == 0) return;
  last_way_ = nullptr;
  vote_of(peer).begin_with(peer);
  vote_of(peer).distrust();
}

// --- sending -------------------------------------------------------------------------------------

PacketIo::Sent XdpIo::send(const Train& train, std::span<const std::byte> bytes) {
  Way* way = last_way_ != nullptr && train.to == last_peer_ ? last_way_ : way_to(train.to);
  if (way != nullptr && way->lane != nullptr && way->leaves_from(train.from)) [[likely]] {
    const std::size_t segment = std::min(train.segment, bytes.size());
    if (auto sent = send_frames(*way, bytes, segment)) return note(*sent, true);
  }
  return note(sockets_->send(train, bytes), false);
}

// Whether a train goes by frames; notes it if it is too large.
bool XdpIo::fits(Way& way, std::size_t bytes, std::size_t segment) {
  if (segment == 0) return false;
  const bool small = bytes <= segment && segment <= kBasePacket;
  if (segment + kFrameHeader > kLongestFrame || (!way.lane->native && !small)) {
    way.settling = kSettle;
    return false;
  }
  if (way.settling == 0) [[likely]]
    return true;
  --way.settling;
  return false;
}

// Nothing: the sockets have to.
std::optional<PacketIo::Sent> XdpIo::send_frames(Way& way, std::span<const std::byte> bytes,
                                                 std::size_t segment) {
  Lane& lane = *way.lane;
  if (lane.broken || !fits(way, bytes.size(), segment)) return std::nullopt;
  if (segment + kIpHeaders > lane.device.mtu) return Sent::kTooBig;
  if (!lane.socket->has_room((bytes.size() + segment - 1) / segment)) return Sent::kLater;
  for (std::size_t at = 0; at < bytes.size(); at += segment) {
    const auto payload = bytes.subspan(at, std::min(segment, bytes.size() - at));
    const std::size_t frame = kFrameHeader + payload.size();
    way.header.write(lane.socket->next_frame().first(frame), payload);
    lane.socket->post(frame);
  }
  if (!lane.socket->push()) lane.broken = any_broken_ = true;  // what was in it is lost
  return Sent::kSent;
}

// --- receiving -----------------------------------------------------------------------------------

std::size_t XdpIo::receive_frames(std::span<Arrival> out) {
  constexpr std::size_t kBatch = 8;
  std::array<std::span<std::byte>, kBatch> frames;
  std::size_t count = 0;
  // Another one first each time, or a lane that always has something would keep the others waiting.
  ++first_lane_;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    Lane* const lane = lanes_[(first_lane_ + l) % lanes_.size()].get();
    const std::size_t room = std::min(kBatch, out.size() - count);
    const std::size_t n = lane->socket->take(std::span(frames).first(room));
    for (std::size_t i = 0; i < n; ++i) {
      ParsedFrame parsed;
      if (!parse_frame(frames[i], lane->ip, local_address().port, &parsed)) continue;
      out[count++] = {parsed.from, parsed.payload, parsed.payload.size(), lane->address};
    }
  }
  return count;
}

std::size_t XdpIo::receive_by_sockets(std::span<Arrival> out) {
  const std::size_t n = sockets_->receive(out);
  if (n > 0) by_sockets_ = true;
  return n;
}

std::size_t XdpIo::receive(std::span<Arrival> out) {
  for (auto& lane : lanes_) lane->socket->give_back();
  if (any_broken_) [[unlikely]]
    drop_broken_lanes();
  const bool turn = std::exchange(look_at_all_, false) || ++looks_ >= kLooksBetween;
  if (turn) {
    looks_ = asked_ = 0;
    const std::uint64_t now = monotonic_ns();
    if (now - asked_at_ >= kAskedAgainNs) {
      asked_at_ = now;
      forget_ways();
    }
    // First, or lanes that always have something would keep them waiting.
    if (const std::size_t n = receive_by_sockets(out); n > 0) return n;
  }
  if (const std::size_t n = receive_frames(out); n > 0) {
    by_sockets_ = false;
    return n;
  }
  return !turn && (by_sockets_ || lanes_.empty()) ? receive_by_sockets(out) : 0;
}

}  // namespace clan::udp
