// Shared contexts: receives that any of several endpoints may use, and transmit resources that they
// share; and scalable endpoints, which are the other way round: several contexts under one address.
#pragma once

#include <memory>
#include <vector>

#include "objects/endpoint.h"
#include "system/provider.h"

namespace clan::ofi {

/// fi_srx_context()
class SharedReceive final : public fid_ep {
 public:
  using Face = fid_ep;
  static int open(fid_domain* domain, fi_rx_attr* attr, fid_ep** ep, void* context);

  Domain& domain() { return domain_; }
  References& references() { return references_; }
  // What a receive asks of the object it is posted on.
  Lock& lock();
  ReceiveQueue& receives() { return receives_; }
  bool enabled() const { return true; }
  bool find_source(fi_addr_t, const Peer** from) {
    *from = nullptr;
    return true;
  }
  std::uint64_t receive_flags() const { return flags_; }
  std::size_t least_multi_receive() const { return least_multi_receive_; }

 private:
  explicit SharedReceive(Domain& domain);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static int getopt(fid_t id, int level, int name, void* value, std::size_t* length);
  static int setopt(fid_t id, int level, int name, const void* value, std::size_t length);
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;

  Domain& domain_;
  Held domain_held_;
  References references_;
  ReceiveQueue receives_;
  std::uint64_t flags_ = 0;
  std::size_t least_multi_receive_ = 64;
};

/// fi_stx_context(). Endpoints have no transmit resources that could be shared: it says yes.
class SharedTransmit final : public fid_stx {
 public:
  using Face = fid_stx;
  static int open(fid_domain* domain, fi_tx_attr* attr, fid_stx** stx, void* context);

 private:
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;
  Held domain_held_;
};

/// fi_scalable_ep(): one port, many contexts.
class ScalableEndpoint final : public fid_ep {
 public:
  using Face = fid_ep;
  static int open(fid_domain* domain, fi_info* info, fid_ep** ep, void* context);
  ~ScalableEndpoint();
  References& references() { return references_; }

 private:
  explicit ScalableEndpoint(Domain& domain);
  Endpoint* make_context(std::size_t fclass, void* context);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static int control(fid_t id, int command, void* argument);
  static int get_name(fid_t id, void* address, std::size_t* length);
  static int transmit_context(fid_ep* sep, int index, fi_tx_attr* attr, fid_ep** ep, void* context);
  static int receive_context(fid_ep* sep, int index, fi_rx_attr* attr, fid_ep** ep, void* context);
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;
  static fi_ops_cm connection_ops_;

  Domain& domain_;
  Held domain_held_;
  References references_;
  std::shared_ptr<Transport> transport_;
  fi_info* info_ = nullptr;
  SocketAddress wanted_;
  Av* av_ = nullptr;
  Held av_held_;
};

extern fi_ops_msg g_shared_message_ops;
extern fi_ops_tagged g_shared_tagged_ops;

}  // namespace clan::ofi
