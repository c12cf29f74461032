// The handshake of the shared-memory link: hello, accept, refuse (see link/control.h).
#include <poll.h>

#include "base/wait_call.h"
#include "link/shm_link.h"

namespace clan::link {
namespace {

constexpr std::size_t kFixedBytes = offsetof(ControlMessage, request);

// Room for the opening message of any version: a longer one must still be refused in words.
struct Opening {
  ControlMessage message;
  std::byte more[4096 - sizeof(ControlMessage)];
};

Status check_header(const ControlMessage& message, std::size_t bytes) {
  if (bytes < kFixedBytes || message.magic != kControlMagic) {
    return Error{EPROTO, "the peer does not speak CLAN's control protocol"};
  }
  if (message.type == ControlType::kRefuse) {
    switch (message.err) {
      case EPROTONOSUPPORT:
        return Error{EPROTONOSUPPORT,
                     "the peer runs another CLAN version; restart both with the same one"};
      case EACCES:
        return Error{EACCES,
                     "the peer's policy refuses this user id (see ContextOptions::allow_uids)"};
      case EMFILE:
        return Error{EMFILE, "the peer has no file descriptor left: raise its limit (ulimit -n)"};
      default: return Error{message.err > 0 ? message.err : EPROTO, "the peer refused the link"};
    }
  }
  if (message.version != shm::kLayoutVersion) {
    return Error{EPROTONOSUPPORT,
                 "the peer runs another CLAN version; restart both with the same one"};
  }
  if (bytes != sizeof(ControlMessage)) return Error{EPROTO, "control message of a wrong size"};
  return {};
}

// The peer's segments: sizes and versions are input, mapping checks the seals and the file sizes.
Status map_peer(ShmPeer& peer, Datagram& datagram) {
  if (datagram.fds_lost) {
    return Error{EMFILE,
                 "no file descriptor is left for another peer: raise the limit (ulimit -n)"};
  }
  if (datagram.fd_count != 3) return Error{EPROTO, "handshake without its three descriptors"};
  auto tables = Mapping::map(datagram.fds[0].get(), shm::kTablesBytes, Mapping::Access::kRead);
  if (!tables) return tables.error();
  const auto& header = reinterpret_cast<const shm::NicTables*>(tables->data())->header;
  if (header.magic != shm::kNicMagic || header.version != shm::kLayoutVersion ||
      header.tables_bytes != shm::kTablesBytes || header.signals_bytes != shm::kSignalsBytes ||
      header.node != peer.node.value) {
    return Error{EPROTONOSUPPORT,
                 "the peer's NIC has another layout; restart both with the same CLAN"};
  }
  auto signals =
      Mapping::map(datagram.fds[1].get(), shm::kSignalsBytes, Mapping::Access::kReadWrite);
  if (!signals) return signals.error();
  peer.tables = std::move(*tables);
  peer.signals = std::move(*signals);
  if (!may_be_eventfd(datagram.fds[2].get()))
    return Error{EPROTO, "the peer passed a doorbell that is not an eventfd"};
  peer.doorbell = std::move(datagram.fds[2]);
  return {};
}

Status wait_readable(int socket, std::uint64_t deadline_ns) {
  pollfd p{socket, POLLIN, 0};
  for (;;) {
    const int err = sys::poll_until({&p, 1}, deadline_ns);
    if (err == 0) return {};
    if (err == ETIMEDOUT) return Error{ETIMEDOUT, "the peer did not answer the handshake"};
    if (err != EINTR) return Error{err, "poll(control socket)"};
  }
}

Status send_opening(int socket, ControlType type, NodeId self, nic::Nic& nic, std::uint32_t slot,
                    std::uint32_t endpoint, int doorbell) {
  const ControlMessage message{
      .type = type, .node = self.value, .slot = slot, .endpoint = endpoint};
  int fds[3] = {nic.tables_memfd(), nic.signals_memfd(), doorbell};
  return send_datagram(socket, std::as_bytes(std::span(&message, 1)), fds);
}

}  // namespace

void refuse(int socket, NodeId self, int err) {
  const ControlMessage message{.type = ControlType::kRefuse, .err = err, .node = self.value};
  (void)send_datagram(socket, std::as_bytes(std::span(&message, 1)), {});
}

Result<ShmPeer> begin_dial(std::string_view name, uid_t owner, NodeId self, int doorbell,
                           const std::function<nic::Nic*(uid_t)>& lane, std::uint64_t deadline_ns) {
  auto socket = connect_abstract(name, deadline_ns);
  if (!socket && socket.error().err == ECONNREFUSED) {
    return Error{ECONNREFUSED,
                 "nobody offers this service: start its server first, under this very name, as the "
                 "user asked for and in this network namespace"};
  }
  if (!socket) return socket.error();
  ShmPeer peer;
  auto credentials = peer_credentials(socket->get());
  if (!credentials) return credentials.error();
  peer.credentials = *credentials;
  if (peer.credentials.uid != owner) {
    return Error{EACCES, "a process of another user answers under this name"};
  }
  nic::Nic* nic = lane(peer.credentials.uid);
  if (nic == nullptr) {
    return Error{EACCES,
                 "policy forbids the user id behind this name (see ContextOptions::allow_uids)"};
  }
  auto slot = nic->add_peer_slot();
  if (!slot) return slot.error();
  peer.peer_slot = *slot;
  // A server that refuses by policy does not wait for our hello; its answer is there all the same.
  auto sent = send_opening(socket->get(), ControlType::kHello, self, *nic, *slot, 0, doorbell);
  if (!sent && sent.error().err != EPIPE) {
    nic->remove_peer_slot(*slot);
    return sent.error();
  }
  peer.socket = std::move(*socket);
  return peer;
}

Status finish_dial(ShmPeer& peer, std::uint32_t* endpoint) {
  Opening opening;
  const ControlMessage& message = opening.message;
  const int socket = peer.socket.get();
  auto datagram = receive_datagram(socket, std::as_writable_bytes(std::span(&opening, 1)));
  if (!datagram && datagram.error().err == ECONNRESET) {  // said once, before what was sent
    datagram = receive_datagram(socket, std::as_writable_bytes(std::span(&opening, 1)));
  }
  if (!datagram) return datagram.error();
  if (datagram->bytes == 0) return Error{ECONNREFUSED, "the peer closed during the handshake"};
  if (auto s = check_header(message, datagram->bytes); !s) return s;
  if (message.type != ControlType::kAccept || message.slot >= shm::kMaxPeers) {
    return Error{EPROTO, "the peer answered hello with nonsense"};
  }
  peer.node = {message.node};
  peer.my_slot = message.slot;
  *endpoint = message.endpoint;
  return map_peer(peer, *datagram);
}

Result<ShmPeer> dial(std::string_view name, uid_t owner, NodeId self, int doorbell,
                     const std::function<nic::Nic*(uid_t)>& lane, std::uint64_t deadline_ns,
                     std::uint32_t* endpoint) {
  auto peer = begin_dial(name, owner, self, doorbell, lane, deadline_ns);
  if (!peer) return peer;
  auto s = wait_readable(peer->socket.get(), deadline_ns);
  if (s) s = finish_dial(*peer, endpoint);
  if (s) return peer;
  lane(peer->credentials.uid)->remove_peer_slot(peer->peer_slot);
  return s.error();
}

Result<ShmPeer> answer(Fd socket, NodeId self, int doorbell,
                       const std::function<nic::Nic*(uid_t)>& lane, std::uint32_t endpoint) {
  Opening opening;
  const ControlMessage& message = opening.message;
  auto datagram = receive_datagram(socket.get(), std::as_writable_bytes(std::span(&opening, 1)));
  if (!datagram) return datagram.error();
  if (datagram->bytes == 0) return Error{ECONNRESET, "the client went away before its hello"};
  const auto no = [&](const Error& why) {
    refuse(socket.get(), self, why.err);
    return why;
  };
  if (auto s = check_header(message, datagram->bytes); !s) return no(s.error());
  if (message.type != ControlType::kHello || message.slot >= shm::kMaxPeers)
    return no({EPROTO, "the client's first message is no hello"});
  ShmPeer peer;
  auto credentials = peer_credentials(socket.get());
  if (!credentials) return credentials.error();
  peer.credentials = *credentials;
  peer.node = {message.node};
  peer.my_slot = message.slot;
  nic::Nic* nic = lane(peer.credentials.uid);
  if (nic == nullptr) return no({EACCES, "a user id that policy forbids tried to link"});
  if (auto s = map_peer(peer, *datagram); !s) return no(s.error());
  auto slot = nic->add_peer_slot();
  if (!slot) return no(slot.error());
  peer.peer_slot = *slot;
  if (auto s =
          send_opening(socket.get(), ControlType::kAccept, self, *nic, *slot, endpoint, doorbell);
      !s) {
    nic->remove_peer_slot(*slot);
    return s.error();
  }
  peer.socket = std::move(socket);
  return peer;
}

}  // namespace clan::link
