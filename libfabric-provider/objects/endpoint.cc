#include "objects/endpoint.h"

#include <algorithm>
#include <cstring>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/eq.h"
#include "objects/passive_endpoint.h"
#include "objects/shared_context.h"

namespace clan::ofi {

fi_ops Endpoint::ops_ =
    object_ops(Endpoint::close, guarded<Endpoint::bind>, guarded<Endpoint::control>);

fi_ops_ep Endpoint::endpoint_ops_ =
    endpoint_ops(guarded<Endpoint::cancel>, guarded<Endpoint::getopt>, guarded<Endpoint::setopt>);

fi_ops_cm Endpoint::connection_ops_ = {
    .size = sizeof(fi_ops_cm),
    .setname = guarded<Endpoint::set_name>,
    .getname = guarded<Endpoint::get_name>,
    .getpeer = guarded<Endpoint::get_peer>,
    .connect = guarded<Endpoint::connect>,
    .listen = not_supported,
    .accept = guarded<Endpoint::accept>,
    .reject = not_supported,
    .shutdown = guarded<Endpoint::shutdown>,
    .join = not_supported,
};

fi_ops_collective g_collective_ops = {
    .size = sizeof(fi_ops_collective),
    .barrier = not_supported,
    .broadcast = not_supported,
    .alltoall = not_supported,
    .allreduce = not_supported,
    .allgather = not_supported,
    .reduce_scatter = not_supported,
    .reduce = not_supported,
    .scatter = not_supported,
    .gather = not_supported,
    .msg = not_supported,
    .barrier2 = not_supported,
};

int Endpoint::open(Domain& domain, fi_info* info, fid_ep** ep, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->tx_attr == nullptr ||
      info->rx_attr == nullptr) {
    return -FI_EINVAL;
  }
  const fi_ep_type type = info->ep_attr->type;
  if (type != FI_EP_RDM && type != FI_EP_MSG && type != FI_EP_DGRAM) return -FI_EINVAL;
  auto* made = new (std::nothrow) Endpoint(domain, std::make_shared<Transport>(domain));
  if (made == nullptr) return -FI_ENOMEM;
  made->set_tables(FI_CLASS_EP, context);
  made->domain_held_ = Held(domain.references());
  made->wanted_ = read_address(info->src_addr, info->src_addrlen);
  made->set_attributes(*info);
  made->datagrams_ = type == FI_EP_DGRAM;
  if (type == FI_EP_MSG) {
    made->connected_mode_ = true;
    made->transport_->only_introduce();
    made->remote_ = read_address(info->dest_addr, info->dest_addrlen);
    made->request_.reset(connection_request(info->handle));
    // The event queue may be read by a thread of its own, whatever was said of the domain.
    domain.lock().require();
    // One that comes from a passive endpoint shows that one's name, as with TCP, but is reached by
    // its own.
    if (made->request_ != nullptr) made->shown_ = made->wanted_;
    if (info->handle != nullptr && info->handle->fclass == FI_CLASS_PEP) {
      made->shown_ = object_of<PassiveEndpoint>(info->handle).address();
    }
    if (made->shown_.valid()) {
      made->wanted_ = made->shown_;
      made->wanted_.set_port(0);
    }
  }
  *ep = made;
  return 0;
}

void Endpoint::set_tables(std::size_t fclass, void* context) {
  fid = {fclass, context, &ops_};
  ops = &endpoint_ops_;
  cm = &connection_ops_;
  msg = &g_message_ops;
  tagged = &g_tagged_ops;
  rma = &g_rma_ops;
  atomic = &g_atomic_ops;
  collective = &g_collective_ops;
}

void Endpoint::set_attributes(const fi_info& info) {
  caps_ = info.caps;
  receive_caps_ = info.rx_attr->caps != 0 ? info.rx_attr->caps : info.caps;
  tells_source_ = (info.caps & FI_SOURCE) != 0;
  tells_unknown_source_ = tells_source_ && (info.caps & FI_SOURCE_ERR) != 0;
  send_flags_ = info.tx_attr->op_flags;
  receive_flags_ = info.rx_attr->op_flags;
}

