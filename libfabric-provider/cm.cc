#include "cm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "counter.h"
#include "cq.h"
#include "domain.h"
#include "endpoint.h"
#include "eq.h"
#include "fabric.h"
#include "transport/other_hosts.h"

namespace clan::ofi {

fi_ops PassiveEndpoint::ops_ = {
    .size = sizeof(fi_ops),
    .close = PassiveEndpoint::close,
    .bind = guarded<PassiveEndpoint::bind>,
    .control = guarded<PassiveEndpoint::control>,
    .ops_open = not_supported,
    .tostr = not_supported,
    .ops_set = not_supported,
};

fi_ops_ep PassiveEndpoint::endpoint_ops_ = {
    .size = sizeof(fi_ops_ep),
    .cancel = not_supported,
    .getopt = guarded<PassiveEndpoint::getopt>,
    .setopt = not_supported,
    .tx_ctx = not_supported,
    .rx_ctx = not_supported,
    .rx_size_left = not_supported,
    .tx_size_left = not_supported,
};

fi_ops_cm PassiveEndpoint::connection_ops_ = {
    .size = sizeof(fi_ops_cm),
    .setname = guarded<PassiveEndpoint::set_name>,
    .getname = guarded<PassiveEndpoint::get_name>,
    .getpeer = not_supported,
    .connect = not_supported,
    .listen = guarded<PassiveEndpoint::listen>,
    .accept = not_supported,
    .reject = guarded<PassiveEndpoint::reject>,
    .shutdown = not_supported,
    .join = not_supported,
};

fi_ops ConnectionRequest::ops_ = {
    .size = sizeof(fi_ops),
    .close = ConnectionRequest::close,
    .bind = not_supported,
    .control = not_supported,
    .ops_open = not_supported,
    .tostr = not_supported,
    .ops_set = not_supported,
};

ConnectionRequest::ConnectionRequest() : fid{FI_CLASS_CONNREQ, nullptr, &ops_} {}

int ConnectionRequest::close(fid_t id) {
  delete connection_request(id);
  return 0;
}

namespace {

constexpr int kMostTaken = 64;  ///< messages to a passive endpoint that are taken in one go

/// A request that the program has not read: the fi_info with the handle in it.
class UnreadRequest final : public Eq::Request {
 public:
  UnreadRequest(fi_info* info, std::shared_ptr<std::atomic<std::size_t>> unread)
      : info_(info), unread_(std::move(unread)) {
    unread_->fetch_add(1, std::memory_order_relaxed);  // relaxed: a number alone
  }
  ~UnreadRequest() override {
    unread_->fetch_sub(1, std::memory_order_relaxed);  // relaxed: a number alone
    if (info_ == nullptr) return;
    if (info_->handle != nullptr) fi_close(info_->handle);
    fi_freeinfo(info_);
  }
  void take() override { info_ = nullptr; }
  fi_info* info() const { return info_; }

 private:
  fi_info* info_;
  std::shared_ptr<std::atomic<std::size_t>> unread_;
};

void write_event(Eq& eq, std::uint32_t event, fid_t object, std::unique_ptr<UnreadRequest> request,
                 std::span<const std::byte> data) {
  fi_info* const info = request != nullptr ? request->info() : nullptr;
  std::vector<std::byte> bytes(sizeof(fi_eq_cm_entry) + data.size());
  std::memcpy(bytes.data() + offsetof(fi_eq_cm_entry, fid), &object, sizeof object);
  std::memcpy(bytes.data() + offsetof(fi_eq_cm_entry, info), &info, sizeof info);
  std::copy(data.begin(), data.end(), bytes.begin() + sizeof(fi_eq_cm_entry));
  eq.try_write(event, bytes.data(), bytes.size(), std::move(request));
}

}  // namespace

void write_connection_event(Eq& eq, std::uint32_t event, fid_t object,
                            std::span<const std::byte> data) try {
  write_event(eq, event, object, nullptr, data);
} catch (const std::bad_alloc&) {
  eq.lose();
}

// --- PassiveEndpoint -----------------------------------------------------------------------------

int PassiveEndpoint::open(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->ep_attr->type != FI_EP_MSG)
    return -FI_EINVAL;
  auto engine = make_context({});
  if (!engine) return failure(engine.error());
  ForkMutex::watch_forks();
  auto unread = std::make_shared<std::atomic<std::size_t>>(0);
  auto* made = new (std::nothrow) PassiveEndpoint(std::move(*engine));
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_PEP, context, &ops_};
  made->ops = &endpoint_ops_;
  made->cm = &connection_ops_;
  made->fabric_ = Held(object_of<Fabric>(&fabric->fid).references());
  made->info_ = fi_dupinfo(info);
  made->wanted_ = read_address(info->src_addr, info->src_addrlen);
  made->unread_ = std::move(unread);
  if (made->info_ == nullptr) {
    delete made;
    return -FI_ENOMEM;
  }
  *pep = made;
  return 0;
}

