#include "objects/passive_endpoint.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "objects/eq.h"
#include "objects/fabric.h"
#include "system/other_hosts.h"
#include "wire/channel.h"

namespace clan::ofi {

fi_ops PassiveEndpoint::ops_ =
    object_ops(close_object<PassiveEndpoint>, guarded<PassiveEndpoint::bind>,
               guarded<PassiveEndpoint::control>);

fi_ops_ep PassiveEndpoint::endpoint_ops_ =
    endpoint_ops(not_supported, guarded<PassiveEndpoint::getopt>);

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

}  // namespace

int PassiveEndpoint::open(fid_fabric* fabric, fi_info* info, fid_pep** pep, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->ep_attr->type != FI_EP_MSG)
    return -FI_EINVAL;
  auto engine = make_context({});
  if (!engine) return failure(engine.error());
  ForkMutex::watch_forks();
  auto unread = std::make_shared<std::atomic<std::size_t>>(0);
  auto unanswered = std::make_shared<Unanswered>();
  auto* made = new (std::nothrow) PassiveEndpoint(std::move(*engine));
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_PEP, context, &ops_};
  made->ops = &endpoint_ops_;
  made->cm = &connection_ops_;
  made->fabric_ = Held(object_of<Fabric>(&fabric->fid).references());
  made->info_ = fi_dupinfo(info);
  made->wanted_ = read_address(info->src_addr, info->src_addrlen);
  made->unread_ = std::move(unread);
  made->unanswered_ = std::move(unanswered);
  if (made->info_ == nullptr) {
    delete made;
    return -FI_ENOMEM;
  }
  *pep = made;
  return 0;
}

PassiveEndpoint::~PassiveEndpoint() {
  {
    std::lock_guard lock(unanswered_->mutex);
    unanswered_->events = nullptr;  // all clients hear that we go
  }
  if (eq_ != nullptr) {
    if (listening_) eq_->remove_source(*this);
    eq_->forget(&fid);
  }
  messages_.reset();
  events_.reset();
  fi_freeinfo(info_);
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
  auto refusals = events->add_user(0);
  if (!refusals) return failure(refusals.error());
  messages_.emplace(std::move(*taken));
  events_.emplace(std::move(*events));
  std::lock_guard lock(unanswered_->mutex);
  unanswered_->events = &*events_;
  unanswered_->event = *refusals;
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
  request->answered = true;
  delete request;
  return sent ? 0 : failure(sent.error());
}

void PassiveEndpoint::make_progress() {
  std::lock_guard lock(mutex_);
  progress();
}

// True: there is more perhaps.
bool PassiveEndpoint::progress() {
  refuse_unanswered();
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

// Requests that the program has taken and let go of.
void PassiveEndpoint::refuse_unanswered() {
  std::vector<PeerIndex> gone;
  {
    std::lock_guard lock(unanswered_->mutex);
    gone.swap(unanswered_->indices);
  }
  for (const PeerIndex index : gone) {
    leaves(index);
    messages_->disconnect(index);
  }
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
  request->unanswered = unanswered_;
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
  const auto event = connection_event(&fid, unread->info(), data);
  eq_->try_write(FI_CONNREQ, event.data(), event.size(), std::move(unread));
  return true;
}

SocketAddress PassiveEndpoint::address() {
  std::lock_guard lock(mutex_);
  return start() == 0 ? address_ : SocketAddress{};
}

Result<int> PassiveEndpoint::descriptor() { return events_->fd(); }

int PassiveEndpoint::packets() { return events_->packets_fd(); }

bool PassiveEndpoint::arm(SleepsIn where, std::uint32_t*) {
  std::lock_guard lock(mutex_);
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (where == SleepsIn::kBoth && !events_->arm_packets()) break;
    Event taken[4];
    while (events_->poll(taken) == std::size(taken)) {
    }
    if (progress()) break;
    if (where == SleepsIn::kBoth ? events_->arm_fd_for_sleep() : events_->arm_fd()) return true;
  }
  events_->ring_fd();
  return false;
}

}  // namespace clan::ofi
