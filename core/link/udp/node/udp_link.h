// UdpLink: the link with one peer on another host: nic/link.h over a connection of the transport.
//
//   put, get, import, out-of-band   channel 0, released in the order sent: bytes are placed and
//                                   tripwires fire one message after the other
//   transfer (RDMA)                 channel 3: bytes are placed in any order; completions come in
//                                   the order sent, after earlier messages of channel 0
//
// As over shared memory, an incomplete transfer is not ordered with later puts. Everything a peer
// sends is input: each access carries aperture, generation and key image, which our Nic checks.
//
// Thread-safety: under the node's mutex (udp_node.h, also for up-calls), which comes after the
// engine's locks and before the Nic's and ContextCore's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clan/detail/words.h"
#include "clan/face/path_page.h"
#include "link/udp/node/link_wire.h"
#include "link/udp/transport/connection.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::udp {

/// The transport's channels that the link uses (above).
constexpr std::uint8_t kUrgent = 0, kBulk = 3;

class UdpNode;

class UdpLink final : public nic::Link,
                      public MessageSink,
                      public std::enable_shared_from_this<UdpLink> {
 public:
  static constexpr std::size_t kMostTransfers = 16;    ///< under way to one peer; more are kBusy
  static constexpr std::uint64_t kMostRead = 1 << 20;  ///< bytes that one kRead asks for

  UdpLink(std::shared_ptr<UdpNode> node, Connection& connection, const Greeting& peer);

  nic::LinkCapabilities capabilities() const override {
    return {.translates = true, .name = "udp"};
  }
  NodeId remote_node() const override { return {peer_.node}; }
  uid_t remote_uid() const override;
  pid_t remote_pid() const override { return static_cast<pid_t>(peer_.pid); }
  std::string remote_address() const override;
  // PAIR udp_link.alive: what the peer wrote before it went is visible
  bool alive() const override { return words::load_acquire(alive_); }
  Result<nic::RemoteHandle> import(const RdmaCookie& cookie, bool may_wait) override;
  void release(const nic::RemoteHandle& handle) override;
  Status grant(const RdmaCookie&) override { return {}; }
  Status put(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<const std::byte> bytes, nic::PutOrder order) override;
  Status publish(const nic::RemoteHandle& handle, std::uint64_t offset,
                 std::span<const std::byte> bytes,
                 const std::shared_ptr<nic::PinnedPayload>& kept = {}) override;
  Status get(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<std::byte> bytes) override;
  Status check(const nic::RemoteHandle& handle) override;
  void announce_revoked(std::uint32_t aperture, std::uint32_t generation) override;
  Status after_access(const nic::RemoteHandle&, std::uint64_t, std::uint64_t,
                      nic::AccessKind) override;
  nic::TransferResult transfer(const nic::Transfer& transfer) override;
  void cancel(std::uint64_t token) override;
  Status send_oob(const OobMessage& message) override;
  void begin_batch() override;
  void end_batch() override;
  void progress() override;
  int sleep(EventCount& fired, std::uint32_t seen, std::uint64_t deadline_ns) override;
  void wake_sleepers() override;
  void shut_down() override;
  void abandon_after_fork() override;

  // MessageSink, under the node's mutex.
  bool on_fragment(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                   std::uint32_t offset, std::span<const std::byte> bytes) override;
  void on_message(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t total,
                  std::span<const std::byte> payload) override;
  void on_sent(std::uint8_t channel, std::uint64_t token) override;

  // For the node, under its mutex.
  void on_down();
  void send_revoked(std::uint32_t aperture, std::uint32_t generation);
  /// How the path does, for PathStatsPage; and a number that is another one when it has changed.
  PathValues path() const;
  std::uint64_t packets() const;
  /// While a thread sleeps for the peer it is asked more often whether it is there.
  void watch(bool on);
  Connection* connection() { return connection_; }
  void forget_connection() { connection_ = nullptr; }

 private:
  static constexpr std::uint64_t kSpin = 50'000;  ///< ns: a wait polls for so long

  /// What this end waits for.
  struct Pending {
    enum class Kind : std::uint8_t { kWrite, kRead, kGet, kImport };
    Kind kind = Kind::kGet;
    bool answered = false;
    bool sent = false;  ///< kWrite: nothing of the local memory is needed any more
    bool cancelled = false;
    int err = 0;
    std::uint64_t token = 0;
    std::byte* local = nullptr;
    std::uint64_t length = 0;
    bool is_transfer() const { return kind == Kind::kWrite || kind == Kind::kRead; }
  };
  /// A chunk of RDMA on its way to us.
  struct Incoming {
    LinkHeader header;
    RangeSet placed;  ///< offsets in the aperture
    int err = 0;
  };

  void send(std::uint8_t channel, const LinkHeader& header, std::span<const std::byte> payload = {},
            bool copy = true, bool notify = false, std::uint64_t token = 0,
            const std::shared_ptr<nic::PinnedPayload>& kept = {});
  Status put_pieces(const nic::RemoteHandle& handle, std::uint64_t offset,
                    std::span<const std::byte> bytes, nic::PutOrder order,
                    const std::shared_ptr<nic::PinnedPayload>& kept);
  int refusal(const nic::RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
              Rights right);
  using Lock = std::unique_lock<std::recursive_mutex>;
  bool wait_for_room(Lock& lock);
  Status begin_put(Lock& lock, const nic::RemoteHandle& handle, std::uint64_t offset,
                   std::uint64_t length);
  LinkHeader access(LinkMessageType type, const nic::RemoteHandle& handle,
                    std::uint64_t offset) const;

  // udp_link_questions.cc
  template <typename Done>
  void wait_until(std::uint64_t deadline, Done&& done);
  Result<Pending> wait(std::uint64_t request);
  void wait_for_turn(std::uint64_t bytes), end_turn(std::uint64_t bytes);
  Status get_piece(const nic::RemoteHandle& handle, std::uint64_t offset,
                   std::span<std::byte> bytes);

  // udp_link_receive.cc
  nic::Nic::Landing land(const LinkHeader& h, std::uint64_t offset, std::uint64_t length,
                         Rights right, int* err) const;
  Incoming* incoming(const LinkHeader& h);
  int place(const LinkHeader& h, std::uint64_t offset, std::span<const std::byte> bytes,
            const RangeSet& taken);
  static void add_placed(const Incoming& chunk, const LinkHeader& h, RangeSet* to);
  void place_bulk(const LinkHeader& h, std::uint64_t offset, std::span<const std::byte> bytes);
  void take_put(const LinkHeader& h, std::span<const std::byte> bytes);
  bool take_read_data(const LinkHeader& h, std::uint32_t offset, std::span<const std::byte> bytes);
  void end_read(const LinkHeader& h, std::uint32_t total, std::span<const std::byte> payload);
  void take_urgent(const LinkHeader& h, std::uint32_t total, std::span<const std::byte> payload);
  void take_bulk(const LinkHeader& h, std::uint32_t total, std::span<const std::byte> payload);
  void run_bulk();
  void finish_write(const LinkHeader& h);
  void send_answer(const LinkHeader& h);
  void serve_read(std::uint8_t channel, const LinkHeader& h);
  void take_import(const LinkHeader& h, std::span<const std::byte> payload);
  void take_oob(std::span<const std::byte> payload);
  void finish(std::uint64_t request, int err);
  void complete(std::uint64_t request, Pending& pending);
  void misbehaved();

  const std::shared_ptr<UdpNode> node_;
  Connection* connection_;  ///< null once it is gone
  const Greeting peer_;
  std::atomic<bool> alive_{true};
  bool detached_ = false;  ///< shut down by us: no up-call from now on

  std::uint64_t urgent_sent_ = 0;  ///< messages of channel 0
  std::uint64_t urgent_released_ = 0;
  std::uint64_t next_request_ = 1;
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::size_t transfers_ = 0;
  std::uint64_t asked_bytes_ = 0;  ///< by threads that wait in get()
  std::uint64_t reply_bytes_ = 0;  ///< read data that the peer has not acknowledged

  std::vector<Incoming> incoming_;       ///< by request
  std::deque<LinkHeader> bulk_waiting_;  ///< complete, but something of channel 0 is still missing

  /// Imported apertures: how often, and why the peer refuses us (0: it does not).
  struct Imported {
    int references = 0;
    int refused = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Imported> imported_;
};

}  // namespace clan::udp
