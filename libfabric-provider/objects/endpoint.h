// Endpoints as programs see them: what they are bound to, and the tables of operations.
#pragma once

#include <memory>

#include "objects/av.h"
#include "objects/cm.h"
#include "system/provider.h"
#include "transport/transport.h"
#include "wire/matching.h"

namespace clan::ofi {

class Av;
class Counter;
class SharedReceive;
class Cq;
class Domain;
class Eq;

class Endpoint final : public fid_ep {
 public:
  using Face = fid_ep;
  static int open(Domain& domain, fi_info* info, fid_ep** ep, void* context);

  Domain& domain() { return domain_; }
  Transport& transport() { return *transport_; }
  Lock& lock();
  ReceiveQueue& receives() { return *receives_; }
  /// What an address of this endpoint's says.
  struct Target {
    Peer* peer = nullptr;
    std::uint16_t context = 0;
    int err = FI_EINVAL;  ///< why there is no peer
  };
  Target target(fi_addr_t address) {
    if (connected_mode_) return {original_->connection_, 0, FI_ENOTCONN};
    const fi_addr_t mask = av_->address_mask();
    return {transport_->peer(address & mask), static_cast<std::uint16_t>(av_->context_of(address)),
            FI_EINVAL};
  }
  /// A peer as it is named in a receive. False: there is no such address.
  bool find_source(fi_addr_t address, const Peer** from) {
    *from = nullptr;
    if (address == FI_ADDR_UNSPEC || !directed() || connected_mode_) return true;
    *from = transport_->peer(address & av_->address_mask());
    return *from != nullptr;
  }
  /// Unreliable: what finds no room or nobody there is lost, and its sender gets no error.
  bool datagrams() const { return datagrams_; }
  std::size_t longest_message() const { return datagrams_ ? kMaxDatagram : kMaxMessage; }
  Cq* send_cq() const { return send_cq_; }
  Cq* receive_cq() const { return receive_cq_; }
  bool enabled() const { return enabled_; }
  bool directed() const { return (receive_caps_ & FI_DIRECTED_RECV) != 0; }
  bool tells_source() const { return tells_source_; }
  bool tells_unknown_source() const { return tells_unknown_source_; }
  std::uint64_t send_flags() const { return send_flags_; }
  std::uint64_t receive_flags() const { return receive_flags_; }
  std::size_t least_multi_receive() const { return least_multi_receive_; }

  /// Whether an operation with these flags writes a completion.
  bool sends_complete(std::uint64_t flags) const {
    return send_cq_ != nullptr && (!send_selective_ || (flags & FI_COMPLETION) != 0);
  }
  bool receives_complete(std::uint64_t flags) const {
    return receive_cq_ != nullptr && (!receive_selective_ || (flags & FI_COMPLETION) != 0);
  }

  enum Counted { kSends, kReceives, kReads, kWrites, kRemoteReads, kRemoteWrites, kCounted };
  Counter* counter(Counted what) const { return counters_[what]; }

  /// A peer has accessed this process's memory.
  void note_access(std::uint64_t flags);

  // What a message endpoint gets from its transport.
  /// The passive endpoint that it has asked for a connection, while it waits for the answer.
  Peer* asked() const { return asked_; }
  bool waits_for(std::uint64_t attempt) const { return asked_ != nullptr && attempt == attempt_; }
  /// The answer has come: the peer of the connection, or null. The peer to hang up on; null: it is
  /// not the answer.
  Peer* answered(Peer* peer, const WireHeader& header, std::span<const std::byte> data);
  /// Marks those that it knows.
  void mark_peers() const {
    for (Peer* peer : {connection_, asked_}) {
      if (peer != nullptr) peer->referenced = true;
    }
  }
  /// `reason`: 0, it closed in order, or an errno.
  void peer_left(Peer& peer, int reason);

 private:
  friend class ScalableEndpoint;
  Endpoint(Domain& domain, std::shared_ptr<Transport> transport)
      : domain_(domain), transport_(std::move(transport)) {}
  ~Endpoint();
  int enable();
  static int close(fid_t id);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  int bind_cq(Cq& cq, std::uint64_t flags);
  int bind_counter(Counter& counter, std::uint64_t flags);
  static int control(fid_t id, int command, void* argument);
  static ssize_t cancel(fid_t id, void* context);
  static int getopt(fid_t id, int level, int name, void* value, std::size_t* length);
  static int setopt(fid_t id, int level, int name, const void* value, std::size_t length);
  static int set_name(fid_t id, void* address, std::size_t length);
  static int get_name(fid_t id, void* address, std::size_t* length);
  static int get_peer(fid_ep* ep, void* address, std::size_t* length);
  static int connect(fid_ep* ep, const void* address, const void* data, std::size_t length);
  static int accept(fid_ep* ep, const void* data, std::size_t length);
  static int shutdown(fid_ep* ep, std::uint64_t flags);
  int make_alias(const struct fi_alias& alias);
  void set_tables(std::size_t fclass, void* context);
  void set_attributes(const fi_info& info);
  void fail_connection(int err, std::span<const std::byte> data);
  void tell(std::uint32_t event, std::span<const std::byte> data);
  void flush_receives();
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;
  static fi_ops_cm connection_ops_;

  Domain& domain_;
  Held domain_held_;
  std::shared_ptr<Transport> transport_;
  unsigned context_ = 0;       ///< its number among the receive contexts of the transport
  bool receiving_ = true;      ///< false: a transmit context, or an alias
  Endpoint* original_ = this;  ///< whose alias we are
  References aliases_;
  Held original_held_;
  SocketAddress wanted_;  ///< the name to take
  ReceiveQueue own_receives_;
  ReceiveQueue* receives_ = &own_receives_;
  Av* av_ = nullptr;
  Held av_held_;
  Eq* eq_ = nullptr;
  Held eq_held_;
  Cq* send_cq_ = nullptr;
  Cq* receive_cq_ = nullptr;
  Held send_cq_held_, receive_cq_held_;
  bool send_selective_ = false, receive_selective_ = false;
  Counter* counters_[kCounted] = {};
  Held counters_held_[kCounted];
  std::uint64_t caps_ = 0, receive_caps_ = 0;
  std::uint64_t send_flags_ = 0, receive_flags_ = 0;
  bool tells_source_ = false, tells_unknown_source_ = false;
  std::size_t least_multi_receive_ = 64;
  bool enabled_ = false;
  bool datagrams_ = false;
  Held shared_receive_held_, scalable_held_;

  // A message endpoint.
  bool connected_mode_ = false;
  std::unique_ptr<ConnectionRequest> request_;  ///< what fi_accept() is to answer
  Peer* connection_ = nullptr;
  Peer* asked_ = nullptr;  ///< the passive endpoint that we wait for
  std::uint64_t attempt_ = 0;
  SocketAddress remote_;
  SocketAddress shown_;  ///< our name to others: that of the passive endpoint we come from
  bool shut_down_ = false;
};

/// The endpoint that a program has as a structure of libfabric's.
inline Endpoint& endpoint_of(fid_ep* ep) { return *static_cast<Endpoint*>(ep); }

extern fi_ops_msg g_message_ops;
extern fi_ops_tagged g_tagged_ops;
extern fi_ops_rma g_rma_ops;
extern fi_ops_atomic g_atomic_ops;
extern fi_ops_collective g_collective_ops;

}  // namespace clan::ofi
