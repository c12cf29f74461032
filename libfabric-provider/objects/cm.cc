#include "objects/cm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "objects/eq.h"

namespace clan::ofi {

fi_ops ConnectionRequest::ops_ = object_ops(ConnectionRequest::close);

ConnectionRequest::ConnectionRequest() : fid{FI_CLASS_CONNREQ, nullptr, &ops_} {}

// An endpoint that was made for it is closed, or nobody has read of it.
ConnectionRequest::~ConnectionRequest() {
  if (answered || unanswered == nullptr) return;
  if (unanswered->forks != ForkMutex::forks()) return;  // its parent's
  std::lock_guard lock(unanswered->mutex);
  if (unanswered->events == nullptr) return;
  try {
    unanswered->indices.push_back(index);
    unanswered->events->post_user(unanswered->event);
  } catch (const std::bad_alloc&) {  // its client waits until it is tired of it
  }
}

int ConnectionRequest::close(fid_t id) {
  delete connection_request(id);
  return 0;
}

std::vector<std::byte> connection_event(fid_t object, fi_info* info,
                                        std::span<const std::byte> data) {
  std::vector<std::byte> bytes(sizeof(fi_eq_cm_entry) + data.size());
  std::memcpy(bytes.data() + offsetof(fi_eq_cm_entry, fid), &object, sizeof object);
  std::memcpy(bytes.data() + offsetof(fi_eq_cm_entry, info), &info, sizeof info);
  std::copy(data.begin(), data.end(), bytes.begin() + sizeof(fi_eq_cm_entry));
  return bytes;
}

void write_connection_event(Eq& eq, std::uint32_t event, fid_t object,
                            std::span<const std::byte> data) try {
  const auto bytes = connection_event(object, nullptr, data);
  eq.try_write(event, bytes.data(), bytes.size(), nullptr);
} catch (const std::bad_alloc&) {
  eq.lose();
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
  endpoint.request_->answered = rc == 0;
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
  // Only the event reports a peer that has closed: programs that share a queue among endpoints do
  // not expect errors while they read the rest.
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
