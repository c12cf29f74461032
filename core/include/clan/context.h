// Context: one engine in one process. Everything else is made from it.
//
// A context is a node of the network: it owns the simulated NIC that peers see, the links, and one
// driver thread, which sleeps unless a connection is set up or a peer dies. A process may have
// several contexts, which are strangers to each other.
//
// Fork: in the child every object of an inherited context answers with an error and touches
// nothing; the child may create its own context.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <clan/cookie.h>
#include <clan/detail/export.h>
#include <clan/pinner.h>
#include <clan/result.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace clan {

namespace engine {
class ContextCore;
}

/// How a thread waits. Durations in microseconds.
struct WaitOptions {
  enum class Mode {
    kAdaptive,  ///< spin as long as past waits make it worth while, then sleep
    kPoll,      ///< never sleep: for benchmarks and dedicated cores
    kSleep,     ///< never spin
  };
  Mode mode = Mode::kAdaptive;
  /// About what a sleep costs. A thread spins up to twice as long if waits have been short.
  std::uint32_t max_spin_us = 50;
};

/// Links with other hosts, by UDP (docs/wire.md). A service there is "udp:HOST/SERVICE", or
/// "udp:HOST:PORT/SERVICE" with its context's port; an IPv6 address in brackets.
struct NetworkOptions {
  enum class Mode {
    kOff,        ///< neither checked nor encrypted: for wires that are trusted, by their users too
    kIntegrity,  ///< nobody can change or forge packets
    kEncrypt,    ///< nor read them
  };
  bool enabled = false;
  Mode mode = Mode::kEncrypt;
  /// The pre-shared key of all hosts (modes kIntegrity and kEncrypt): a file that only this user
  /// may use. A process that holds it counts as this user.
  std::string key_file;
  std::string address;  ///< to bind, "HOST:PORT"; empty: any address and port
  enum class Packets {
    kSockets,  ///< UDP sockets, without privilege
    /// AF_XDP for the busiest peers: past the kernel's firewall, a third of the time on the wire.
    /// Takes CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, and CAP_SYS_ADMIN where processes share a device.
    /// Not possible: Context::create() fails; a device that cannot leaves it to sockets.
    kXdp,
    kAuto,  ///< as kXdp where that is possible, else as kSockets
  };
  Packets packets = Packets::kSockets;
  /// Where other hosts ask this user's contexts without a port; one of them holds it, or another
  /// user's, which knows their TCP connections (clan/face/connection_name.h) only. 0: none.
  static constexpr std::uint16_t kDirectoryPort = 4790;
  std::uint16_t directory_port = kDirectoryPort;
};

struct ContextOptions {
  WaitOptions wait;
  /// Other users whose processes may link with this context, the first 63 that do. Empty: none.
  std::vector<uid_t> allow_uids;
  /// Bytes of a connection's receive ring: a power of two from 1024 to 64 MiB; four times that with
  /// another host. Bulk transfers were 1.7 times slower through 256 KB or less (bench/README.md).
  std::uint32_t ring_bytes = 512 * 1024;
  /// Connections that may wait in one listener for accept().
  std::uint32_t backlog = 1024;
  /// Messages that one OobEndpoint keeps; more are discarded and counted.
  std::uint32_t oob_queue = 64;
  /// False: never use process_vm_readv/writev, as where a sandbox forbids them.
  bool direct_copy = true;
  // The NIC's TLB (U-Net/MM). It takes part by itself where a link sends packets from pinned pages.
  /// take part in every RDMA request: bad local addresses become EFAULT
  bool nic_translates = false;
  /// Entries outlive their transfers: a thread takes them out at each unmap (userfaultfd), which
  /// then costs its wake-up. Where the kernel forbids that, they go with each transfer.
  bool keep_translations = false;
  /// mlock pages while they have an entry (honours RLIMIT_MEMLOCK)
  bool lock_pages = false;
  std::uint32_t tlb_entries = 1024;  ///< direct-mapped; a power of two
  std::uint32_t tlb_victims = 16;
  /// Off: this host only.
  NetworkOptions network;
};

/// Where an endpoint is. Plain data, 16 bytes: exchange it by any means.
struct Address {
  NodeId node;
  std::uint32_t endpoint = 0;
  std::uint32_t uid = 0;  ///< owner of the node, part of its rendezvous name
};

/// Counters of one context since its creation.
struct ContextCounters {
  std::uint64_t links = 0;  ///< to living peers
  std::uint64_t connections_opened = 0;
  std::uint64_t connections_reset = 0;  ///< by a peer's death or misbehaviour
  /// impossible contents of shared memory or control messages
  std::uint64_t hostile_peers = 0;
  std::uint64_t oob_discarded = 0;  ///< queue full, or no such endpoint
  std::uint64_t sleeps = 0;
  std::uint64_t wakeups = 0;
  std::uint64_t apertures = 0;  ///< live
  std::uint64_t tripwires = 0;  ///< live
};

class CLAN_EXPORT Context {
 public:
  static Result<Context> create(const ContextOptions& options = {});
  Context(Context&&) noexcept = default;
  Context& operator=(Context&&) noexcept;
  /// Ends all links: peers see connection resets. Objects made from the context answer ESHUTDOWN.
  ~Context();

  NodeId node() const;
  const ContextOptions& options() const;
  ContextCounters counters() const;
  /// The UDP port that peers of other hosts reach us at; 0 without a network.
  std::uint16_t network_port() const;

  /// Gives pages entries in the NIC's TLB ahead of use. EFAULT: no such access; EMSGSIZE: more than
  /// the TLB has. See clan/face/translator.h.
  Status pre_translate(std::span<const std::byte> memory, PageAccess access);

  /// For the other classes of the engine.
  const std::shared_ptr<engine::ContextCore>& core() const { return core_; }

 private:
  explicit Context(std::shared_ptr<engine::ContextCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::ContextCore> core_;
};

}  // namespace clan