PassiveEndpoint::~PassiveEndpoint() {
  if (eq_ != nullptr) {
    if (listening_) eq_->remove_source(*this);
    eq_->forget(&fid);
  }
  messages_.reset();
  events_.reset();
  fi_freeinfo(info_);
}

int PassiveEndpoint::close(fid_t id) {
  delete &object_of<PassiveEndpoint>(id);
  return 0;
}

int PassiveEndpoint::bind(fid_t id, fid_t to, std::uint64_t) {
  auto& pep = object_of<PassiveEndpoint>(id);
  if (to->fclass != FI_CLASS_EQ || pep.eq_ != nullptr) return -FI_EINVAL;
  pep.eq_ = &object_of<Eq>(to);
  pep.eq_held_ = Held(pep.eq_->references());
  return 0;
}

int PassiveEndpoint::control(fid_t id, int command, void* argument) {
  if (command != FI_BACKLOG) return -FI_ENOSYS;
  auto& pep = object_of<PassiveEndpoint>(id);
  const int wanted = argument != nullptr ? *static_cast<const int*>(argument) : 0;
  if (wanted < 0) return -FI_EINVAL;
  std::lock_guard lock(pep.mutex_);
  pep.backlog_ = std::clamp<std::size_t>(static_cast<std::size_t>(wanted), 1, kMostBacklog);
  return 0;
}

int PassiveEndpoint::getopt(fid_t, int level, int name, void* value, std::size_t* length) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE) return -FI_ENOPROTOOPT;
  if (*length < sizeof(std::size_t)) return -FI_ETOOSMALL;
  *static_cast<std::size_t*>(value) = kMostConnectionData;
  *length = sizeof(std::size_t);
  return 0;
}

int PassiveEndpoint::set_name(fid_t id, void* address, std::size_t length) {
  auto& pep = object_of<PassiveEndpoint>(id);
  std::lock_guard lock(pep.mutex_);
  if (pep.messages_) return -FI_EBUSY;
  const SocketAddress wanted = read_address(address, length);
  if (!wanted.valid()) return -FI_EINVAL;
  pep.wanted_ = wanted;
  return 0;
}

int PassiveEndpoint::get_name(fid_t id, void* address, std::size_t* length) {
  auto& pep = object_of<PassiveEndpoint>(id);
  std::lock_guard lock(pep.mutex_);
  if (int rc = pep.start(); rc != 0) return rc;
  const std::size_t room = *length;
  *length = pep.address_.length;
  if (address != nullptr) {
    std::memcpy(address, &pep.address_.storage, std::min<std::size_t>(room, pep.address_.length));
  }
  return room < pep.address_.length ? -FI_ETOOSMALL : 0;
}

// Takes its name. Under the mutex.
int PassiveEndpoint::start() {
  if (messages_) return 0;
  auto taken = take_name(context_, wanted_, {}, &address_);
  if (!taken) return failure(taken.error());
  auto events = EventQueue::create(context_);
  if (!events) return failure(events.error());
  if (auto s = taken->register_with(*events, 0); !s) return failure(s.error());
  messages_.emplace(std::move(*taken));
  events_.emplace(std::move(*events));
  return 0;
}