Endpoint::~Endpoint() {
  if (eq_ != nullptr) {
    if (connected_mode_) eq_->remove_source(domain_);
    eq_->forget(&fid);
  }
  std::lock_guard lock(domain_.lock());
  domain_.forget(*this);
  transport_->forget(*this);
  if (receiving_) transport_->receiver().detach(*this, context_);
  if (send_cq_ != nullptr) send_cq_->transports().remove(*transport_);
  if (receive_cq_ != nullptr) receive_cq_->transports().remove(*transport_);
  for (Counter* counter : counters_) {
    if (counter != nullptr) counter->transports().remove(*transport_);
  }
  if (transport_.use_count() == 1) domain_.remove_transport(*transport_);
  transport_.reset();
}

Lock& Endpoint::lock() { return domain_.lock(); }

int Endpoint::close(fid_t id) {
  auto& endpoint = object_of<Endpoint>(id);
  if (endpoint.aliases_.any()) return -FI_EBUSY;
  delete &endpoint;
  return 0;
}

// The same endpoint with other default flags. Under the lock.
int Endpoint::make_alias(const struct fi_alias& alias) {
  const std::uint64_t which = alias.flags & (FI_TRANSMIT | FI_RECV);
  if (!enabled_ || original_ != this || (which != FI_TRANSMIT && which != FI_RECV))
    return -FI_EINVAL;
  auto* made = new (std::nothrow) Endpoint(domain_, transport_);
  if (made == nullptr) return -FI_ENOMEM;
  made->set_tables(fid.fclass, fid.context);
  made->original_ = this;
  made->original_held_ = Held(aliases_);
  made->receiving_ = false;
  made->context_ = context_;
  made->receives_ = receives_;
  made->av_ = av_;
  made->send_cq_ = send_cq_;
  made->receive_cq_ = receive_cq_;
  made->send_selective_ = send_selective_;
  made->receive_selective_ = receive_selective_;
  std::copy(std::begin(counters_), std::end(counters_), made->counters_);
  // What its end will undo.
  if (send_cq_ != nullptr) send_cq_->transports().add(*transport_);
  if (receive_cq_ != nullptr) receive_cq_->transports().add(*transport_);
  for (Counter* counter : counters_) {
    if (counter != nullptr) counter->transports().add(*transport_);
  }
  made->caps_ = caps_;
  made->receive_caps_ = receive_caps_;
  made->send_flags_ = which == FI_TRANSMIT ? alias.flags & ~which : send_flags_;
  made->receive_flags_ = which == FI_RECV ? alias.flags & ~which : receive_flags_;
  made->tells_source_ = tells_source_;
  made->tells_unknown_source_ = tells_unknown_source_;
  made->least_multi_receive_ = least_multi_receive_;
  made->connected_mode_ = connected_mode_;
  made->datagrams_ = datagrams_;
  made->enabled_ = true;
  *alias.fid = &made->fid;
  return 0;
}

int Endpoint::bind(fid_t id, fid_t to, std::uint64_t flags) {
  auto& endpoint = object_of<Endpoint>(id);
  if (to->fclass == FI_CLASS_EQ) {
    if (endpoint.eq_ != nullptr) return -FI_EINVAL;
    auto& eq = object_of<Eq>(to);
    endpoint.eq_held_ = Held(eq.references());
    // Not under the lock: progress of the queue's takes it.
    if (int rc = endpoint.connected_mode_ ? eq.add_source(endpoint.domain_) : 0; rc != 0) return rc;
    endpoint.eq_ = &eq;
    return 0;
  }
  std::lock_guard lock(endpoint.lock());
  switch (to->fclass) {
    case FI_CLASS_CQ: return endpoint.bind_cq(object_of<Cq>(to), flags);
    case FI_CLASS_CNTR: return endpoint.bind_counter(object_of<Counter>(to), flags);
    case FI_CLASS_AV:
      if (endpoint.av_ != nullptr) return -FI_EINVAL;
      if (&object_of<Av>(to).domain() != &endpoint.domain_) return -FI_EINVAL;
      endpoint.av_ = &object_of<Av>(to);
      endpoint.av_held_ = Held(endpoint.av_->references());
      endpoint.transport_->set_av(endpoint.av_);
      return 0;
    case FI_CLASS_SRX_CTX: {
      auto& shared = object_of<SharedReceive>(to);
      if (&shared.domain() != &endpoint.domain_) return -FI_EINVAL;
      endpoint.shared_receive_held_ = Held(shared.references());
      endpoint.receives_ = &shared.receives();
      return 0;
    }
    case FI_CLASS_STX_CTX:
    case FI_CLASS_MR: return 0;
    default: return -FI_EINVAL;
  }
}

