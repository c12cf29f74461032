#include "link/udp/io/socket_io.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/wait_call.h"

namespace clan::udp {
namespace {

constexpr int kBufferBytes = 4 << 20;   ///< asked for; see DatagramSocket::open()
constexpr std::size_t kTruesize = 832;  ///< what the kernel charges for a small datagram
constexpr unsigned kLooks = 8;          ///< at one socket, before the other is read
constexpr unsigned kMostStrays = 16;    ///< of the second socket's peer, at the main one
constexpr unsigned kMostReads = 4096;   ///< of a socket that is to be empty

using Family = DatagramSocket::Family;

SocketAddress loopback(bool ipv4, std::uint16_t port) {
  SocketAddress a;
  a.ip[15] = 1;
  a.port = port;
  if (ipv4) a.ip[10] = a.ip[11] = 0xff, a.ip[12] = 127;
  return a;
}

}  // namespace

Result<std::unique_ptr<SocketIo>> SocketIo::open(const SocketAddress& local,
                                                 const Options& options) {
  std::unique_ptr<SocketIo> io(new SocketIo);
  if (auto s = io->prepare(local, options); !s) return s.error();
  return io;
}

Status SocketIo::prepare(const SocketAddress& local, const Options& options) {
  auto made = DatagramSocket::open(Family::kBoth, kBufferBytes);
  if (!made) made = DatagramSocket::open(Family::kIpv4, kBufferBytes);
  if (!made) return made.error();
  main_ = std::move(*made);
  trains_ = gro_ = options.segment_offload && main_.use_gro(true);
  const std::size_t room = main_.receive_buffer() / kTruesize;
  packets_of_room_ = static_cast<std::uint32_t>(std::max<std::size_t>(32, room));
  (void)main_.tell_destination();  // without it the kernel chooses where answers come from
  if (auto s = main_.bind(local); !s) return s;
  auto bound = main_.local_address();
  if (!bound) return bound.error();
  local_ = *bound;
  ready_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!ready_) return errno_error("epoll_create1");
  if (auto s = watch(main_, EPOLL_CTL_ADD); !s) return s;
  slots_.resize(kSlots * kSlotBytes);
  return {};
}

Status SocketIo::watch(const DatagramSocket& socket, int how) const {
  epoll_event event{};
  event.events = waits_at(socket) ? EPOLLIN | EPOLLOUT : EPOLLIN;
  return sys::epoll_ctl(ready_.get(), how, socket.fd(), &event) == 0 ? Status()
                                                                     : errno_error("epoll_ctl");
}

bool SocketIo::arm(bool on) {
  if (armed_ == on) return true;
  const int how = on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
  const bool done = watch(main_, how) && (!second_ || watch(second_, how));
  armed_ = on && done;
  if (on && !done) (void)watch(main_, EPOLL_CTL_DEL);  // both or none
  return armed_ == on;
}

// Room is asked for where there was none: the other one always has some, and nobody would sleep.
bool SocketIo::waits_at(const DatagramSocket& socket) const {
  return want_room_ && (&socket == &second_) == second_is_full_;
}

void SocketIo::note_full(bool second) {
  if (std::exchange(second_is_full_, second) == second || !want_room_) return;
  ask_for_room();
}

void SocketIo::want_room(bool on) {
  if (std::exchange(want_room_, on) != on) ask_for_room();
}

void SocketIo::ask_for_room() {
  if (armed_) {
    (void)watch(main_, EPOLL_CTL_MOD);
    if (second_) (void)watch(second_, EPOLL_CTL_MOD);
  }
  changed();
}

std::size_t SocketIo::sources(std::span<pollfd> out) const {
  const auto events = [this](const DatagramSocket& socket) {
    return static_cast<short>(waits_at(socket) ? POLLIN | POLLOUT : POLLIN);
  };
  out[0] = {main_.fd(), events(main_), 0};
  if (second_) out[1] = {second_.fd(), events(second_), 0};
  return second_ ? 2 : 1;
}

void SocketIo::woken_by(std::span<const pollfd> ready) {
  bool main = false, second = false;
  for (const pollfd& p : ready) {
    if (p.revents == 0) continue;
    main = main || p.fd == main_.fd();
    second = second || (second_ && p.fd == second_.fd());
  }
  if (main == second) {
    woken();  // both, or one that has been closed meanwhile
    return;
  }
  second_first_ = second;
  looks_ = 0;  // the other one has just been read
  in_a_row_ = false;
}

void SocketIo::stop_gro() {
  if (!std::exchange(gro_, false)) return;
  (void)main_.use_gro(false);
  if (second_) (void)second_.use_gro(false);
}

// --- the second socket ---------------------------------------------------------------------------

// A link-local address would bind it to an interface; main cannot reach the other family.
bool SocketIo::can_join(const SocketAddress& peer) const {
  if (leaving_ || peer.scope != 0) return false;
  return is_wildcard(local_) || is_ipv4(local_) == is_ipv4(peer);
}

