// fi_getinfo(): one entry per type of endpoint, and whether it fits what the program has asked for.
#include "system/info.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "system/address.h"
#include "system/other_hosts.h"
#include "wire/wire.h"

namespace clan::ofi {
namespace {

constexpr char kFabricName[] = "clan";
constexpr char kDomainName[] = "clan";
constexpr std::uint32_t kProtocol = FI_PROV_SPECIFIC | 0xC1A;
constexpr std::uint32_t kProtocolVersion = kWireVersion;
/// With this flag libfabric asks on behalf of one of its own layers, not of a program.
constexpr std::uint64_t kAskedByLayer = 1ULL << 59;
/// The format of tags by which a provider says that it has no opinion.
constexpr std::uint64_t kTagFormat = 0xaaaaaaaaaaaaaaaaULL;

constexpr std::uint64_t kOrder =
    FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_SAR | FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR |
    FI_ORDER_WAW | FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW |
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
constexpr std::uint64_t kSendFlags =
    FI_INJECT | FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
constexpr std::uint64_t kReceiveFlags = FI_COMPLETION | FI_MULTI_RECV;
constexpr std::uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;

struct Offered {
  fi_ep_type type;
  std::uint64_t caps;
  std::size_t contexts;  ///< of each kind in a scalable endpoint
  std::uint64_t order = kOrder;
  std::uint64_t send_flags = kSendFlags;
  std::size_t max_message = kMaxMessage;
  std::size_t max_ordered = kMaxMessage;  ///< bytes of remote memory whose order is kept
  std::size_t rma_iov() const { return (caps & FI_RMA) != 0 ? kIovLimit : 0; }
};

constexpr Offered kOffers[] = {
    {FI_EP_RDM,
     kTransferCaps | kSendingCaps | kReceivingCaps | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE |
         FI_SOURCE_ERR | FI_RMA_EVENT | FI_FENCE | FI_TRIGGER | FI_NAMED_RX_CTX | kDomainCaps,
     kMostContexts},
    {FI_EP_MSG,
     kTransferCaps | kSendingCaps | kReceivingCaps | FI_MULTI_RECV | FI_RMA_EVENT | FI_FENCE |
         FI_TRIGGER | kDomainCaps,
     1},
    {FI_EP_DGRAM,
     FI_MSG | FI_SEND | FI_RECV | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE | FI_SOURCE_ERR |
         FI_TRIGGER | kDomainCaps,
     1, FI_ORDER_SAS, kSendFlags & ~FI_DELIVERY_COMPLETE, kMaxDatagram, 0},
};

bool mismatch(const char* what) {
  FI_INFO(&g_provider, FI_LOG_CORE, "asked for what we do not offer: %s\n", what);
  return false;
}

bool subset(std::uint64_t wanted, std::uint64_t have) { return (wanted & ~have) == 0; }

std::uint64_t sending_caps(std::uint64_t caps) {
  return caps & (kTransferCaps | kSendingCaps | FI_FENCE | FI_TRIGGER | FI_NAMED_RX_CTX);
}
std::uint64_t receiving_caps(std::uint64_t caps) {
  return caps & (kTransferCaps | kReceivingCaps | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE |
                 FI_SOURCE_ERR | FI_RMA_EVENT | FI_TRIGGER);
}

// A program that asks for messages without saying whether to send or to receive means both.
std::uint64_t with_directions(std::uint64_t caps) {
  if ((caps & (FI_MSG | FI_TAGGED)) != 0 && (caps & (FI_SEND | FI_RECV)) == 0)
    caps |= FI_SEND | FI_RECV;
  constexpr std::uint64_t kRemote = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((caps & (FI_RMA | FI_ATOMIC)) != 0 && (caps & kRemote) == 0) caps |= kRemote;
  return caps;
}

bool fits_domain(const fi_domain_attr& wanted, const Offered& offered, std::uint32_t version) {
  if (wanted.name != nullptr && std::strcmp(wanted.name, kDomainName) != 0)
    return mismatch("domain name");
  if (wanted.threading > FI_THREAD_ENDPOINT) return mismatch("threading");
  if (wanted.control_progress > FI_PROGRESS_MANUAL || wanted.data_progress > FI_PROGRESS_MANUAL) {
    return mismatch("progress");
  }
  if (wanted.resource_mgmt > FI_RM_ENABLED) return mismatch("resource_mgmt");
  if (wanted.av_type > FI_AV_TABLE) return mismatch("av_type");
  if (FI_VERSION_LT(version, FI_VERSION(1, 5)) && wanted.mr_mode > FI_MR_SCALABLE)
    return mismatch("mr_mode");
  if (wanted.mr_key_size > 8) return mismatch("mr_key_size");
  if (wanted.cq_data_size > 8) return mismatch("cq_data_size");
  if (wanted.max_ep_tx_ctx > offered.contexts || wanted.max_ep_rx_ctx > offered.contexts) {
    return mismatch("contexts of scalable endpoints");
  }
  if (wanted.max_ep_stx_ctx > kMostSharedContexts || wanted.max_ep_srx_ctx > kMostSharedContexts) {
    return mismatch("shared contexts");
  }
  if (wanted.mr_iov_limit > kRegionPieces) return mismatch("mr_iov_limit");
  if (wanted.auth_key_size != 0 || wanted.auth_key != nullptr)
    return mismatch("authorisation keys");
  if (!subset(wanted.caps, kDomainCaps)) return mismatch("domain capabilities");
  return true;
}

bool fits_endpoint(const fi_ep_attr& wanted, const Offered& offered) {
  if (wanted.protocol != FI_PROTO_UNSPEC && wanted.protocol != kProtocol)
    return mismatch("protocol");
  if (wanted.protocol_version > kProtocolVersion) return mismatch("protocol version");
  if (wanted.max_msg_size > offered.max_message) return mismatch("max_msg_size");
  if (wanted.auth_key_size != 0 || wanted.auth_key != nullptr)
    return mismatch("authorisation keys");
  const auto too_many = [&](std::size_t count) {
    return count != FI_SHARED_CONTEXT && count > offered.contexts;
  };
  if (too_many(wanted.tx_ctx_cnt) || too_many(wanted.rx_ctx_cnt)) {
    return mismatch("tx_ctx_cnt, rx_ctx_cnt");
  }
  return true;
}

bool fits_sending(const fi_tx_attr& wanted, std::uint64_t caps, const Offered& offered) {
  if (!subset(wanted.caps, caps)) return mismatch("transmit capabilities");
  if (!subset(wanted.op_flags, offered.send_flags)) return mismatch("transmit op_flags");
  if (!subset(wanted.msg_order, offered.order)) return mismatch("transmit msg_order");
  if (!subset(wanted.comp_order, FI_ORDER_NONE)) return mismatch("transmit comp_order");
  if (wanted.inject_size > kInjectBytes) return mismatch("inject_size");
  if (wanted.size > kMostQueueSize) return mismatch("transmit size");
  if (wanted.iov_limit > kIovLimit || wanted.rma_iov_limit > offered.rma_iov())
    return mismatch("transmit iov_limit");
  return true;
}

bool fits_receiving(const fi_rx_attr& wanted, std::uint64_t caps, const Offered& offered) {
  if (!subset(wanted.caps, caps)) return mismatch("receive capabilities");
  if (!subset(wanted.op_flags, kReceiveFlags)) return mismatch("receive op_flags");
  if (!subset(wanted.msg_order, offered.order)) return mismatch("receive msg_order");
  if (!subset(wanted.comp_order, FI_ORDER_NONE | FI_ORDER_DATA))
    return mismatch("receive comp_order");
  if (wanted.size > kMostQueueSize) return mismatch("receive size");
  if (wanted.iov_limit > kIovLimit) return mismatch("receive iov_limit");
  return true;
}

bool fits(const fi_info& hints, const Offered& offered, std::uint32_t version) {
  if (hints.ep_attr != nullptr && hints.ep_attr->type != FI_EP_UNSPEC &&
      hints.ep_attr->type != offered.type) {
    return false;
  }
  if (!subset(hints.caps, offered.caps)) return mismatch("capabilities");
  switch (hints.addr_format) {
    case FI_FORMAT_UNSPEC:
    case FI_SOCKADDR:
    case FI_SOCKADDR_IN:
    case FI_SOCKADDR_IN6: break;
    default: return mismatch("addr_format");
  }
  if (hints.fabric_attr != nullptr && hints.fabric_attr->name != nullptr &&
      std::strcmp(hints.fabric_attr->name, kFabricName) != 0) {
    return mismatch("fabric name");
  }
  const std::uint64_t caps = hints.caps != 0 ? with_directions(hints.caps) : offered.caps;
  return (hints.domain_attr == nullptr || fits_domain(*hints.domain_attr, offered, version)) &&
         (hints.ep_attr == nullptr || fits_endpoint(*hints.ep_attr, offered)) &&
         (hints.tx_attr == nullptr || fits_sending(*hints.tx_attr, sending_caps(caps), offered)) &&
         (hints.rx_attr == nullptr ||
          fits_receiving(*hints.rx_attr, receiving_caps(caps), offered));
}

template <typename T>
void choose(T* ours, T asked) {
  if (asked != T{}) *ours = asked;
}

void put_address(const SocketAddress& address, void** to, std::size_t* length) {
  if (!address.valid()) return;
  *to = std::malloc(address.length);
  if (*to == nullptr) return;
  std::memcpy(*to, &address.storage, address.length);
  *length = address.length;
}

void describe_endpoint(fi_info* info, const Offered& offered) {
  fi_tx_attr& tx = *info->tx_attr;
  tx.caps = sending_caps(info->caps);
  tx.msg_order = offered.order;
  tx.comp_order = FI_ORDER_NONE;
  tx.inject_size = kInjectBytes;
  tx.size = kQueueSize;
  tx.iov_limit = kIovLimit;
  tx.rma_iov_limit = offered.rma_iov();
  fi_rx_attr& rx = *info->rx_attr;
  rx.caps = receiving_caps(info->caps);
  rx.msg_order = offered.order;
  rx.comp_order = FI_ORDER_NONE;
  rx.total_buffered_recv = 0;
  rx.size = kQueueSize;
  rx.iov_limit = kIovLimit;
  fi_ep_attr& ep = *info->ep_attr;
  ep.type = offered.type;
  ep.protocol = kProtocol;
  ep.protocol_version = kProtocolVersion;
  ep.max_msg_size = offered.max_message;
  ep.max_order_raw_size = ep.max_order_war_size = ep.max_order_waw_size = offered.max_ordered;
  ep.mem_tag_format = kTagFormat;
  ep.tx_ctx_cnt = ep.rx_ctx_cnt = 1;
}

void describe_domain(fi_domain_attr& domain, const Offered& offered, std::uint32_t version) {
  domain.name = ::strdup(kDomainName);
  domain.threading = FI_THREAD_SAFE;
  domain.control_progress = FI_PROGRESS_AUTO;
  domain.data_progress = FI_PROGRESS_MANUAL;
  domain.resource_mgmt = FI_RM_ENABLED;
  domain.av_type = FI_AV_UNSPEC;
  domain.mr_mode = FI_VERSION_LT(version, FI_VERSION(1, 5)) ? FI_MR_SCALABLE : 0;
  domain.mr_key_size = 8;
  domain.cq_data_size = 8;
  domain.cq_cnt = domain.ep_cnt = domain.cntr_cnt = 65536;
  domain.tx_ctx_cnt = domain.rx_ctx_cnt = 65536;
  domain.max_ep_tx_ctx = domain.max_ep_rx_ctx = offered.contexts;
  domain.max_ep_stx_ctx = domain.max_ep_srx_ctx = kMostSharedContexts;
  domain.mr_iov_limit = kRegionPieces;
  domain.caps = kDomainCaps;
  domain.max_err_data = sizeof(sockaddr_in6);
  domain.mr_cnt = 32768;
}

// What the program has chosen of what is offered.
void choose_domain(fi_domain_attr& domain, const fi_domain_attr& asked, std::uint32_t version) {
  domain.domain = asked.domain;
  choose(&domain.threading, asked.threading);
  choose(&domain.control_progress, asked.control_progress);
  choose(&domain.data_progress, asked.data_progress);
  choose(&domain.resource_mgmt, asked.resource_mgmt);
  choose(&domain.av_type, asked.av_type);
  if (FI_VERSION_LT(version, FI_VERSION(1, 5))) {
    if (asked.mr_mode == FI_MR_BASIC) domain.mr_mode = FI_MR_BASIC;
  } else if (asked.mr_mode == FI_MR_BASIC || asked.mr_mode == FI_MR_SCALABLE) {
    domain.mr_mode = asked.mr_mode;
  }  // else nothing is required: offsets, keys of the program's choice
}

void choose(fi_info* info, const fi_info* hints, std::uint32_t version) {
  fi_tx_attr& tx = *info->tx_attr;
  fi_rx_attr& rx = *info->rx_attr;
  fi_ep_attr& ep = *info->ep_attr;
  info->handle = hints->handle;
  if (hints->tx_attr != nullptr) {
    if (hints->tx_attr->caps != 0) tx.caps = hints->tx_attr->caps;
    tx.op_flags = hints->tx_attr->op_flags;
    choose(&tx.msg_order, hints->tx_attr->msg_order);
    choose(&tx.comp_order, hints->tx_attr->comp_order);
    choose(&tx.size, hints->tx_attr->size);
  }
  if (hints->rx_attr != nullptr) {
    if (hints->rx_attr->caps != 0) rx.caps = hints->rx_attr->caps;
    rx.op_flags = hints->rx_attr->op_flags;
    choose(&rx.msg_order, hints->rx_attr->msg_order);
    choose(&rx.comp_order, hints->rx_attr->comp_order);
    choose(&rx.size, hints->rx_attr->size);
  }
  if (hints->ep_attr != nullptr) {
    choose(&ep.mem_tag_format, hints->ep_attr->mem_tag_format);
    choose(&ep.tx_ctx_cnt, hints->ep_attr->tx_ctx_cnt);
    choose(&ep.rx_ctx_cnt, hints->ep_attr->rx_ctx_cnt);
  }
  if (hints->domain_attr != nullptr)
    choose_domain(*info->domain_attr, *hints->domain_attr, version);
  if (hints->fabric_attr != nullptr) info->fabric_attr->fabric = hints->fabric_attr->fabric;
}

// The entry for a program with these hints, which fit.
fi_info* describe(const fi_info* hints, const Offered& offered, std::uint32_t version,
                  const SocketAddress& source, const SocketAddress& destination) {
  fi_info* info = fi_allocinfo();
  if (info == nullptr) return nullptr;
  // FI_SOURCE_ERR only where it is asked for: it makes errors of messages that are otherwise taken
  // as they are.
  info->caps = hints != nullptr && hints->caps != 0 ? with_directions(hints->caps) | kDomainCaps
                                                    : offered.caps & ~FI_SOURCE_ERR;
  info->addr_format = FI_SOCKADDR_IN;
  if (source.family() == AF_INET6) info->addr_format = FI_SOCKADDR_IN6;
  put_address(source, &info->src_addr, &info->src_addrlen);
  put_address(destination, &info->dest_addr, &info->dest_addrlen);
  describe_endpoint(info, offered);
  describe_domain(*info->domain_attr, offered, version);
  info->fabric_attr->name = ::strdup(kFabricName);
  info->fabric_attr->api_version = version;
  if (hints != nullptr) choose(info, hints, version);
  return info;
}

// The addresses of the answer. False: they cannot be.
int find_addresses(const char* node, const char* service, std::uint64_t flags, const fi_info* hints,
                   SocketAddress* source, SocketAddress* destination) {
  const std::uint32_t format =
      hints != nullptr ? hints->addr_format : std::uint32_t{FI_FORMAT_UNSPEC};
  if (hints != nullptr && hints->src_addr != nullptr) {
    *source = read_address(hints->src_addr, hints->src_addrlen);
    if (!source->valid()) return -FI_ENODATA;
  }
  if (hints != nullptr && hints->dest_addr != nullptr) {
    *destination = read_address(hints->dest_addr, hints->dest_addrlen);
    if (!destination->valid()) return -FI_ENODATA;
  }
  if (node != nullptr || service != nullptr) {
    const bool passive = (flags & FI_SOURCE) != 0;
    SocketAddress* which = passive ? source : destination;
    if (passive || node != nullptr) {
      if (int rc = resolve(node, service, flags, format, passive, which); rc != 0) return rc;
    } else {
      // A service without a node: some port of a peer to come. Nothing can be sent there.
      SocketAddress port;
      if (int rc = resolve(nullptr, service, flags, format, true, &port); rc != 0) return rc;
    }
  }
  if (!source->valid()) {
    int family = destination->valid()        ? destination->family()
                 : format == FI_SOCKADDR_IN6 ? AF_INET6
                                             : AF_INET;
    if (reaches_other_hosts() && destination->valid()) *source = source_towards(*destination);
    if (!source->valid()) *source = own_address(family);
    source->set_port(0);
  }
  if (destination->valid() && destination->family() != source->family()) return -FI_ENODATA;
  return 0;
}

}  // namespace

int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** info) {
  if ((flags & kAskedByLayer) != 0) {
    int layering = 0;
    if (fi_param_get_bool(&g_provider, "layering", &layering) != 0 || layering == 0)
      return -FI_ENODATA;
  }
  SocketAddress source, destination;
  if ((flags & FI_PROV_ATTR_ONLY) == 0) {
    if (int rc = find_addresses(node, service, flags, hints, &source, &destination); rc != 0)
      return rc;
  }
  fi_info* first = nullptr;
  fi_info** last = &first;
  for (const Offered& offered : kOffers) {
    if (hints != nullptr && !fits(*hints, offered, version)) continue;
    *last = describe(hints, offered, version, source, destination);
    if (*last == nullptr) {
      fi_freeinfo(first);
      return -FI_ENOMEM;
    }
    last = &(*last)->next;
  }
  if (first == nullptr) return -FI_ENODATA;
  *info = first;
  return 0;
}

}  // namespace clan::ofi
