// The network device: a TUN with the virtio header and several queues, one for each peer.
#pragma once

#include <clan/result.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "packet.h"
#include "steering.h"

namespace clan::ip {

class Device {
 public:
  /// Makes it, with its first queue. EEXIST: there is one of that name; EPERM, EACCES: it takes
  /// CAP_NET_ADMIN and /dev/net/tun.
  static Result<Device> create(const std::string& name);
  Device(Device&& other) noexcept;
  Device& operator=(Device&&) = delete;
  ~Device();

  /// Gives it the addresses, of IPv6 without a search for others that have them; sets its MTU; sets
  /// it up; and adds routes for prefixes that its addresses do not bring.
  Status configure(std::span<const Prefix> addresses, unsigned mtu, std::span<const Prefix> routes);

  /// Opens one more queue; its number. E2BIG: the kernel gives no more.
  Result<unsigned> add_queue();
  /// Has packets for each prefix go to its queue. EPERM: then the first queue gets those of all.
  Status steer(std::span<const Steered> prefixes);
  /// Which super-packets and packets without a checksum the kernel may hand out.
  Status set_offloads(unsigned offloads);
  unsigned offloads() const { return offloads_; }
  /// Those that this kernel can hand out and take.
  unsigned possible_offloads() const { return possible_; }

  const std::string& name() const { return name_; }
  int queue(unsigned number) const { return queues_[number]; }
  unsigned queues() const { return static_cast<unsigned>(queues_.size()); }

 private:
  explicit Device(std::string name) : name_(std::move(name)) {}
  std::string name_;
  std::vector<int> queues_;
  unsigned offloads_ = 0, possible_ = 0;
};

}  // namespace clan::ip