int PassiveEndpoint::listen(fid_pep* id) {
  auto& pep = *static_cast<PassiveEndpoint*>(id);
  if (pep.eq_ == nullptr) return -FI_ENOEQ;
  {
    std::lock_guard lock(pep.mutex_);
    if (pep.listening_) return -FI_EINVAL;
    if (int rc = pep.start(); rc != 0) return rc;
    pep.listening_ = true;
  }
  return pep.eq_->add_source(pep);
}

int PassiveEndpoint::reject(fid_pep* id, fid_t handle, const void* data, std::size_t length) {
  auto& pep = *static_cast<PassiveEndpoint*>(id);
  ConnectionRequest* const request = connection_request(handle);
  if (request == nullptr || request->passive != &pep || length > kMostConnectionData)
    return -FI_EINVAL;
  const WireHeader header{.op = Op::kReject, .tag = request->attempt};
  std::lock_guard lock(pep.mutex_);
  auto sent = pep.messages_->post(request->index, std::as_bytes(std::span(&header, 1)),
                                  {static_cast<const std::byte*>(data), length}, 0);
  // our caller has it still, and tries again
  if (!sent && sent.error().err == EAGAIN) return -FI_EAGAIN;
  delete request;
  return sent ? 0 : failure(sent.error());
}

void PassiveEndpoint::make_progress() {
  std::lock_guard lock(mutex_);
  progress();
}

// True: there is more perhaps.
bool PassiveEndpoint::progress() {
  int taken = 0;
  for (; taken < kMostTaken; ++taken) {
    auto message = messages_->peek();
    if (!message) break;
    WireHeader header;
    if (message->offered || message->bytes.size() < sizeof header) {
      messages_->drop();
      continue;
    }
    std::memcpy(&header, message->bytes.data(), sizeof header);
    const PeerIndex from = message->from;
    bool welcome = false;
    try {
      welcome = asked(from, header, message->bytes.subspan(sizeof header));
    } catch (const std::bad_alloc&) {
      FI_WARN(&g_provider, FI_LOG_EP_CTRL, "no memory for a client\n");
    }
    messages_->drop();
    if (!welcome) {  // it hears that as a refusal
      leaves(from);
      messages_->disconnect(from);
    }
  }
  PeerIndex gone;
  while (messages_->take_departed(&gone)) {
    leaves(gone);
    messages_->disconnect(gone);
  }
  return taken == kMostTaken;
}

void PassiveEndpoint::leaves(PeerIndex index) {
  auto client = clients_.find(index);
  if (client == clients_.end()) return;
  if (!client->second.asked) --silent_;
  clients_.erase(client);
}

// False: it is refused, and the connection with it ends.
bool PassiveEndpoint::asked(PeerIndex from, const WireHeader& header,
                            std::span<const std::byte> data) {
  auto client = clients_.find(from);
  if (header.op == Op::kHello) {
    Hello hello;
    if (client != clients_.end() || data.size() < sizeof hello) return true;
    std::memcpy(&hello, data.data(), sizeof hello);
    if (hello.version != kWireVersion || hello.length > sizeof hello.address) return true;
    const SocketAddress address = read_address(&hello.address, hello.length);
    if (!address.valid()) return true;
    if (Name name; !name_peer(address, messages_->is_far(from), &name)) return false;
    if (silent_ >= kMostSilent) return false;
    clients_[from].address = address;
    ++silent_;
    return true;
  }
  if (header.op != Op::kConnect || client == clients_.end() || client->second.asked) return true;
  if (data.size() > kMostConnectionData) return true;
  // relaxed: a number alone
  if (unread_->load(std::memory_order_relaxed) >= backlog_) return false;
  client->second.asked = true;
  --silent_;
  return ask_program(client->second.address, from, header, data);
}