// connect() fixes the source address by the look-up that gives each packet of the main socket its
// own. A wildcard is bound as a wildcard again, for the same result; or to the packets' source.
Status SocketIo::join(const SocketAddress& peer, const SocketAddress& source) {
  const bool ipv4 = is_ipv4(peer);
  auto made = DatagramSocket::open(ipv4 ? Family::kIpv4 : Family::kIpv6, kBufferBytes);
  if (!made) return made.error();
  if (!same_network(made->fd(), main_.fd()))
    return Error{EXDEV, "the thread is in another network namespace"};
  if (gro_ && !made->use_gro(true)) return Error{EOPNOTSUPP, "GRO on one socket only"};
  SocketAddress local = local_;
  if (!is_wildcard(source))
    local.ip = source.ip;
  else if (is_wildcard(local) && ipv4)
    local.ip = loopback(true, 0).ip, std::fill_n(local.ip.begin() + 12, 4, 0);
  // 1. The port may be shared: with a process of this user, and only if that asks for it.
  if (!main_.share_port(true) || !made->share_port(true)) return errno_error("SO_REUSEPORT");
  const Status bound = made->bind(local);
  // 2. It is ours alone again. Both must say so: the kernel asks the first at the port.
  (void)main_.share_port(false);
  (void)made->share_port(false);
  if (!bound) return bound;
  // 3. Until here packets of any peer may come to the second socket, from here on its own only.
  if (auto s = made->connect(peer); !s) return s;
  const auto at = made->peer_address();
  if (!at || !(*at == peer))
    return Error{EADDRNOTAVAIL, "something else than that peer was connected"};
  if (armed_) {
    if (auto s = watch(*made, EPOLL_CTL_ADD); !s) return s;
  }
  second_ = std::move(*made);
  peer_ = peer;
  source_ = source;
  strays_ = reads_ = alone_ = 0;
  patience_ = kAlone;
  emptied_ = false;
  fresh_ = true;
  ++counters_.joined;
  changed();
  return {};
}

// Its peer's packets come to the main socket from now on, even if another process inherited the
// descriptor: connecting works on the socket, closing only on the descriptor.
void SocketIo::leave() {
  if (!connected()) return;
  SocketAddress nobody = loopback(second_.family() == Family::kIpv4, local_.port);
  if (!is_wildcard(source_)) nobody.ip = source_.ip;
  (void)second_.connect(nobody);
  leaving_ = true;
  plain_ = false;  // what comes to it now has to say where from
  reads_ = 0;
}

void SocketIo::close_second() {
  if (armed_) (void)watch(second_, EPOLL_CTL_DEL);
  second_.close();
  leaving_ = second_first_ = false;
  ++counters_.left;
  note_full(false);  // what waited for it goes by the main one
  changed();
}

void SocketIo::doubt(const SocketAddress& peer) {
  if (!connected() || !(peer == peer_)) return;
  vote_.distrust();
  leave();
}

// --- sending -------------------------------------------------------------------------------------

Sent SocketIo::send_by(DatagramSocket& socket, const SocketAddress* to,
                       std::span<const std::byte> bytes, std::size_t segment,
                       const SocketAddress* from) {
  // veth passes trains on uncut, and an XDP program behind it mistakes one of up to kBasePacket
  // bytes for a single packet (xdp_program.h).
  const bool train = trains_ && bytes.size() > std::max(segment, kBasePacket);
  if (train || segment >= bytes.size()) {
    const Sent sent = socket.send(to, bytes, segment, from);
    if (sent != Sent::kTooBig || !train) return sent;
  }
  for (std::size_t at = 0; at < bytes.size(); at += segment) {
    const auto packet = bytes.subspan(at, std::min(segment, bytes.size() - at));
    const Sent s = socket.send(to, packet, segment, from);
    // A rest that finds no room is lost, like packets in any queue that is full.
    if (s != Sent::kSent && at == 0) return s;
  }
  trains_ = trains_ && !train;  // the train was too big, not the packet: this path takes none
  return Sent::kSent;
}

PacketIo::Sent SocketIo::send(const Train& train, std::span<const std::byte> bytes) {
  vote_.note(train.to);
  bool tried = false;
  const bool has_second = connected() && train.to == peer_;
  if (has_second && train.from == source_) {
    const Sent sent = send_by(second_, nullptr, bytes, train.segment, nullptr);
    if (sent == Sent::kLater) note_full(true);
    if (sent == Sent::kSent || sent == Sent::kLater) [[likely]]
      return sent;
    tried = true;
  } else if (!has_second && vote_.is(train.to) && can_join(train.to)) {
    if (connected()) {
      leave();
    } else if (!join(train.to, train.from)) {
      ++counters_.refused;
      vote_.distrust();
    }
  }
  const SocketAddress* source = train.from == SocketAddress{} ? nullptr : &train.from;
  const Sent sent = send_by(main_, &train.to, bytes, train.segment, source);
  if (sent == Sent::kLater) note_full(false);
  if (sent == Sent::kLater || sent == Sent::kTooBig) return sent;
  // What only the second cannot do is not the packet's fault: its source address has gone.
  if (tried && sent == Sent::kSent) doubt(train.to);
  return Sent::kSent;  // or lost, as when there is no route
}

