// The hub: one message endpoint for all clients of a process, a transport of its own to be polled by.
#include <clan/clock.h>
#include <clan/log.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "server.h"

namespace clan::rpc {
namespace {

constexpr std::uint64_t kSliceNs = 200'000;  ///< then others have their turn
constexpr unsigned kClockEvery = 16;         ///< messages
constexpr std::uint64_t kPatienceNs = 2'000'000'000;  ///< with a client that does not read its replies
constexpr std::uint64_t kFragmentNs = 5'000'000'000;  ///< for the next fragment of a call

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

// The descriptor is one object for parent and child: a child that polls it would take the parent's wake-ups.
void after_fork_in_child() {
  if (hub_fd < 0) return;
  const int never = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (never >= 0) {
    dup3(never, hub_fd, O_CLOEXEC);
    close(never);
  }
}

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
  static const int installed = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)installed;
  the_hub = hub;
  return hub;
}

bool Hub::start() {
  Context* ours = context();
  if (ours == nullptr) return false;
  generation_ = generation();
  MessageOptions options;
  options.max_message = std::uint64_t{1} << 31;
  options.eager_bytes = kEager;
  if (ours->network_port() != 0) service_ = random_word();
  auto endpoint = MessageEndpoint::create(*ours, service_ != 0 ? far_service(service_) : std::string(), options);
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

// --- meeting -----------------------------------------------------------------------------------------

Served* Hub::served(SVCXPRT* xprt) {
  Served* known = Served::of(xprt);
  if (known != nullptr && known->generation_ != generation()) {  // the parent's
    known->hub_ = this;
    known->generation_ = generation();
    known->where_ = Served::Where::kNowhere;
    known->from_clan_ = false;
  }
  return known != nullptr ? known : new (std::nothrow) Served(*this, xprt);
}

// A client may come with the token now. 0 or an errno.
std::uint32_t Hub::expect(SVCXPRT* xprt, const MeetArguments& arguments, bool far, std::uint64_t* token) {
  if (arguments.abi != kAbi) return EPROTONOSUPPORT;
  Expected expected{random_word(), nullptr, {}, 0, far};
  const netbuf& from = xprt->xp_rtaddr;
  if (from.buf != nullptr && from.len <= sizeof expected.from) {
    std::memcpy(&expected.from, from.buf, from.len);
    expected.from_length = from.len;
  }
  expected.served = expected.token != 0 ? served(xprt) : nullptr;
  if (expected.served == nullptr) return ENOMEM;
  std::lock_guard lock(mutex_);
  if (expected_.size() == kMostExpected) expected_.pop_front();
  expected_.push_back(expected);
  *token = expected.token;
  return 0;
}

MeetResults Hub::meet(SVCXPRT* xprt, const MeetArguments& arguments) {
  MeetResults results;
  results.status = expect(xprt, arguments, false, &results.token);
  if (results.status == 0) results.address = endpoint_->address();
  return results;
}

FarResults Hub::meet_far(SVCXPRT* xprt, const MeetArguments& arguments) {
  FarResults results;
  results.status = service_ == 0 ? ENONET : expect(xprt, arguments, true, &results.token);
  if (results.status != 0) return results;
  results.port = context()->network_port();
  results.service = service_;
  return results;
}

// What the client has sent by that path and we have not taken is dropped with it: it will not be served twice.
LeaveResults Hub::leave(SVCXPRT*, const LeaveArguments& arguments) {
  std::lock_guard lock(mutex_);
  const auto expected = std::find_if(expected_.begin(), expected_.end(),
                                     [&](const Expected& e) { return e.token == arguments.token; });
  if (expected != expected_.end()) {
    expected_.erase(expected);
    return {0, 0};
  }
  for (PeerIndex i = 0; i < peers_.size(); ++i) {
    if (peers_[i] && peers_[i]->token != 0 && peers_[i]->token == arguments.token) drop_peer(i, false);
  }
  for (const Departed& d : departed_) {
    if (d.token == arguments.token) return {0, d.last_xid == arguments.xid ? 1u : 0u};
  }
  return {ENOENT, 0};
}

void Hub::welcome(PeerIndex index, std::span<const std::byte> bytes) {
  Hello hello;
  const bool good = take_front(&bytes, &hello) && hello.kind == kHello && hello.abi == kAbi;
  const auto at = std::find_if(expected_.begin(), expected_.end(),
                               [&](const Expected& e) { return good && e.token == hello.token; });
  endpoint_->drop();
  if (at == expected_.end()) return drop_peer(index, true);
  PeerState& peer = *peers_[index];
  peer.served = at->served;
  peer.from = at->from;
  peer.from_length = at->from_length;
  peer.token = at->far ? at->token : 0;
  const char* const from = at->far ? "another host's client" : "a client";
  expected_.erase(at);
  Hello answer;
  answer.kind = kWelcome;
  if (!endpoint_->try_send(index, std::as_bytes(std::span(&answer, 1)), {})) return drop_peer(index, false);
  count(counters().clients);
  CLAN_INFO("%s's calls come over CLAN", from);
}

void Hub::drop_peer(PeerIndex index, bool hostile) {
  if (hostile) {
    count(counters().hostile);
    CLAN_WARN("a client's message makes no sense: it is not listened to any more");
  }
  if (peers_[index]->token != 0) {
    if (departed_.size() == kMostExpected) departed_.pop_front();
    departed_.push_back({peers_[index]->token, peers_[index]->last_xid});
  }
  endpoint_->disconnect(index);
  peers_[index].reset();
}

void Hub::forget(Served* served) {
  std::lock_guard lock(mutex_);
  std::erase_if(expected_, [&](const Expected& e) { return e.served == served; });
  for (PeerIndex i = 0; i < peers_.size(); ++i) {
    if (peers_[i] && peers_[i]->served == served) drop_peer(i, false);
  }
}

void Hub::bury_departed() {
  PeerIndex gone;
  while (endpoint_->take_departed(&gone)) {
    if (gone < peers_.size() && peers_[gone]) drop_peer(gone, false);
  }
}

// --- serving -----------------------------------------------------------------------------------------

namespace {
// What is left of a call whose arguments nobody wanted, or which its client has given up.
bool is_skipped(PeerState* peer, std::span<const std::byte> bytes) {
  ReplyHead head;
  if (!peer->skipping || !take_front(&bytes, &head) || head.kind != kMore) return false;
  peer->skipping = head.go_on == kFollows;
  return true;
}
}  // namespace

// Takes one message, if there is one, and has it dispatched. True: there may be another.
bool Hub::serve_one() {
  int fd = -1;
  {
    std::lock_guard lock(mutex_);
    auto message = endpoint_->peek();
    if (!message) {
      bury_departed();
      return false;
    }
    const PeerIndex from = message->from;
    while (peers_.size() <= from) peers_.emplace_back();
    if (!peers_[from]) peers_[from] = std::make_unique<PeerState>();
    PeerState& peer = *peers_[from];
    if (peer.served == nullptr) {
      welcome(from, message->bytes);
      return true;
    }
    Front front{from, {}, message->bytes};
    if (is_skipped(&peer, front.bytes)) {
      endpoint_->drop();
      return true;
    }
    bool good = take_front(&front.bytes, &front.head);
    if (good && front.head.new_caller != 0) good = take_caller(&front.bytes, &peer.caller);
    if (!good || front.head.kind != kCall || front.head.go_on > kFollows || !peer.caller.known) {
      endpoint_->drop();
      drop_peer(from, true);
      return true;
    }
    peer.last_xid = front.head.xid;
    front_ = front;
    fd = peer.served->xprt_->xp_fd;
  }
  svc_getreq_common(fd);
  if (front_) {  // the transport is not libtirpc's any more
    std::lock_guard lock(mutex_);
    const PeerIndex from = front_->peer;
    front_.reset();
    endpoint_->drop();
    drop_peer(from, false);
  }
  return true;
}

void Hub::drain() {
  // Called from within a service, whose own message may still be in the way.
  if (dispatching_) return;
  dispatching_ = true;
  for (bool more = true; more && generation_ == generation() && !exited();) more = serve_one();
  dispatching_ = false;
}

void Hub::serve() {
  if (dispatching_) return;
  dispatching_ = true;
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
  dispatching_ = false;
}

// --- fragments -----------------------------------------------------------------------------------------

bool Hub::await_more(PeerIndex from, std::uint32_t xid, std::vector<PeerIndex>* held, GoOn* go_on,
                     std::span<const std::byte>* bytes) {
  const std::uint64_t end = monotonic_ns() + kFragmentNs;
  std::unique_lock lock(mutex_);
  endpoint_->drop();
  for (;;) {
    auto message = endpoint_->peek();
    if (message.ok() && message->from != from) {
      held->push_back(message->from);
      endpoint_->hold();
    } else if (message.ok()) {
      *bytes = message->bytes;
      ReplyHead head;
      const bool good = take_front(bytes, &head) && head.kind == kMore && head.xid == xid && head.go_on <= kGivenUp &&
                        (head.go_on != kFollows || !bytes->empty());
      *go_on = good ? static_cast<GoOn>(head.go_on) : kGivenUp;
      if (good) return *go_on != kGivenUp;
      endpoint_->drop();
      drop_peer(from, true);
      return false;
    } else if (message.error().err != EAGAIN || monotonic_ns() >= end ||
               (endpoint_->has_gone(from) && !endpoint_->peek().ok())) {
      return false;
    } else if (!endpoint_->spin()) {
      lock.unlock();
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
      lock.lock();
    }
  }
}

bool Hub::await_room(PeerIndex to, std::uint64_t since) {
  if (endpoint_->has_gone(to)) return false;
  (void)endpoint_->poll_sent({});
  if (monotonic_ns() - since >= kPatienceNs) {
    CLAN_WARN("a client does not read its replies: it is not served over CLAN any more");
    if (peer(to) != nullptr) drop_peer(to, false);
    return false;
  }
  mutex_.unlock();  // the caller has it
  const timespec pause{0, 50'000};
  nanosleep(&pause, nullptr);
  mutex_.lock();
  return true;
}

}  // namespace clan::rpc
