// The link on one host: start, end, the control socket, out-of-band messages.
#include "link/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "clan/detail/log.h"

namespace clan::link {

using nic::Transfer;

namespace {

constexpr std::size_t kMostUnsent = 65536;      ///< messages kept for a peer that does not read
constexpr std::ptrdiff_t kMostUnsentFds = 256;  ///< of these, with a descriptor

// Does the kernel let us read that process? Its NIC header says which word must be where.
bool probe_direct_copy(pid_t pid, const shm::NicHeader& header) {
  std::uint64_t value = 0;
  iovec local{&value, sizeof value};
  iovec remote{reinterpret_cast<void*>(header.cma_probe_address), sizeof value};
  return pid > 0 &&
         ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof value) &&
         value == header.cma_probe_value;
}

}  // namespace

ShmLink::ShmLink(ShmPeer peer, nic::Nic& nic, nic::LinkSink& sink, Reactor& reactor,
                 Options options)
    : peer_(std::move(peer)), nic_(nic), sink_(sink), reactor_(reactor) {
  auto* tables = reinterpret_cast<const shm::NicTables*>(peer_.tables.data());
  image_ = {tables, reinterpret_cast<shm::NicSignals*>(peer_.signals.data()), this};
  settled_.store(!options.accepted, std::memory_order_relaxed);  // relaxed: nobody knows us yet
  direct_copy_ = options.direct_copy && probe_direct_copy(peer_.credentials.pid, tables->header);
  light_fence_ =
      (tables->header.flags & shm::kNicFences) != 0 && shm::AsymmetricFence::register_process();
}

ShmLink::~ShmLink() { leave_nic(); }

// What the link holds in our NIC. Later the NIC may be gone.
void ShmLink::leave_nic() {
  // order: its holder gives it back once, with all that was done with it
  if (!slot_held_.exchange(false, std::memory_order_acq_rel)) return;
  nic_.remove_peer_slot(peer_.peer_slot);
  std::unique_lock lock(mutex_);
  const bool staged = staging_ != nullptr;
  lock.unlock();
  if (staged) nic_.retire(staging_cookie_.aperture);
}

Status ShmLink::start() { return reactor_.add(peer_.socket.get(), shared_from_this()); }

// At most one descriptor. ENOBUFS: the peer does not read.
Status ShmLink::send(const ControlMessage& message, std::span<const int> fds,
                     bool discard_when_full) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  std::lock_guard lock(send_mutex_);
  if (unsent_.empty()) {
    auto s = send_datagram(peer_.socket.get(), std::as_bytes(std::span(&message, 1)), fds);
    if (!s && s.error().err == EPIPE) return Error{ECONNRESET, "the peer is gone"};
    if (s || (s.error().err != EAGAIN && s.error().err != ENOBUFS)) return s;
  }
  if (discard_when_full || unsent_.size() >= kMostUnsent) {
    return Error{ENOBUFS, "the peer's queue is full; message discarded"};
  }
  Unsent kept{message, Fd()};
  if (!fds.empty()) {
    const auto with_fd = [](const Unsent& u) { return static_cast<bool>(u.fd); };
    if (std::count_if(unsent_.begin(), unsent_.end(), with_fd) >= kMostUnsentFds)
      return Error{ENOBUFS, "the peer does not take its descriptors"};
    auto copy = duplicate(fds[0]);
    if (!copy) return copy.error();
    kept.fd = std::move(*copy);
  }
  unsent_.push_back(std::move(kept));
  if (unsent_.size() == 1) reactor_.watch_output(peer_.socket.get(), true);
  return {};
}

// The kernel passes no descriptor on (too many under way, no memory): as if the peer could not take
// it, see descriptor_lost(). False: do not send the message.
bool ShmLink::go_without_descriptor(ControlMessage& message, int err) {
  if (message.type == ControlType::kMemory) std::erase(granted_, message.memory_id);
  message.err = err;
  return message.type == ControlType::kImportReply;
}

// Driver thread: the socket has room again.
void ShmLink::flush() {
  std::lock_guard grants(mutex_);  // before the other, as in grant()
  std::lock_guard lock(send_mutex_);
  if (unsent_.empty()) return;
  while (!unsent_.empty()) {
    Unsent& next = unsent_.front();
    const int fd = next.fd.get();
    auto s = send_datagram(peer_.socket.get(), std::as_bytes(std::span(&next.message, 1)),
                           fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>());
    const int err = s ? 0 : s.error().err;
    if (err == EAGAIN || err == ENOBUFS || (err == ENOMEM && fd < 0)) return;
    if (fd >= 0 && (err == ETOOMANYREFS || err == ENOMEM)) {
      next.fd.reset();
      if (!go_without_descriptor(next.message, err)) unsent_.pop_front();
      continue;
    }
    if (err != 0) {
      unsent_.clear();  // the peer is gone; its end-of-file is on the way
      break;
    }
    unsent_.pop_front();
  }
  reactor_.watch_output(peer_.socket.get(), false);
}

void ShmLink::misbehaved(const char* what) {
  CLAN_WARN("peer %d %s; link reset", static_cast<int>(remote_pid()), what);
  sink_.on_misbehaviour(shared_from_this());
  go_down();
}

// --- out-of-band, event queues -------------------------------------------------------------------

Status ShmLink::send_oob(const OobMessage& message) {
  // CLAN's own must arrive: a connection's end or answer that is lost leaves the peer waiting.
  return send({.type = ControlType::kOob, .oob = message}, {}, (message.type & kOobInternal) == 0);
}

void ShmLink::confirm() { (void)send({.type = ControlType::kReady}, {}); }

