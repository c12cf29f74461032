// Endpoints as programs see them: what they are bound to, and the tables of operations.
#pragma once

#include <memory>

#include "matching.h"
#include "port.h"
#include "provider.h"

namespace clan::ofi {

class Av;
class Counter;
class Cq;
class Domain;
class Eq;

class Endpoint final : public fid_ep {
 public:
  using Face = fid_ep;
  static int open(Domain& domain, fi_info* info, fid_ep** ep, void* context);

  Domain& domain() { return domain_; }
  Port& port() { return *port_; }
  Lock& lock();
  ReceiveQueue& receives() { return *receives_; }
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

  /// A peer has accessed memory of ours.
  void note_access(std::uint64_t flags);

 private:
  explicit Endpoint(Domain& domain) : domain_(domain), port_(std::make_unique<Port>(domain)) {}
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
  static fi_ops ops_;
  static fi_ops_ep endpoint_ops_;
  static fi_ops_cm connection_ops_;

  Domain& domain_;
  Held domain_held_;
  std::unique_ptr<Port> port_;
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
};

extern fi_ops_msg g_message_ops;
extern fi_ops_tagged g_tagged_ops;
extern fi_ops_rma g_rma_ops;
extern fi_ops_atomic g_atomic_ops;
extern fi_ops_collective g_collective_ops;

}  // namespace clan::ofi
