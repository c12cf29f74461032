// Vi: a Virtual Interface: two work queues, and the connection behind them.
//
//   program            this end                    stream                     other end
//   VipPostRecv  -->   receives --tell_buffers()--> Region, Buffer -->        buffers
//   VipPostSend  -->   sends    --start()---------> Message, data copied -->  receives
//                       |                       \-> RDMA into its buffer, Message behind it
//                       \-- flights: those whose RDMA is under way
//
// Every call that touches the VI makes progress with both directions (progress()). What has to go
// on without a call is the Bulk's business. Files: vi.cc, its life; arrive.cc, what the peer says;
// buffers.cc, posted receives; send.cc, posted sends; post.cc and complete.cc, the calls.
#pragma once

#include <clan/face/wait.h>

#include <deque>
#include <unordered_map>

#include "cq.h"
#include "work.h"

namespace clan::via {

class Vi : public Object {
 public:
  static constexpr std::uint32_t kMagic = 0x69767076;
  Vi(Nic& owner, const VIP_VI_ATTRIBUTES& wanted)
      : Object(kMagic),
        nic(owner),
        memory(provider()->memory),
        attributes(wanted),
        waiter(provider()->context.options().wait) {}

  /// How far the peer's records are taken: all, or up to the first that completes a receive, as
  /// the line of the ring behind it is still on its way, most likely.
  enum class Until { kEmpty, kReceived };

  // --- its life (vi.cc); the caller holds `mutex`
  WireAttributes wire_attributes() const;
  /// The stream of a connection that is being made: it announces receives.
  void begin(Stream made);
  /// Both ends have agreed on the stream, or are about to. An error: it is of no use.
  Status meet(const WireAttributes& peer);
  /// Behind meet().
  void connect();
  /// To the error state, and says so; `code` is the program's to know.
  void break_off(VIP_ERROR_CODE code, VIP_DESCRIPTOR* descriptor = nullptr);
  void report(VIP_ERROR_CODE code, VIP_RESOURCE_CODE resource, VIP_DESCRIPTOR* descriptor = nullptr,
              std::uint32_t op = 0);
  void report_overrun(Cq& cq);
  /// Ends a VipConnectPeerRequest(); false: there is none.
  bool abandon_peering();
  void close_stream();
  /// Everything that can be done now.
  void progress(Until until = Until::kEmpty);
  /// At a glance: progress() has nothing to do.
  bool is_quiet() const { return connected && !has_work() && !stream->glance(); }
  /// Has the Bulk attend to what is left, or no more.
  void attend() {
    if (needs_bulk || !flights.empty() || has_to_wait()) attend_later();
  }
  void flush();
  /// Completes the first descriptor of a queue that is not.
  void complete(WorkQueue& queue, std::uint32_t status, std::uint32_t length);
  void end_bad_receives() {
    if (receives.completed < receives.posted.size() && receives.posted[receives.completed].bad != 0)
      end_bad_receive();
  }
  /// The descriptor's memory, as it was when it was posted, or still registered.
  bool is_there(const Work& work) const {
    return work.changes == memory.changes() || memory.find(work.handle) != nullptr;
  }
  std::uint32_t copy_limit() const {
    return options.CopyLimit == 0 ? kCopyLimit : options.CopyLimit;
  }
  bool is_reliable() const { return attributes.ReliabilityLevel != VIP_SERVICE_UNRELIABLE; }
  bool is_reception() const {
    return attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION;
  }
  /// Where threads wait for that queue; null: there can be none.
  Place* place_of(WorkQueue& queue);
  void watch_stream();
  void expect_events(bool expected);

  // --- posted receives (buffers.cc)
  /// Why its segments are not as they should be: a status, or 0; and their length.
  std::uint32_t check_segments(const VIP_DESCRIPTOR& descriptor, std::uint32_t first,
                               std::uint64_t* bytes) const;
  std::uint32_t check_receive(const VIP_DESCRIPTOR& descriptor, std::uint64_t* space) const;
  void tell_buffers() {
    while (told < receives.posted.size() && tell_next()) continue;
  }
  /// The peer's right to the buffer's memory ends.
  void take_back(Work& work);

  // --- what the peer says (arrive.cc), and posted sends (send.cc)
  void drain(Until until = Until::kEmpty);
  /// Takes all that is there. EPROTO; ECONNRESET: it has disconnected, or has died.
  Status read_records(Until until);
  void pump();