bool PassiveEndpoint::ask_program(const SocketAddress& client, PeerIndex from,
                                  const WireHeader& header, std::span<const std::byte> data) {
  fi_info* info = fi_dupinfo(info_);
  if (info == nullptr) return false;
  info->handle = nullptr;
  std::unique_ptr<UnreadRequest> unread(new (std::nothrow) UnreadRequest(info, unread_));
  if (unread == nullptr) {
    fi_freeinfo(info);
    return false;
  }
  auto* request = new (std::nothrow) ConnectionRequest;
  if (request == nullptr) return false;
  info->handle = request;
  request->client = client;
  request->passive = this;
  request->attempt = header.tag;
  request->index = from;
  const auto put = [](const SocketAddress& address, void** to, std::size_t* length) {
    std::free(*to);
    *length = 0;
    *to = std::malloc(address.length);
    if (*to == nullptr) return;
    std::memcpy(*to, &address.storage, address.length);
    *length = address.length;
  };
  put(address_, &info->src_addr, &info->src_addrlen);
  put(request->client, &info->dest_addr, &info->dest_addrlen);
  write_event(*eq_, FI_CONNREQ, &fid, std::move(unread), data);
  return true;
}

SocketAddress PassiveEndpoint::address() {
  std::lock_guard lock(mutex_);
  return start() == 0 ? address_ : SocketAddress{};
}

Result<int> PassiveEndpoint::descriptor() { return events_->fd(); }

bool PassiveEndpoint::arm(std::uint32_t*) {
  std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 3; ++attempt) {
    Event taken[4];
    while (events_->poll(taken) == std::size(taken)) {
    }
    if (progress()) break;
    if (events_->arm_fd()) return true;
  }
  events_->ring_fd();
  return false;
}

// --- active endpoints ----------------------------------------------------------------------------

namespace {

std::span<const std::byte> data_of(const void* data, std::size_t length) {
  return {static_cast<const std::byte*>(data), data != nullptr ? length : 0};
}

}  // namespace

void Endpoint::tell(std::uint32_t event, std::span<const std::byte> data) {
  if (eq_ != nullptr) write_connection_event(*eq_, event, &fid, data);
}

void Endpoint::fail_connection(int err, std::span<const std::byte> data) {
  if (eq_ == nullptr) return;
  fi_eq_err_entry error{};
  error.fid = &fid;
  error.context = fid.context;
  error.err = err;
  error.prov_errno = err;
  error.err_data = const_cast<std::byte*>(data.data());
  error.err_data_size = data.size();
  eq_->write_error(error);
}

int Endpoint::connect(fid_ep* id, const void* address, const void* data, std::size_t length) {
  auto& endpoint = *static_cast<Endpoint*>(id);
  if (!endpoint.connected_mode_) return -FI_EOPNOTSUPP;
  std::lock_guard lock(endpoint.lock());
  if (endpoint.eq_ == nullptr) return -FI_ENOEQ;
  if (endpoint.connection_ != nullptr) return -FI_EISCONN;
  if (endpoint.asked_ != nullptr) return -FI_EALREADY;
  if (length > kMostConnectionData) return -FI_EINVAL;
  const SocketAddress to =
      address != nullptr ? read_address(address, sizeof(sockaddr_in6)) : endpoint.remote_;
  if (!to.valid()) return -FI_EINVAL;
  endpoint.remote_ = to;
  if (int rc = endpoint.enable(); rc != 0) return rc;
  endpoint.attempt_ = (std::uint64_t{arc4random()} << 32) | arc4random();
  const WireHeader header{.op = Op::kConnect, .tag = endpoint.attempt_};
  const auto own = data_of(data, length);
  Peer* asked = nullptr;
  const int rc =
      endpoint.transport_->introduce(name_of(to), header, own.data(), own.size(), false, &asked);
  if (rc == -FI_EAGAIN) return rc;  // too many ask at this moment
  if (rc != 0) {
    endpoint.fail_connection(-rc, {});
  } else {
    endpoint.asked_ = asked;
  }
  return 0;
}