// --- receiving -----------------------------------------------------------------------------------

bool SocketIo::next_refusal(SocketAddress* to) {
  return main_.next_refusal(to) || second_.next_refusal(to);
}

// By recvmsg: recvmmsg asks again after the last one, and in a ping-pong every one is the last.
std::size_t SocketIo::receive_from(DatagramSocket& socket, std::span<Arrival> out) {
  const std::size_t most = std::min(out.size(), kSlots);
  std::size_t count = 0;
  while (count < most) {
    const auto slot = std::span(slots_).subspan(count * kSlotBytes, kSlotBytes);
    ++counters_.asked;
    Arrival& got = out[count];
    if (plain_ && &socket == &second_) {
      if (!second_.receive_plain(slot, &got)) break;
      got.from = peer_;
    } else if (!socket.receive(slot, &got)) {
      break;
    }
    if (&socket == &second_) got.at = source_;  // what it is bound to
    // Count empty and oversized ones, too: a flood of these must not keep the thread here.
    ++count;
    // A short one is mostly alone: process it before asking again, unless the last look found one.
    if (got.bytes.size() < kLoneBytes && !in_a_row_) break;
  }
  return count;
}

std::size_t SocketIo::receive_from_main(std::span<Arrival> out) {
  const std::size_t n = receive_from(main_, out);
  fresh_ = fresh_ && n > 0;
  if (fresh_ || !connected()) return n;
  // A few of the peer's packets may come here, sent to another of our addresses; many: a mistake.
  for (std::size_t i = 0; i < n; ++i) {
    if (!(out[i].from == peer_)) continue;
    ++counters_.strays;
    if (++strays_ == kMostStrays) doubt(out[i].from);
  }
  return n;
}

// What GRO merged just before the second became plain has no valid check, and is sent again.
std::size_t SocketIo::receive_from_second(std::span<Arrival> out) {
  const std::size_t n = receive_from(second_, out);
  emptied_ = emptied_ || n == 0;
  if (n == 0 || !connected()) return n;
  const bool is_long = std::any_of(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n),
                                   [](const Arrival& a) { return a.bytes.size() >= kLoneBytes; });
  if (is_long) {
    alone_ = 0;
  } else if (n == 1 && !in_a_row_) {
    if (++alone_ >= patience_ && !plain_ && emptied_) set_plain(true);
    alone_ = std::min(alone_, plain_ ? kAlone : patience_);
  } else {
    alone_ -= std::min(alone_, 4u);
  }
  if (alone_ == 0 && plain_) set_plain(false);
  return n;
}

// That is a system call, so what changes to and fro does it more and more rarely.
void SocketIo::set_plain(bool on) {
  if (gro_ && !second_.use_gro(!on)) return;
  plain_ = on;
  counters_.plain += on ? 1 : 0;
  if (!on) patience_ = std::min(2 * patience_, kMostAlone);
}

std::size_t SocketIo::receive(std::span<Arrival> out) {
  const std::size_t n = look(out);
  in_a_row_ = n > 0;
  return n;
}

// Empty one socket before reading the other, so that packets keep their order; but not for ever.
std::size_t SocketIo::look(std::span<Arrival> out) {
  if (leaving_) {
    const std::size_t n = receive_from_second(out);
    if (n > 0 && ++reads_ < kMostReads) return n;
    close_second();
    if (n > 0) return n;
  }
  if (!second_) return receive_from(main_, out);
  if (fresh_) {
    const std::size_t n = receive_from_main(out);
    if (n > 0 && ++reads_ < kMostReads) return n;
    fresh_ = false;
    second_first_ = true;
    if (n > 0) return n;
  }
  const bool second = second_first_;
  // The other one comes first now and then, or a busy socket would starve it.
  const bool turn = ++looks_ >= kLooks;
  if (turn) {
    if (const std::size_t n = look_at_other(out); n > 0) return n;
  }
  const std::size_t n = second ? receive_from_second(out) : receive_from_main(out);
  return n > 0 || turn || !look_at_all_ ? n : look_at_other(out);
}

// At the one that had nothing last.
std::size_t SocketIo::look_at_other(std::span<Arrival> out) {
  looks_ = 0;
  const std::size_t n = second_first_ ? receive_from_main(out) : receive_from_second(out);
  if (n > 0) second_first_ = !second_first_;
  look_at_all_ = look_at_all_ && n > 0;
  return n;
}

}  // namespace clan::udp