void ShmLink::announce_queue_fd(std::uint32_t queue, int eventfd) {
  (void)send({.type = ControlType::kQueueFd, .slot = queue}, {&eventfd, 1});
}

void ShmLink::ring(std::uint32_t queue) {
  std::lock_guard lock(mutex_);
  int fd = queue < queue_fds_.size() ? queue_fds_[queue].get() : -1;
  if (fd < 0) fd = peer_.doorbell.get();  // its driver finds out which queue
  if (fd >= 0) signal_eventfd(fd);
}

// --- the control socket --------------------------------------------------------------------------

void ShmLink::on_ready(std::uint32_t events) {
  auto self = shared_from_this();
  if ((events & EPOLLOUT) != 0) flush();
  for (int i = 0; i < 64 && alive(); ++i) {  // bounded: other peers' sockets wait as well
    ControlMessage message;
    auto datagram =
        receive_datagram(peer_.socket.get(), std::as_writable_bytes(std::span(&message, 1)));
    if (!datagram) {
      if (datagram.error().err == EMSGSIZE)
        return misbehaved("sent a control message of another size");
      if (datagram.error().err != EAGAIN) go_down();
      return;
    }
    if (datagram->bytes == 0) return go_down();
    if (datagram->bytes != sizeof message || message.magic != kControlMagic ||
        message.version != shm::kLayoutVersion) {
      return misbehaved("sent a malformed control message");
    }
    settled_.store(true, std::memory_order_relaxed);  // relaxed: a flag
    if (datagram->fds_lost) {
      descriptor_lost(message);
    } else {
      handle(message, *datagram);
    }
  }
}

// The peer has done nothing wrong: this process has too many files open.
void ShmLink::descriptor_lost(const ControlMessage& message) {
  if (!std::exchange(told_of_lost_, true)) {
    CLAN_WARN("too many open files: what peer %d passed is lost; raise the limit (ulimit -n)",
              static_cast<int>(remote_pid()));
  }
  ask_again(message);
  if (message.type == ControlType::kImportReply)
    take_answer(message.request, EMFILE);  // without a queue's own descriptor its doorbell does
}

// What was granted has not come to be here: the next grant sends it again, for another connection.
void ShmLink::ask_again(const ControlMessage& granted) {
  if (granted.type == ControlType::kMemory)  // an import says so to the thread that waits for it
    (void)send({.type = ControlType::kLost, .memory_id = granted.memory_id}, {});
}

void ShmLink::take_answer(std::uint64_t request, int err) {
  std::lock_guard lock(mutex_);
  auto it = answers_.find(request);
  if (it == answers_.end()) return;
  it->second = err;
  answered_.notify_all();
}

void ShmLink::handle(ControlMessage& message, Datagram& datagram) {
  switch (message.type) {
    case ControlType::kOob:
      message.oob.length = std::min<std::uint32_t>(message.oob.length, kOobPayload);
      sink_.on_oob(shared_from_this(), message.oob);
      break;
    case ControlType::kMemory: accept_memory(message, datagram); break;
    case ControlType::kImport: serve_import(message); break;
    case ControlType::kImportReply:
      accept_memory(message, datagram);
      take_answer(message.request, message.err);
      break;
    case ControlType::kLost: {
      std::lock_guard lock(mutex_);
      std::erase(granted_, message.memory_id);  // the next grant() sends it again
      break;
    }
    case ControlType::kQueueFd: {
      std::lock_guard lock(mutex_);
      if (message.slot < shm::kMaxEventQueues && datagram.fd_count == 1 &&
          may_be_eventfd(datagram.fds[0].get())) {
        if (queue_fds_.size() <= message.slot) queue_fds_.resize(message.slot + 1);
        queue_fds_[message.slot] = std::move(datagram.fds[0]);
      }
      break;
    }
    case ControlType::kReady: break;  // settled_ has been set, as by any message
    case ControlType::kCopy: serve_copy(message); break;
    case ControlType::kCopyDone: {
      Transfer t;
      {
        std::lock_guard lock(mutex_);
        if (copy_request_ == 0 || copy_request_ != message.request) break;
        t = copy_;
        copy_request_ = 0;
        if (message.err == 0 && t.op == RdmaOp::kRead && t.local != nullptr) {
          std::memcpy(t.local, staging_->data(), t.length);
        }
      }
      sink_.on_transfer_done(t.token, message.err, message.err == 0 ? t.length : 0);
      break;
    }
    default: misbehaved("sent an unknown control message");
  }
}

void ShmLink::go_down() {
  // order: for alive()
  if (!alive_.exchange(false, std::memory_order_acq_rel)) return;
  reactor_.remove(peer_.socket.get());
  bool copying;
  std::uint64_t token;  // a thread that has not seen that we are down may begin another copy
  {
    std::lock_guard lock(mutex_);
    copying = std::exchange(copy_request_, 0) != 0;
    token = copy_.token;
    answered_.notify_all();
  }
  leave_nic();
  if (copying) sink_.on_transfer_done(token, ECONNRESET, 0);
  sink_.on_link_down(shared_from_this());
}

void ShmLink::shut_down() {
  wait_for_copies();
  // The peer sees end-of-file, and our own reactor does as well and cleans up.
  ::shutdown(peer_.socket.get(), SHUT_RDWR);
}

void ShmLink::abandon_after_fork() {
  // relaxed: the child has one thread
  alive_.store(false, std::memory_order_relaxed);
  slot_held_.store(false, std::memory_order_relaxed);  // the parent's
  peer_.socket.reset();
  peer_.doorbell.reset();
  for (Fd& fd : queue_fds_) fd.reset();
}

}  // namespace clan::link
