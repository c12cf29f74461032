#include "objects/shared_context.h"

#include <algorithm>
#include <cstring>

#include "objects/domain.h"

namespace clan::ofi {

// --- SharedReceive -------------------------------------------------------------------------------

fi_ops SharedReceive::ops_ =
    object_ops(close_object<SharedReceive>, guarded<SharedReceive::bind>, enable_object);

fi_ops_ep SharedReceive::endpoint_ops_ =
    endpoint_ops(not_supported, guarded<SharedReceive::getopt>, guarded<SharedReceive::setopt>);

SharedReceive::SharedReceive(Domain& domain) : domain_(domain), domain_held_(domain.references()) {}

Lock& SharedReceive::lock() { return domain_.lock(); }

int SharedReceive::open(fid_domain* id, fi_rx_attr* attr, fid_ep** ep, void* context) {
  auto* made = new (std::nothrow) SharedReceive(*static_cast<Domain*>(id));
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_SRX_CTX, context, &ops_};
  made->ops = &endpoint_ops_;
  made->msg = &g_shared_message_ops;
  made->tagged = &g_shared_tagged_ops;
  if (attr != nullptr) made->flags_ = attr->op_flags;
  *ep = made;
  return 0;
}

// Completions go where the endpoint that got the message is bound to.
int SharedReceive::bind(fid_t, fid_t to, std::uint64_t) {
  return to->fclass == FI_CLASS_CQ || to->fclass == FI_CLASS_CNTR ? 0 : -FI_EINVAL;
}

int SharedReceive::getopt(fid_t id, int level, int name, void* value, std::size_t* length) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (*length < sizeof(std::size_t)) return -FI_ETOOSMALL;
  *static_cast<std::size_t*>(value) = object_of<SharedReceive>(id).least_multi_receive_;
  *length = sizeof(std::size_t);
  return 0;
}

int SharedReceive::setopt(fid_t id, int level, int name, const void* value, std::size_t length) {
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV) return -FI_ENOPROTOOPT;
  if (length < sizeof(std::size_t)) return -FI_EINVAL;
  object_of<SharedReceive>(id).least_multi_receive_ = *static_cast<const std::size_t*>(value);
  return 0;
}

// --- SharedTransmit ------------------------------------------------------------------------------

fi_ops SharedTransmit::ops_ = object_ops(close_object<SharedTransmit>);

fi_ops_ep SharedTransmit::endpoint_ops_ = endpoint_ops();

int SharedTransmit::open(fid_domain* id, fi_tx_attr*, fid_stx** stx, void* context) {
  auto* made = new (std::nothrow) SharedTransmit;
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_STX_CTX, context, &ops_};
  made->ops = &endpoint_ops_;
  made->domain_held_ = Held(static_cast<Domain*>(id)->references());
  *stx = made;
  return 0;
}

// --- ScalableEndpoint ----------------------------------------------------------------------------

fi_ops ScalableEndpoint::ops_ =
    object_ops(close_object<ScalableEndpoint>, guarded<ScalableEndpoint::bind>,
               guarded<ScalableEndpoint::control>);

fi_ops_ep ScalableEndpoint::endpoint_ops_ = endpoint_ops(
    not_supported, not_supported, not_supported, guarded<ScalableEndpoint::transmit_context>,
    guarded<ScalableEndpoint::receive_context>);

fi_ops_cm ScalableEndpoint::connection_ops_ = {
    .size = sizeof(fi_ops_cm),
    .setname = not_supported,
    .getname = guarded<ScalableEndpoint::get_name>,
    .getpeer = not_supported,
    .connect = not_supported,
    .listen = not_supported,
    .accept = not_supported,
    .reject = not_supported,
    .shutdown = not_supported,
    .join = not_supported,
};

ScalableEndpoint::ScalableEndpoint(Domain& domain)
    : domain_(domain),
      domain_held_(domain.references()),
      transport_(std::make_shared<Transport>(domain)) {}

ScalableEndpoint::~ScalableEndpoint() {
  fi_freeinfo(info_);
  std::lock_guard lock(domain_.lock());
  domain_.remove_transport(*transport_);
  transport_.reset();
}