int Endpoint::bind_cq(Cq& cq, std::uint64_t flags) {
  if ((flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION)) != 0 ||
      (flags & (FI_TRANSMIT | FI_RECV)) == 0 || &cq.domain() != &domain_) {
    return -FI_EINVAL;
  }
  if ((flags & FI_TRANSMIT) != 0) {
    if (send_cq_ != nullptr) return -FI_EINVAL;
    send_cq_ = &cq;
    send_cq_held_ = Held(cq.references());
    send_selective_ = (flags & FI_SELECTIVE_COMPLETION) != 0;
    cq.transports().add(*transport_);
  }
  if ((flags & FI_RECV) != 0) {
    if (receive_cq_ != nullptr) return -FI_EINVAL;
    receive_cq_ = &cq;
    receive_cq_held_ = Held(cq.references());
    receive_selective_ = (flags & FI_SELECTIVE_COMPLETION) != 0;
    cq.transports().add(*transport_);
  }
  return 0;
}

int Endpoint::bind_counter(Counter& counter, std::uint64_t flags) {
  constexpr std::pair<std::uint64_t, Counted> kKinds[] = {
      {FI_SEND, kSends},   {FI_RECV, kReceives},           {FI_READ, kReads},
      {FI_WRITE, kWrites}, {FI_REMOTE_READ, kRemoteReads}, {FI_REMOTE_WRITE, kRemoteWrites}};
  std::uint64_t known = 0;
  for (const auto& [flag, what] : kKinds) known |= flag;
  if ((flags & known) == 0 || (flags & ~known) != 0 || &counter.domain() != &domain_)
    return -FI_EINVAL;
  for (const auto& [flag, what] : kKinds) {
    if ((flags & flag) == 0) continue;
    if (counters_[what] != nullptr) return -FI_EINVAL;
    counters_[what] = &counter;
    counters_held_[what] = Held(counter.references());
    counter.transports().add(*transport_);
  }
  return 0;
}

int Endpoint::enable() {
  if (enabled_) return 0;
  if (connected_mode_ && eq_ == nullptr) return -FI_ENOEQ;
  if (av_ == nullptr)
    av_ = transport_->av();  // a scalable endpoint's, which may have come after its contexts
  if (!connected_mode_ && av_ == nullptr) return -FI_ENOAV;
  const bool sends = (caps_ & (FI_SEND | FI_READ | FI_WRITE)) != 0 && fid.fclass != FI_CLASS_RX_CTX;
  const bool receives = (caps_ & FI_RECV) != 0 && receiving_;
  if (sends && send_cq_ == nullptr && counters_[kSends] == nullptr &&
      counters_[kReads] == nullptr && counters_[kWrites] == nullptr) {
    return -FI_ENOCQ;
  }
  if (receives && receive_cq_ == nullptr && counters_[kReceives] == nullptr) return -FI_ENOCQ;
  if (int rc = transport_->start(wanted_); rc != 0) return rc;
  if (receiving_) transport_->receiver().attach(*this, context_);
  enabled_ = true;
  return 0;
}

int Endpoint::control(fid_t id, int command, void* argument) {
  auto& endpoint = object_of<Endpoint>(id);
  std::lock_guard lock(endpoint.lock());
  switch (command) {
    case FI_ENABLE: return endpoint.enable();
    case FI_ALIAS: return endpoint.make_alias(*static_cast<const struct fi_alias*>(argument));
    case FI_GETOPSFLAG: {
      auto& flags = *static_cast<std::uint64_t*>(argument);
      const std::uint64_t which = flags & (FI_TRANSMIT | FI_RECV);
      if (which == FI_TRANSMIT) {
        flags = endpoint.send_flags_;
      } else if (which == FI_RECV) {
        flags = endpoint.receive_flags_;
      } else {
        return -FI_EINVAL;
      }
      return 0;
    }
    case FI_SETOPSFLAG: {
      const std::uint64_t flags = *static_cast<std::uint64_t*>(argument);
      const std::uint64_t which = flags & (FI_TRANSMIT | FI_RECV);
      if (which == FI_TRANSMIT) {
        endpoint.send_flags_ = flags & ~FI_TRANSMIT;
      } else if (which == FI_RECV) {
        endpoint.receive_flags_ = flags & ~FI_RECV;
      } else {
        return -FI_EINVAL;
      }
      return 0;
    }
    default: return -FI_ENOSYS;
  }
}

