#include "forward.h"

#include <clan/detail/clock.h>
#include <clan/detail/contention.h>
#include <clan/detail/preemption.h>
#include <sys/epoll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "icmp.h"
#include "netlink.h"
#include "page.h"

namespace clan::ip {
namespace {

/// What a descriptor is; else it is a queue's, with its number.
constexpr std::uint64_t kStop = ~std::uint64_t{0}, kEvents = kStop - 1, kDevices = kStop - 2;
constexpr std::int64_t kLookMs = 1000;  ///< while a peer is being opened

bool watch(int epoll, int fd, std::uint32_t what, std::uint64_t tag) {
  epoll_event event{};
  event.events = what;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

void drain(int fd) {
  char bytes[4096];
  while (::read(fd, bytes, sizeof bytes) > 0) {
  }
}

bool owns(const Peer& peer, const Address& address) {
  return std::any_of(peer.prefixes.begin(), peer.prefixes.end(),
                     [&](const Prefix& prefix) { return prefix.contains(address); });
}

VirtioHeader header_of(std::span<const std::byte> message) {
  VirtioHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  return header;
}

std::span<const std::byte> head_of(std::span<const std::byte> packet) {
  return packet.first(std::min(packet.size(), kHead));
}

}  // namespace

Forwarder::~Forwarder() {
  if (epoll_ >= 0) ::close(epoll_);
  if (devices_ >= 0) ::close(devices_);
}

Status Forwarder::start(int stop) {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  const auto fd = events_.fd(), devices = watch_devices();
  if (!fd) return fd.error();
  if (!devices) return devices.error();
  devices_ = *devices;
  const bool watches = epoll_ >= 0 && watch(epoll_, stop, EPOLLIN, kStop) &&
                       watch(epoll_, *fd, EPOLLIN, kEvents) &&
                       watch(epoll_, devices_, EPOLLIN | EPOLLET, kDevices) &&
                       watch(epoll_, device_.queue(0), EPOLLIN | EPOLLET, 0);
  if (!watches) return Error{errno, "epoll"};
  update_device();
  return {};
}

Status Forwarder::run() {
  constexpr unsigned kTurnsBetweenLooks = 8;
  for (unsigned turns = 0; !stopped_ && !gone_;) {
    Event events[16];
    (void)events_.poll(events);
    if (turn()) {
      // One that is busy all the time must not keep the others, nor a signal, waiting.
      if (++turns % kTurnsBetweenLooks == 0) take_ready(0);
    } else if (auto slept = sleep(); !slept) {
      return slept;
    }
  }
  if (gone_) return Error{ENODEV, "the device has been removed"};
  return {};
}

bool Forwarder::turn() {
  bool busy = false;
  for (auto& face : links_.faces()) busy |= receive(*face);
  links_.look(monotonic_ns());
  busy |= read_first_queue();
  update_device();
  // Not by iterators: a packet may be the first of a new peer.
  for (std::size_t i = 0; i < links_.peers().size(); ++i) busy |= serve(*links_.peers()[i]);
  return busy;
}

// After packets that fill the MTU: the programs at the ends of a stream make longer packets, or
// take more of them, while this thread lets them run. Beside computations a yield takes too long.
void Forwarder::yield() {
  std::uint64_t now = monotonic_ns();
  PreemptionWatch watch;
  if (std::exchange(filled_, false) && !t_contention.lasts(now)) t_contention.yield(now, watch);
}

Status Forwarder::sleep() {
  yield();
  int timeout = links_.opening() ? static_cast<int>(kLookMs) : -1;
  if (network_ && !events_.arm_packets()) return {};
  if (!events_.arm_fd_for_sleep()) return {};
  if (network_) {
    pollfd set{epoll_, POLLIN, 0};
    const auto slept = events_.sleep({&set, 1}, timeout);
    if (!slept && slept.error().err != ETIMEDOUT && slept.error().err != EINTR) return slept;
    timeout = 0;
  }
  take_ready(timeout);
  events_.disarm_fd();
  return {};
}

void Forwarder::take_ready(int timeout) {
  epoll_event ready[16];
  const int n = ::epoll_wait(epoll_, ready, std::size(ready), timeout);
  for (int i = 0; i < n; ++i) {
    const std::uint64_t tag = ready[i].data.u64;
    if (tag == kStop) stopped_ = true;
    // A device that goes may not make its queues readable: reading says it has gone.
    if (tag == 0 || tag == kDevices) first_readable_ = true;
    if (tag == kDevices) drain(devices_);
    for (auto& peer : links_.peers()) {
      if (tag != 0 && peer->queue == tag) peer->readable = true;
    }
  }
}

// --- the device ----------------------------------------------------------------------------------

bool Forwarder::give_queue(Peer& peer) {
  const auto queue = device_.add_queue();
  if (!queue || !watch(epoll_, device_.queue(*queue), EPOLLIN | EPOLLET, *queue)) return false;
  peer.queue = *queue;
  return true;
}

// Where peers have come, or one takes more or less than before. Without a steering program all
// packets come by the first queue.
void Forwarder::update_device() {
  auto& peers = links_.peers();
  if (steers_ && steered_ != links_.changes()) {
    // Before a peer has a queue: without a program the kernel would spread packets over them all.
    if (steered_ == ~std::size_t{0}) steers_ = device_.steer({}).ok();
    for (auto& peer : peers) steers_ = steers_ && (peer->queue != 0 || give_queue(*peer));
    std::vector<Steered> prefixes;
    for (auto& peer : peers) {
      for (const Prefix& prefix : peer->prefixes) prefixes.push_back({prefix, peer->queue});
    }
    std::stable_sort(prefixes.begin(), prefixes.end(), [](const Steered& a, const Steered& b) {
      return a.prefix.bits > b.prefix.bits;
    });
    steers_ = steers_ && device_.steer(prefixes).ok();
    steered_ = links_.changes();
    own_page().steered = steers_ ? 1 : 0;
  }
  const unsigned wanted = links_.common_offloads();
  if (wanted != device_.offloads()) (void)device_.set_offloads(wanted);
  show(own_page().offloads, device_.offloads());
}

ssize_t Forwarder::read_queue(unsigned queue, std::span<std::byte> room) {
  const ssize_t n = ::read(device_.queue(queue), room.data(), room.size());
  if (n < 0 && errno == EBADFD) gone_ = true;
  return n;
}

void Forwarder::answer(const std::vector<std::byte>& packet) {
  if (packet.empty()) return;
  std::vector<std::byte> message(kHeader);
  message.insert(message.end(), packet.begin(), packet.end());
  (void)!::write(device_.queue(0), message.data(), message.size());
}

// --- to peers ------------------------------------------------------------------------------------

bool Forwarder::read_first_queue() {
  for (int i = 0; i < kMost && first_readable_; ++i) {
    const ssize_t n = read_queue(0, scratch_);
    if (n < 0) {
      first_readable_ = false;
      return i > 0;
    }
    dispatch(std::span(scratch_).first(static_cast<std::size_t>(n)));
  }
  return first_readable_;
}

// A packet that is not in its peer's queue.
void Forwarder::dispatch(std::span<const std::byte> bytes) {
  if (bytes.size() <= kHeader) return;
  const auto ip = bytes.subspan(kHeader);
  const auto packet = parse(head_of(ip), ip.size());
  if (!packet) return;
  for (const auto& face : links_.faces()) {
    if (packet->destination.is_of_one() && !face->own.is_broadcast(packet->destination)) continue;
    return count(own_page().groups);
  }
  Peer* const peer = links_.look_for(packet->destination);
  if (peer == nullptr) {
    count(own_page().nobody);
    return answer(unreachable(*packet, ip));
  }
  if (peer->state == Peer::State::kUp && peer->waiting.empty()) {
    if (!may_go(*peer, header_of(bytes), *packet, ip)) return;
    if (!peer->face->endpoint.try_send(*peer->out, bytes, {})) return count(peer->row->waits);
    count(peer->row->sent);
    return count(peer->row->sent_bytes, std::uint64_t{ip.size()});
  }
  constexpr std::size_t kMostWaiting = 16;
  if (peer->state == Peer::State::kDown && !peer->failed) links_.open(*peer);
  if (peer->waiting.size() == kMostWaiting) return count(peer->row->unreachable);
  peer->waiting.emplace_back(bytes.begin(), bytes.end());
}

bool Forwarder::serve(Peer& peer) {
  if (peer.failed) return turn_away(peer);
  if (peer.state == Peer::State::kDown && (peer.readable || !peer.waiting.empty())) {
    links_.open(peer);
    return true;
  }
  if (peer.state != Peer::State::kUp || !flush(peer) || !peer.readable) return false;
  return pump(peer);
}

// Packets that came before the peer was there.
bool Forwarder::flush(Peer& peer) {
  while (!peer.waiting.empty()) {
    const auto& first = peer.waiting.front();
    const auto ip = std::span(first).subspan(kHeader);
    const auto packet = parse(head_of(ip), ip.size());
    if (packet && may_go(peer, header_of(first), *packet, ip)) {
      if (!peer.face->endpoint.try_send(*peer.out, first, {})) return false;
      count(peer.row->sent);
      count(peer.row->sent_bytes, std::uint64_t{ip.size()});
    }
    peer.waiting.pop_front();
  }
  return true;
}

// Whether the peer takes such packets; where not its sender is answered.
bool Forwarder::may_go(Peer& peer, const VirtioHeader& header, const Packet& packet,
                       std::span<const std::byte> ip) {
  const auto needs = offload_of(header, packet.source.v6);
  const std::size_t mtu = peer.hello.mtu;
  if (needs && (*needs & ~(peer.hello.offloads | kCsum)) == 0 &&
      (wire_size(header, ip.size()) <= mtu || !packet.may_not_fragment))
    return true;
  count(peer.row->too_big);
  if (wire_size(header, ip.size()) > mtu) answer(too_big(packet, ip, mtu));
  return false;
}

// Straight from the queue into the ring. True: there may be more, and room for it.
bool Forwarder::pump(Peer& peer) {
  MessageEndpoint& endpoint = peer.face->endpoint;
  for (int i = 0; i < kMost; ++i) {
    const auto room = endpoint.reserve(*peer.out, kHeader + kMostPacket);
    if (!room) {
      if (room.error().err != EAGAIN) links_.close(peer, false);
      count(peer.row->waits);
      return false;
    }
    const ssize_t n = read_queue(peer.queue, *room);
    if (n < 0) {
      peer.readable = false;
      return false;
    }
    const auto bytes = room->first(static_cast<std::size_t>(n));
    if (bytes.size() <= kHeader) continue;
    const auto ip = bytes.subspan(kHeader);
    const auto packet = parse(head_of(ip), ip.size());
    if (!packet) continue;
    if (!owns(peer, packet->destination)) {  // the kernel had an older program yet
      std::copy(bytes.begin(), bytes.end(), scratch_.begin());
      dispatch(std::span(scratch_).first(bytes.size()));
      continue;
    }
    if (!may_go(peer, header_of(bytes), *packet, ip)) continue;
    endpoint.commit(*peer.out, bytes.size());
    filled_ |= ip.size() >= own_page().mtu;
    count(peer.row->sent);
    count(peer.row->sent_bytes, std::uint64_t{ip.size()});
  }
  return true;
}

// It cannot be reached: the senders of its packets get that answer. The next one tries again.
bool Forwarder::turn_away(Peer& peer) {
  const auto refuse = [&](std::span<const std::byte> bytes) {
    count(peer.row->unreachable);
    if (bytes.size() <= kHeader) return;
    const auto ip = bytes.subspan(kHeader);
    if (const auto packet = parse(head_of(ip), ip.size())) answer(unreachable(*packet, ip));
  };
  for (const auto& packet : peer.waiting) refuse(packet);
  peer.waiting.clear();
  for (int i = 0; i < kMost && peer.readable; ++i) {
    const ssize_t n = read_queue(peer.queue, scratch_);
    peer.readable = n >= 0;
    if (n >= 0) refuse(std::span(scratch_).first(static_cast<std::size_t>(n)));
  }
  peer.failed = peer.readable;
  return peer.readable;
}

// --- to the device -------------------------------------------------------------------------------

bool Forwarder::receive(Face& face) {
  MessageEndpoint& endpoint = face.endpoint;
  for (int i = 0; i < kMost; ++i) {
    if (endpoint.quiet()) return i > 0;
    const auto message = endpoint.peek_fetched();
    if (!message) return i > 0;
    const PeerIndex from = message->from;
    Peer* const peer = links_.of(face, from);
    if (!message->offered && peer != nullptr && !is_hello(message->bytes)) {
      if (links_.hold(*peer)) continue;
      deliver(*peer, message->bytes);
      endpoint.drop();
      continue;
    }
    const auto hello = parse_hello(message->bytes);
    if (hello && links_.waits(face, from, *hello)) continue;
    endpoint.drop();
    if (!hello || !links_.greet(face, from, *hello)) links_.end_stranger(face, from);
  }
  return true;
}

// The peer may change what lies in the ring while we look: what is checked is copied before.
void Forwarder::deliver(Peer& peer, std::span<const std::byte> message) {
  if (message.size() <= kHeader || message.size() > kHeader + kMostPacket)
    return count(peer.row->malformed);
  VirtioHeader header = header_of(message);
  const auto ip = message.subspan(kHeader);
  std::byte copied[kHead];
  const std::span<const std::byte> head(copied, std::min(ip.size(), kHead));
  std::memcpy(copied, ip.data(), head.size());
  const auto packet = parse(head, ip.size());
  if (!packet || !check(&header, *packet, head, ip.size(), peer.takes | kCsum))
    return count(peer.row->malformed);
  if (packet->source != peer.prefixes[0].address && links_.find(packet->source) != &peer)
    return count(peer.row->bad_source);
  const auto rest = ip.subspan(head.size());
  const iovec pieces[] = {{&header, sizeof header},
                          {copied, head.size()},
                          {const_cast<std::byte*>(rest.data()), rest.size()}};
  if (::writev(device_.queue(peer.queue), pieces, 3) < 0)
    return refused(peer, header, packet->source.v6, errno);
  filled_ |= ip.size() >= own_page().mtu;
  count(peer.row->received);
  count(peer.row->received_bytes, std::uint64_t{ip.size()});
}

// A super-packet that this kernel does not take: of such its sender is to send none.
void Forwarder::refused(Peer& peer, const VirtioHeader& header, bool v6, int error) {
  count(peer.row->refused);
  if (error == EBADFD) gone_ = true;
  const unsigned offload = offload_of(header, v6).value_or(0) & ~kCsum;
  if (error == EINVAL && offload != 0) links_.refuse_offload(peer, offload);
}

}  // namespace clan::ip
