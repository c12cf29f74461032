// The kernel's own local transports, the baselines: TCP over loopback, AF_UNIX stream, AF_UNIX
// seqpacket; each waiting in the kernel (kBlock) or asking again and again (kPoll).
#pragma once

#include "support/owned.h"
#include "transports/transport.h"

namespace clan::bench {

enum class Family { kTcp, kUnixStream, kUnixSeqpacket };
enum class Wait { kBlock, kPoll };

/// "tcp", "unix-poll", "seqpacket", …
std::string kernel_name(Family family, Wait wait);

class KernelEnd {
 public:
  KernelEnd(Fd fd, Family family, Wait wait);
  bool send(std::span<const std::byte> message);
  bool recv(std::span<std::byte> message);

 private:
  template <class Call>
  bool move(std::size_t bytes, Call call);

  Fd fd_;
  bool keeps_records_;
  int flags_;
};

class KernelTransport {
 public:
  KernelTransport(Family family, Wait wait) : family_(family), wait_(wait) {}
  std::string name() const { return kernel_name(family_, wait_); }
  std::string prepare(std::size_t bytes);
  std::optional<KernelEnd> open(Side side);

 private:
  Family family_;
  Wait wait_;
  Fd listener_;
  Fd pair_[2];
};

/// Many connections behind one epoll set. An autobound listener: nothing in the file system.
class KernelHub {
 public:
  KernelHub(std::vector<Fd> connections, Fd epoll, Family family, Wait wait);
  std::size_t wait(std::span<std::uint32_t> ready);
  bool send(std::uint32_t i, std::span<const std::byte> message) { return ends_[i].send(message); }
  bool recv(std::uint32_t i, std::span<std::byte> message) { return ends_[i].recv(message); }

 private:
  std::vector<KernelEnd> ends_;
  Fd epoll_;
  Wait wait_;
};

class KernelHubTransport {
 public:
  KernelHubTransport(Family family, Wait wait) : family_(family), wait_(wait) {}
  std::string name() const { return kernel_name(family_, wait_); }
  std::string prepare(std::size_t connections);
  std::optional<KernelHub> open(Side side, std::size_t connections);

 private:
  Family family_;
  Wait wait_;
  Fd listener_;
};

/// What makes each of them, for a variant.
inline auto kernel(Family family, Wait wait) {
  return [=] { return KernelTransport(family, wait); };
}
inline auto kernel_hub(Family family, Wait wait) {
  return [=] { return KernelHubTransport(family, wait); };
}

}  // namespace clan::bench