  Nic& nic;
  Memory& memory;
  // What most calls read or write comes first, on a few lines.
  BriefLock mutex;
  bool connected = false;  ///< both ends have agreed; receives may be announced before
  bool watched = false;    ///< the stream's events come to a Place or to the Bulk
  bool paused = false;     ///< but none are made: a thread polls
  bool stuck = false;      ///< the next send waits for a buffer, or something for room
  bool again = false;      ///< under the receive CQ's members_mutex: to be checked again
  bool needs_bulk = false, bulk_waits = false;
  bool far = false;
  VIP_VI_STATE state = VIP_STATE_IDLE;
  std::uint32_t last_poll = 0;              ///< under the same: of it that has found a message
  std::uint32_t looks = 0;                  ///< that have found nothing
  std::atomic<const void*> front{nullptr};  ///< where the next record begins, for a prefetch
  std::unique_ptr<Place> own_place;         ///< of queues without a CQ, once a thread has waited
  std::optional<Stream> stream;
  WorkQueue receives, sends;
  Reports reports;
  std::size_t told = 0;                      ///< receives that the peer knows
  std::size_t started = 0;                   ///< sends
  PostedCounts::Count* own_count = nullptr;  ///< what the peer may read
  Counting counting;
  std::uint32_t copied = 0, copied_drained = 0;  ///< bytes through the ring; and seen by the peer
  std::uint32_t drained = 0;                     ///< of the peer's, by us
  ViaRow* row = nullptr;
  VIP_VI_ATTRIBUTES attributes;
  std::atomic<VIP_PVOID> user_data{nullptr};
  PeerBuffers buffers;
  std::deque<Flight> flights;

  VIP_CLAN_VI_OPTIONS options{};
  WireAttributes theirs;
  std::uint32_t users = 0;  ///< calls that wait, or destroy it
  Waiter waiter;
  NodeId peer_node;
  std::vector<Slot> slots;
  std::vector<std::uint32_t> free_slots;
  std::unordered_map<VIP_MEM_HANDLE, std::uint32_t> slot_of;
  std::uint32_t last_slot = kNoSlot;  ///< that of the receive posted last
  const PostedCounts::Count* their_count = nullptr;
  std::optional<RemoteAperture> their_counts;
  std::unordered_map<VIP_MEM_HANDLE, PeerMemory> peer_memory;

  struct Peering;  ///< a VipConnectPeerRequest() that is under way (peer.cc)
  std::shared_ptr<Peering> peering;

  std::uint32_t number = 0, tag = 0;  ///< the Bulk's; in the receive CQ
  // Under the lock of the Bulk's queue.
  std::vector<int> finished_requests;  ///< errno of each
  std::uint32_t refused_requests = 0;  ///< that could not be posted, and why
  int refusal = 0;

 private:
  enum class Outcome { kOver, kUnderWay, kStuck };
  struct Failure {
    std::uint32_t status;
    VIP_ERROR_CODE here, there;
  };
  Outcome start(Work& work);
  Outcome start_message(Work& work, std::uint64_t bytes);
  Outcome start_rdma(Work& work, std::uint64_t bytes);
  Outcome copy_message(Work& work, std::uint64_t bytes, std::uint32_t taken);
  Outcome move_message(Work& work, std::uint64_t bytes, std::uint32_t taken);
  Outcome fly(Flight flight, std::span<const Move> moves);
  Outcome end_send(std::uint32_t status, std::uint64_t bytes);
  Outcome overrun(Work&work), too_long();
  Outcome fail_send(std::uint32_t status, VIP_ERROR_CODE here, VIP_ERROR_CODE there);
  Outcome fail_transfer(const VIP_DESCRIPTOR& d, int error);
  Failure failure_of(const VIP_DESCRIPTOR& d, int error) const;
  void lose(VIP_ERROR_CODE here, VIP_ERROR_CODE there, VIP_DESCRIPTOR* descriptor);
  void land(), look_for_buffers();
  bool land_first();
  std::uint32_t buffers_for(std::uint64_t bytes);
  MessageRecord next_record(const VIP_DESCRIPTOR& d, std::uint64_t left, std::uint32_t buffer);
  bool write(MessageRecord record, SegmentWalk* data);
  std::shared_ptr<RemoteAperture> slot_memory(const Piece& piece);
  Result<std::shared_ptr<RemoteAperture>> rdma_memory(VIP_MEM_HANDLE handle, RdmaOp op,
                                                      std::uint64_t address, std::uint64_t bytes,
                                                      std::uint64_t* offset);
  bool has_work() const {
    return !flights.empty() || started < sends.posted.size() || told < receives.posted.size() ||
           needs_bulk;
  }
  bool has_to_wait() const { return connected && (stuck || told < receives.posted.size()); }
  void attend_later(), end_bad_receive();
  bool tell_next(), tell_buffer(Work&work);
  bool tell_slot(const VIP_DATA_SEGMENT& segment, Piece* piece);
  bool add_slot(Region& region, const VIP_DATA_SEGMENT& segment, std::uint32_t bytes);
  std::uint32_t usable(const VIP_DATA_SEGMENT& segment) const;
  void let_go(std::uint32_t slot_number);
  bool arrive(std::span<const std::byte> record);
  bool arrive_message(std::span<const std::byte> record);
  bool arrive_drained(std::uint32_t theirs_drained);
};

}  // namespace clan::via

#include "held.h"