ssize_t Endpoint::cancel(fid_t id, void* context) {
  auto& endpoint = object_of<Endpoint>(id);
  std::lock_guard lock(endpoint.lock());
  ReceiveQueue& queue = endpoint.receives();
  for (auto kind : {ReceiveQueue::kTagged, ReceiveQueue::kUntagged}) {
    for (Posted* posted = queue.posted(kind).first(); posted != nullptr; posted = posted->next) {
      if (posted->context != context) continue;
      if (posted->writers > 0) {  // in a part of it; the last of them ends it
        queue.posted(kind).remove(*posted);
        posted->given_up = posted->cancelled = true;
        return 0;
      }
      Completion completion;
      completion.context = context;
      completion.flags = FI_RECV | (kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
      completion.tag = posted->tag;
      queue.posted(kind).remove(*posted);
      if (Counter* counter = posted->deferred ? posted->counter : endpoint.counter(kReceives))
        counter->count_error();
      queue.free_posted(*posted);
      if (endpoint.receive_cq_ != nullptr)
        endpoint.receive_cq_->write_error(completion, FI_ECANCELED);
      return 0;
    }
  }
  return -FI_ENOENT;
}

int Endpoint::getopt(fid_t id, int level, int name, void* value, std::size_t* length) {
  auto& endpoint = object_of<Endpoint>(id);
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  if (name == FI_OPT_CM_DATA_SIZE) {
    if (*length < sizeof(std::size_t)) return -FI_ETOOSMALL;
    *static_cast<std::size_t*>(value) = kMostConnectionData;
    *length = sizeof(std::size_t);
    return 0;
  }
  if (name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (*length < sizeof(std::size_t)) return -FI_ETOOSMALL;
  *static_cast<std::size_t*>(value) = endpoint.least_multi_receive_;
  *length = sizeof(std::size_t);
  return 0;
}

int Endpoint::setopt(fid_t id, int level, int name, const void* value, std::size_t length) {
  auto& endpoint = object_of<Endpoint>(id);
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  if (name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (length < sizeof(std::size_t)) return -FI_EINVAL;
  endpoint.least_multi_receive_ = *static_cast<const std::size_t*>(value);
  return 0;
}

int Endpoint::set_name(fid_t id, void* address, std::size_t length) {
  auto& endpoint = object_of<Endpoint>(id);
  std::lock_guard lock(endpoint.lock());
  if (endpoint.transport_->started()) return -FI_EBUSY;
  const SocketAddress wanted = read_address(address, length);
  if (!wanted.valid()) return -FI_EINVAL;
  endpoint.wanted_ = wanted;
  return 0;
}

int Endpoint::get_name(fid_t id, void* address, std::size_t* length) {
  auto& endpoint = object_of<Endpoint>(id);
  std::lock_guard lock(endpoint.lock());
  // Asked before it is enabled, it takes its name now.
  if (int rc = endpoint.transport_->start(endpoint.wanted_); rc != 0) return rc;
  const SocketAddress& own =
      endpoint.shown_.valid() ? endpoint.shown_ : endpoint.transport_->address();
  const std::size_t room = *length;
  *length = own.length;
  if (address != nullptr)
    std::memcpy(address, &own.storage, std::min<std::size_t>(room, own.length));
  return room < own.length ? -FI_ETOOSMALL : 0;
}

void Endpoint::note_access(std::uint64_t flags) {
  Counter* counter = counters_[flags == FI_REMOTE_READ ? kRemoteReads : kRemoteWrites];
  if (counter != nullptr) counter->count();
}

}  // namespace clan::ofi
