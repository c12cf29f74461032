// Connection: two rings between two endpoints, and what streams and message endpoints share: set-up
// and tear-down by out-of-band messages, records, credit, waiting, death of the peer.
//
// Each side owns one region of memory, exported to the other side as one aperture:
//
//     offset 0     control line, written by the peer: how far it has consumed *our* outgoing ring
//     offset 64    offer line, written by the peer: which of our offered messages it has copied
//     offset 128   ring lines, written by the peer: what it sends us
//
// and two tripwires on it: "ring" fires when the peer sends, "credit" when it has made room. Over a
// link of packets the same stores travel as packets.
//
// connection.cc and connection_inline.h send, receive and wait.
//
// Users share a handle; the last one to drop it closes the connection. The context keeps a closed
// one until the peer has closed or is gone, as the peer may write to the region until then.
// Threads: one producer and one consumer at a time, each any thread; the driver thread delivers
// out-of-band messages. The flags they share are atomics.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/connection/connection_state.h"

namespace clan::engine {

class Connection final : public OobSink,
                         private ConnectionState,
                         public std::enable_shared_from_this<Connection> {
 public:
  /// Client: offers a region to `remote_endpoint` behind `link` and waits for its answer.
  static Result<std::shared_ptr<Connection>> connect(std::shared_ptr<ContextCore> context,
                                                     std::shared_ptr<nic::Link> link,
                                                     std::uint32_t remote_endpoint,
                                                     ConnectionKind kind, Address from,
                                                     std::uint64_t deadline_ns);
  /// The first half of connect(): asks, and does not wait.
  static Result<std::shared_ptr<Connection>> ask(std::shared_ptr<ContextCore> context,
                                                 std::shared_ptr<nic::Link> link,
                                                 std::uint32_t remote_endpoint, ConnectionKind kind,
                                                 Address from);
  /// Ends set-up: open, or closed and why. EAGAIN: no answer yet; `asker` is notified of it.
  Status answer(std::weak_ptr<AnswerSink> asker);
  /// The same by the name of a service, whose endpoint may have changed since it was last asked.
  static Result<std::shared_ptr<Connection>> connect_service(std::shared_ptr<ContextCore> context,
                                                             const std::string& service, uid_t uid,
                                                             ConnectionKind kind, Address from,
                                                             std::uint64_t deadline_ns);
  /// Server, driver thread: answers a kConnect. The connection is open when this returns.
  static Result<std::shared_ptr<Connection>> accept(std::shared_ptr<ContextCore> context,
                                                    std::shared_ptr<nic::Link> link,
                                                    const OobMessage& message, ConnectionKind kind);
  /// Server: says no.
  static void refuse(nic::Link& link, const OobMessage& message, int err);

  // --- producer ----------------------------------------------------------------------------------
  /// The largest payload one record can carry.
  std::uint64_t max_payload() const { return out_ring_.max_payload(); }
  /// Plans a record; null: no room. The caller writes `payload` bytes there, then calls commit().
  std::byte* reserve(std::uint64_t payload);
  void commit(std::uint64_t payload, RecordType type, Notify wakes = Notify::kYes);
  /// reserve(), two copies and commit() in one. False: no room. Precondition: it fits.
  bool append(std::span<const std::byte> first, std::span<const std::byte> second, RecordType type,
              Notify wakes = Notify::kYes);
  /// True when a record of `payload` bytes fits now.
  bool writable(std::uint64_t payload);
  /// reserve() has failed, and the peer has read something since. Answers so once.
  bool room_has_come();
  Status wait_writable(std::uint64_t payload, std::uint64_t deadline_ns);
  /// Sends kFin once. Waits for room at most until the deadline.
  Status finish(std::uint64_t deadline_ns);
  bool finished() const { return fin_sent_; }
  /// Where the next record goes, and how far the peer was when last checked: positions in the ring.
  std::uint64_t produced() const { return producer_.tail; }
  std::uint64_t known_consumed() const { return producer_.consumed; }
  // relaxed: a hint that commit() would have somebody to wake. Precondition: mapped().
  bool peer_sleeps() const {
    return remote_.armed->load(std::memory_order_relaxed) != 0 && link_->owner_waits(remote_);
  }

  // --- consumer ----------------------------------------------------------------------------------
  /// Returns 1: `record` is there; 0: nothing; -1: the peer wrote nonsense (we have reset).
  int peek(shm::RingRecord* record, Fetch fetch = Fetch::kYes) {
    int rc = in_ring_.peek(consumer_, in_memory_, record);
    if (rc > 0) {
      peer_cpu_.store(record->head.cpu(), std::memory_order_relaxed);
      return rc;
    }
    return rc == 0 ? nothing_there(fetch) : broken();
  }
  void consume(const shm::RingRecord& record);
  Status wait_readable(std::uint64_t deadline_ns);
  bool readable();
  const void* next_record() {
    return &shm::head_at(in_memory_, in_ring_.index(consumer_.glance()));
  }
  /// Tells the peer how far we are. peek() does it when it finds nothing, consume() now and then.
  void publish_credit();

  // --- both --------------------------------------------------------------------------------------
  /// The peer has closed, died or misbehaved: no record will follow those in the ring.
  // PAIR connection.peer_gone: sees what the peer wrote before it went
  bool peer_gone() const { return words::load_acquire(peer_gone_); }
  /// Why, as an errno: 0 = it closed in good order.
  int reset_reason() const { return reset_reason_.load(std::memory_order_relaxed); }
  void close();
  /// Ends both directions at once, from any thread: ECONNABORTED here, a reset there.
  void abort(), ask() const;
  void pause_events();
  bool resume_events();
  /// The peer wrote something impossible: count, log, end.
  void reset_hostile(const char* what);

  /// Posts `event` of `queue` when there is something to read, room again after reserve() failed,
  /// or the peer goes. One queue at a time.
  Status bind(std::shared_ptr<EventQueueCore> queue, EventKind kind, std::uint64_t tag);
  void unbind();
  void post_event();
  /// One more persistent tripwire over the whole region, disarmed.
  Result<std::uint32_t> add_event_tripwire(const EventBinding& events);
  /// Posts this event as well when the peer goes.
  void also_notify(const EventBinding& events);

  nic::Link& link() { return *link_; }
  ContextCore& context() { return *context_; }
  const Address& remote_address() const { return remote_address_; }
  /// The peer can copy from our memory by itself.
  bool peer_can_copy() const { return peer_can_copy_; }
  std::uint16_t peer_cpu() const { return peer_cpu_.load(std::memory_order_relaxed); }
  /// Words 0 and 1 of our offer line (taken, refused): bits of offers answered by the peer.
  std::atomic<std::uint64_t>& own_offer_word(int i) {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(region_.data() + kRegionOffers)[i];
  }
  /// Sets a bit in the peer's offer line. Precondition: the peer's memory is mapped.
  void answer_offer(int word, std::uint32_t bit);
  bool mapped() const { return remote_.mapped != nullptr; }
  void nudge();  ///< Wakes what sleeps there until we write. Precondition: mapped().
  nic::Nic& nic() { return nic_; }
  /// Sleeps until the peer writes our control or offer line, unless `ready()`.
  template <typename Ready>
  Status wait_control(Ready&& ready, std::uint64_t deadline_ns) {
    return wait_for(write_waiter_, credit_tripwire_, ready, deadline_ns,
                    "the peer did not make room in time");
  }
  /// Number of the tripwire that posts our event; arm it, then look for records once more.
  std::uint32_t event_tripwire() const { return event_tripwire_; }

  // OobSink, driver thread
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override;
  void on_link_down(const std::shared_ptr<nic::Link>& link) override;

 private:
  Connection(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link, nic::Nic& nic);
  ConnectRecord describe(ConnectionKind kind, const Address& from);
  Status prepare();                          // our region, aperture, tripwires, endpoint
  Status open_remote(const ConnectRecord&);  // the peer's region
  static std::shared_ptr<Connection> make(std::shared_ptr<ContextCore> context,
                                          std::shared_ptr<nic::Link> link, nic::Nic& nic);
  /// No record will follow. `done`: and the peer will not touch our region again.
  void peer_left(int reason, bool done);
  void give_region_back();
  /// Sends kOobClose or kOobReset, with the reason: an errno, or 0.
  void tell_end(std::uint32_t type, std::uint32_t to, int reason) const;
  bool may_write() const {
    // relaxed: a thread that closes a connection while another sends on it gets one or the other
    return !closed_.load(std::memory_order_relaxed) && context_->usable();
  }
  void wake_local(), take_answer(int err), tell_asker();
  int nothing_there(Fetch fetch), broken();
  int plan(std::uint64_t payload, shm::RingSlot*slot), plan_on(std::uint64_t, shm::RingSlot*);
  std::uint64_t load_credit();
  void put_ordered(std::uint64_t offset, std::uint64_t word,
                   nic::PutOrder order = nic::PutOrder::kAfterEarlier);
  void notify(std::uint64_t offset, std::uint64_t length);
  void notify_armed(std::uint64_t offset, std::uint64_t length);
  void publish(const shm::RingSlot& slot, shm::RingHead head, Notify wakes = Notify::kYes);
  bool append_staged(std::span<const std::byte> first, std::span<const std::byte> second,
                     RecordType type, Notify wakes);
  void put_record(std::uint64_t payload, shm::RingHead head), add_staging();
  std::byte* staging_for(std::uint64_t payload);
  void no_room(int rc);
  template <typename Ready>
  Status wait_for(Waiter& waiter, std::uint32_t tripwire, Ready&& ready, std::uint64_t deadline_ns,
                  const char* late);
  template <typename Ready>
  bool sleep_on(std::uint32_t tripwire, std::uint64_t deadline_ns, Ready&& ready, Status* status);
  void rest(std::uint32_t tripwire), end_rest();
  bool read_ready() { return readable() || peer_gone(); }
};

}  // namespace clan::engine

#include "engine/connection/connection_inline.h"
