// The hub: one message endpoint for all clients of a process, a transport of its own to be polled
// by.
#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "log_rate_limit.h"
#include "server/server.h"

namespace clan::rpc {
namespace {

constexpr std::uint64_t kSliceNs = 200'000;  ///< then others have their turn
constexpr unsigned kClockEvery = 16;         ///< messages
constexpr std::size_t kMostInRing = 8192;    ///< messages of one client

Hub* the_hub = nullptr;
int hub_fd = -1;

bool_t hub_receive(SVCXPRT*, rpc_msg*) {
  // In the child of a fork there is none until somebody asks: see after_fork_in_child().
  if (Hub* hub = Hub::present()) hub->serve();
  return FALSE;
}
enum xprt_stat hub_state(SVCXPRT*) { return XPRT_IDLE; }
bool_t hub_no_arguments(SVCXPRT*, xdrproc_t, void*) { return FALSE; }
bool_t hub_no_reply(SVCXPRT*, rpc_msg*) { return FALSE; }
void hub_destroy(SVCXPRT* xprt) { xprt_unregister(xprt); }
bool_t hub_no_control(SVCXPRT*, u_int, void*) { return FALSE; }

TransportOps hub_operations = {hub_receive,  hub_state,        hub_no_arguments,
                               hub_no_reply, hub_no_arguments, hub_destroy};
TransportOps2 hub_operations2 = {hub_no_control};

// The descriptor is one object for parent and child: a child that polls it would take the parent's
// wake-ups.
void after_fork_in_child() {
  if (hub_fd < 0) return;
  const int never = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (never >= 0) {
    dup3(never, hub_fd, O_CLOEXEC);
    close(never);
  }
}

void before_any_fork() {
  if (Hub* hub = Hub::present()) hub->before_fork();
}

/// The calling thread dispatches, until it leaves: also where a service ends it.
class Dispatching {
 public:
  explicit Dispatching(std::atomic<const void*>& by) : by_(by) {
    // relaxed, here and below: a thread looks for its own mark
    by_.store(this_thread(), std::memory_order_relaxed);
  }
  Dispatching(const Dispatching&) = delete;
  Dispatching& operator=(const Dispatching&) = delete;
  ~Dispatching() { by_.store(nullptr, std::memory_order_relaxed); }