int Endpoint::accept(fid_ep* id, const void* data, std::size_t length) {
  auto& endpoint = *static_cast<Endpoint*>(id);
  std::lock_guard lock(endpoint.lock());
  if (endpoint.request_ == nullptr || length > kMostConnectionData) return -FI_EINVAL;
  if (endpoint.eq_ == nullptr) return -FI_ENOEQ;
  if (int rc = endpoint.enable(); rc != 0) return rc;
  const ConnectionRequest& request = *endpoint.request_;
  const WireHeader header{.op = Op::kAccept, .tag = request.attempt};
  const auto own = data_of(data, length);
  Peer* client = nullptr;
  const int rc = endpoint.transport_->introduce(name_of(request.client), header, own.data(),
                                                own.size(), true, &client);
  if (rc == -FI_EAGAIN) return rc;  // too many ask it at this moment: the request is there still
  endpoint.request_.reset();
  if (rc != 0) return rc;
  endpoint.connection_ = client;
  endpoint.tell(FI_CONNECTED, {});
  return 0;
}

Peer* Endpoint::answered(Peer* peer, const WireHeader& header, std::span<const std::byte> data) {
  if (!waits_for(header.tag)) return nullptr;
  Peer* const asked = std::exchange(asked_, nullptr);
  if (peer != nullptr) {
    connection_ = peer;
    tell(FI_CONNECTED, data);
  } else {
    fail_connection(FI_ECONNREFUSED, data);
  }
  return asked;
}

void Endpoint::peer_left(Peer& peer, int reason) {
  if (!connected_mode_) return;
  if (&peer == asked_) {
    asked_ = nullptr;
    fail_connection(reason == ETIMEDOUT ? FI_ETIMEDOUT : FI_ECONNREFUSED, {});
  }
  if (&peer != connection_) return;
  connection_ = nullptr;
  // A peer that has closed is told of by the event alone: programs that share a queue among
  // endpoints do not expect errors while they read the rest.
  if (reason != 0) flush_receives();
  if (!std::exchange(shut_down_, true)) tell(FI_SHUTDOWN, {});
}

// Receives that nobody will serve any more. Those of a shared context wait for others.
void Endpoint::flush_receives() {
  if (receives_ != &own_receives_) return;
  for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged}) {
    while (Posted* posted = receives_->posted(kind).first()) {
      Completion completion;
      completion.context = posted->context;
      completion.flags = FI_RECV | (kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
      receives_->posted(kind).remove(*posted);
      if (Counter* counter = posted->deferred ? posted->counter : this->counter(kReceives))
        counter->count_error();
      receives_->free_posted(*posted);
      if (receive_cq_ != nullptr) receive_cq_->write_error(completion, FI_ECANCELED);
    }
  }
}

int Endpoint::shutdown(fid_ep* id, std::uint64_t flags) {
  auto& endpoint = *static_cast<Endpoint*>(id);
  if (flags != 0) return -FI_EINVAL;
  if (!endpoint.connected_mode_) return -FI_EOPNOTSUPP;
  std::lock_guard lock(endpoint.lock());
  if (endpoint.connection_ == nullptr) return endpoint.shut_down_ ? 0 : -FI_ENOTCONN;
  Peer& peer = *std::exchange(endpoint.connection_, nullptr);
  endpoint.transport_->hang_up(peer);
  endpoint.flush_receives();
  if (!std::exchange(endpoint.shut_down_, true)) endpoint.tell(FI_SHUTDOWN, {});
  return 0;
}

int Endpoint::get_peer(fid_ep* id, void* address, std::size_t* length) {
  auto& endpoint = *static_cast<Endpoint*>(id);
  std::lock_guard lock(endpoint.lock());
  if (!endpoint.connected_mode_ || endpoint.connection_ == nullptr) return -FI_ENOTCONN;
  const std::size_t room = *length;
  *length = endpoint.remote_.length;
  if (address != nullptr) {
    std::memcpy(address, &endpoint.remote_.storage,
                std::min<std::size_t>(room, endpoint.remote_.length));
  }
  return room < endpoint.remote_.length ? -FI_ETOOSMALL : 0;
}

}  // namespace clan::ofi