int ScalableEndpoint::open(fid_domain* id, fi_info* info, fid_ep** ep, void* context) {
  if (info == nullptr || info->ep_attr == nullptr || info->ep_attr->type != FI_EP_RDM)
    return -FI_EINVAL;
  auto* made = new (std::nothrow) ScalableEndpoint(*static_cast<Domain*>(id));
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_SEP, context, &ops_};
  made->ops = &endpoint_ops_;
  made->cm = &connection_ops_;
  made->info_ = fi_dupinfo(info);
  if (made->info_ == nullptr) {
    delete made;
    return -FI_ENOMEM;
  }
  made->wanted_ = read_address(info->src_addr, info->src_addrlen);
  made->transport_->receiver().set_contexts(info->ep_attr->rx_ctx_cnt);
  *ep = made;
  return 0;
}

int ScalableEndpoint::bind(fid_t id, fid_t to, std::uint64_t) {
  auto& sep = object_of<ScalableEndpoint>(id);
  if (to->fclass == FI_CLASS_EQ) return 0;  // it has no events
  if (to->fclass != FI_CLASS_AV || sep.av_ != nullptr) return -FI_EINVAL;
  std::lock_guard lock(sep.domain_.lock());
  sep.av_ = &object_of<Av>(to);
  sep.av_held_ = Held(sep.av_->references());
  sep.transport_->set_av(sep.av_);
  return 0;
}

int ScalableEndpoint::control(fid_t id, int command, void*) {
  auto& sep = object_of<ScalableEndpoint>(id);
  if (command != FI_ENABLE) return -FI_ENOSYS;
  std::lock_guard lock(sep.domain_.lock());
  return sep.av_ == nullptr ? -FI_ENOAV : sep.transport_->start(sep.wanted_);
}

int ScalableEndpoint::get_name(fid_t id, void* address, std::size_t* length) {
  auto& sep = object_of<ScalableEndpoint>(id);
  std::lock_guard lock(sep.domain_.lock());
  if (int rc = sep.transport_->start(sep.wanted_); rc != 0) return rc;
  const SocketAddress& own = sep.transport_->address();
  const std::size_t room = *length;
  *length = own.length;
  if (address != nullptr)
    std::memcpy(address, &own.storage, std::min<std::size_t>(room, own.length));
  return room < own.length ? -FI_ETOOSMALL : 0;
}

Endpoint* ScalableEndpoint::make_context(std::size_t fclass, void* context) {
  auto* made = new (std::nothrow) Endpoint(domain_, transport_);
  if (made == nullptr) return nullptr;
  made->set_tables(fclass, context);
  made->set_attributes(*info_);
  made->wanted_ = wanted_;
  made->domain_held_ = Held(domain_.references());
  made->scalable_held_ = Held(references_);
  made->av_ = av_;
  if (av_ != nullptr) made->av_held_ = Held(av_->references());
  return made;
}

int ScalableEndpoint::transmit_context(fid_ep* id, int index, fi_tx_attr* attr, fid_ep** ep,
                                       void* context) {
  auto& sep = *static_cast<ScalableEndpoint*>(id);
  if (index < 0 || static_cast<std::size_t>(index) >= sep.info_->ep_attr->tx_ctx_cnt)
    return -FI_EINVAL;
  Endpoint* made = sep.make_context(FI_CLASS_TX_CTX, context);
  if (made == nullptr) return -FI_ENOMEM;
  made->receiving_ = false;
  if (attr != nullptr) made->send_flags_ = attr->op_flags;
  *ep = made;
  return 0;
}

int ScalableEndpoint::receive_context(fid_ep* id, int index, fi_rx_attr* attr, fid_ep** ep,
                                      void* context) {
  auto& sep = *static_cast<ScalableEndpoint*>(id);
  if (index < 0 || static_cast<std::size_t>(index) >= sep.info_->ep_attr->rx_ctx_cnt)
    return -FI_EINVAL;
  Endpoint* made = sep.make_context(FI_CLASS_RX_CTX, context);
  if (made == nullptr) return -FI_ENOMEM;
  made->context_ = static_cast<unsigned>(index);
  if (attr != nullptr) made->receive_flags_ = attr->op_flags;
  *ep = made;
  return 0;
}

}  // namespace clan::ofi