 private:
  std::atomic<const void*>& by_;
};

bool exited() { return svc_pollfd == nullptr; }  // svc_exit()

}  // namespace

Hub* Hub::present() {
  return the_hub != nullptr && the_hub->generation_ == generation() ? the_hub : nullptr;
}

Hub* Hub::get() {
  if (Hub* hub = present()) return hub;
  if (the_hub != nullptr) {  // the parent's: its transport gives way to ours
    xprt_unregister(&the_hub->xprt_);
    close(hub_fd);
    hub_fd = -1;
    the_hub = nullptr;  // its endpoint is not ours to close
  }
  auto* hub = new (std::nothrow) Hub;
  if (hub == nullptr || !hub->start()) {
    delete hub;
    return nullptr;
  }
  static const int installed = pthread_atfork(before_any_fork, nullptr, after_fork_in_child);
  (void)installed;
  the_hub = hub;
  return hub;
}

bool Hub::start() {
  Context* ours = context();
  if (ours == nullptr) return false;
  generation_ = generation();
  MessageOptions options;
  options.max_message = kFragment;  // of clients, too, that have not said Hello
  options.eager_bytes = kEager;
  if (ours->network_port() != 0) service_ = random_word();
  auto endpoint = MessageEndpoint::create(
      *ours, service_ != 0 ? far_service(service_) : std::string(), options);
  if (!endpoint) return false;
  auto number = endpoint->fd();
  if (!number) return false;
  endpoint_ = std::move(*endpoint);
  xprt_.xp_fd = hub_fd = *number;
  xprt_.xp_ops = &hub_operations;
  xprt_.xp_ops2 = &hub_operations2;
  xprt_.xp_p3 = &extension_;
  xprt_register(&xprt_);
  endpoint_->ring_fd();
  return true;
}

// --- clients that go -----------------------------------------------------------------------------

void Hub::drop_peer(PeerIndex index, bool hostile) {
  if (hostile) {
    count(counters().hostile);
    static LogRateLimit limit;
    if (limit.allows())
      CLAN_WARN("a client's message makes no sense: it is not listened to any more");
  }
  if (peers_[index]->token != 0) {
    if (departed_.size() == kMostExpected) departed_.pop_front();
    departed_.push_back({peers_[index]->token, peers_[index]->last_xid});
  }
  if (ServiceTransport* const transport = peers_[index]->transport)
    std::erase(transport->clients_, index);
  endpoint_->disconnect(index);
  peers_[index].reset();
  --live_;
}

// From a thread that replies: another one may be reading what the peer has sent.
void Hub::drop_peer_later(PeerIndex index) {
  if (taken_apart_ != index) return drop_peer(index, false);
  peers_[index]->unwanted = true;
}

void Hub::let_go() {
  PeerState* const from = taken_apart_ ? peer(*taken_apart_) : nullptr;
  if (from != nullptr && from->gathering == PeerState::Gathering::kWhole) {
    from->gathering = PeerState::Gathering::kNo;
    std::vector<std::byte>().swap(from->gathered);
  } else {
    endpoint_->drop();
  }
  if (!taken_apart_) return;
  const PeerIndex index = *std::exchange(taken_apart_, std::nullopt);
  if (peer(index) != nullptr && peer(index)->unwanted) drop_peer(index, false);
}

// A child of the service that decodes the arguments has CLAN's memory no more.
void Hub::before_fork() {
  // relaxed: see Dispatching
  if (dispatcher_.load(std::memory_order_relaxed) == this_thread() && current_ != nullptr)
    current_->keep_arguments();
}

void Hub::forget(ServiceTransport* transport) {
  std::lock_guard lock(mutex_);
  if (current_ == transport) current_ = nullptr;
  std::erase_if(expected_, [&](const Expected& e) { return e.transport == transport; });
  // Not all there are: a server has had any number of clients, and each of them ends once.
  for (const PeerIndex client : std::exchange(transport->clients_, {})) drop_peer(client, false);
}

void Hub::bury_departed() {
  PeerIndex gone;
  while (endpoint_->take_departed(&gone)) {
    if (peer(gone) != nullptr) {
      drop_peer(gone, false);
    } else {
      endpoint_->disconnect(gone);  // it has gone without a word
    }
  }
}

// --- serving -------------------------------------------------------------------------------------

namespace {
// What is left of a call whose arguments nobody wanted, or which its client has given up.
bool is_skipped(PeerState* peer, std::span<const std::byte> bytes) {
  ReplyHead head;
  if (!peer->skipping || !take_front(&bytes, &head) || head.kind != kMore) return false;
  peer->skipping = head.go_on == kFollows;
  return true;
}
}  // namespace

// False: there is no memory for one more peer.
bool Hub::has_state(PeerIndex index) {
  try {
    while (peers_.size() <= index) peers_.emplace_back();
    if (peers_[index]) return true;
    peers_[index] = std::make_unique<PeerState>();
    ++live_;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// The message at the front. kCall: `front` is a call to be dispatched. The caller has the mutex.
Hub::Taken Hub::take_one(Front* front) {
  if (some_ready_ && take_ready(front)) return Taken::kCall;
  auto message = endpoint_->peek();
  if (!message) {
    bury_departed();
    return Taken::kNothing;
  }
  const PeerIndex from = message->from;
  if (!has_state(from)) {
    endpoint_->drop();
    endpoint_->disconnect(from);
    return Taken::kOther;
  }
  PeerState& peer = *peers_[from];
  if (peer.deferred) {  // behind one that has been gathered
    hold(&peer);
    return Taken::kOther;
  }
  if (peer.transport == nullptr) {
    welcome(from, message->bytes);
    return Taken::kOther;
  }
  if (peer.gathering == PeerState::Gathering::kUnderWay) {
    return gather(from, message->bytes, front) ? Taken::kCall : Taken::kOther;
  }
  *front = {from, {}, message->bytes};
  if (is_skipped(&peer, front->bytes)) {
    endpoint_->drop();
    return Taken::kOther;
  }
  bool good = take_front(&front->bytes, &front->head);
  if (good && front->head.new_caller != 0) good = take_caller(&front->bytes, &peer.caller);
  if (!good || front->head.kind != kCall || front->head.go_on > kFollows || !peer.caller.known) {
    endpoint_->drop();
    drop_peer(from, true);
    return Taken::kOther;
  }
  // Its client did not know yet that it has been answered. One whose service did not is made again.
  if (front->head.again != 0 && peer.answered && peer.last_xid == front->head.xid) {
    peer.skipping = front->head.go_on == kFollows;
    endpoint_->drop();
    return Taken::kOther;
  }
  if (front->head.go_on == kLast || !is_gathered_first(peer)) return Taken::kCall;
  begin_gathering(from, *front);
  return Taken::kOther;
}

// Takes one message, if there is one, and has it dispatched. True: there may be another.
bool Hub::serve_one() {
  int fd = -1;
  std::uint64_t registrations = 0;
  {
    std::lock_guard lock(mutex_);
    Front front;
    const Taken taken = take_one(&front);
    if (taken != Taken::kCall) return taken == Taken::kOther;
    PeerState& peer = *peers_[front.peer];
    peer.last_xid = front.head.xid;
    peer.answered = false;
    front_ = front;
    taken_apart_ = front.peer;
    fd = peer.transport->xprt_->xp_fd;
    registrations = registrations_;
  }
  dispatch(fd);
  if (front_) defer(registrations);  // libtirpc does not know the transport
  return true;
}

// A service may end its thread.
void Hub::dispatch(int fd) {
  try {
    svc_getreq_common(fd);
  } catch (...) {
    if (current_ != nullptr) current_->forget_arguments();
    throw;
  }
}

// As many as there can be when it begins: what comes meanwhile, from clients that never stop, is
// served in its turn.
void Hub::drain() {
  // Called from within a service, whose own message may still be in the way.
  if (is_dispatching()) return;
  const Dispatching dispatching(dispatcher_);
  std::size_t most = kMostInRing;
  {
    std::lock_guard lock(mutex_);
    take_up();  // those of a transport whose socket is served
    most *= std::max<std::size_t>(live_, 1);
  }
  for (std::size_t n = 0; generation_ == generation() && !exited(); ++n) {
    if (n == most) return endpoint_->ring_fd();
    if (!serve_one()) return;
  }
}

void Hub::serve() {
  if (is_dispatching()) return;
  const Dispatching dispatching(dispatcher_);
  const std::uint64_t end = monotonic_ns() + kSliceNs;
  for (unsigned n = 1; generation_ == generation() && !exited(); ++n) {
    if (serve_one()) {
      if (n % kClockEvery != 0 || monotonic_ns() < end) continue;
    } else {
      std::lock_guard lock(mutex_);
      if (!endpoint_->spin() && endpoint_->arm_fd()) {
        count(counters().sleeps);
        break;
      }
      if (monotonic_ns() < end) continue;
    }
    endpoint_->ring_fd();  // others have their turn; then we go on
    break;
  }
}

}  // namespace clan::rpc
