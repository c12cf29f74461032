#include "vi.h"

#include <clan/detail/words.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace clan::via {
namespace {

constexpr std::int64_t kMeetMs = 1000;  ///< its engine answers, whatever the peer's program does

ViaRow* new_row(const PeerInfo& peer) {
  static std::atomic<std::uint64_t> connections{0};
  ViaPage& page = *provider()->page;
  ViaRow* row = nullptr;
  for (ViaRow& candidate : page.row) {  // one that is closed is used again
    std::uint32_t closed = 0;
    if (words::cas(candidate.open, closed, 1u)) {
      row = &candidate;
      break;
    }
  }
  if (row == nullptr) row = &page.row[ViaPage::kRows - 1];
  // relaxed: for people
  const auto number = static_cast<std::uint32_t>(row - page.row) + 1;
  std::uint32_t used = page.rows.load(std::memory_order_relaxed);
  while (used < number && !page.rows.compare_exchange_weak(used, number, std::memory_order_relaxed))
    continue;
  for (auto* counter : {&row->sent, &row->sent_bytes, &row->received, &row->received_bytes,
                        &row->rdma, &row->rdma_bytes, &row->moved, &row->dropped}) {
    counter->store(0, std::memory_order_relaxed);
  }
  row->peer_pid.store(static_cast<std::uint32_t>(peer.pid), std::memory_order_relaxed);
  row->connection.store(connections.fetch_add(1, std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
  return row;
}

}  // namespace

void Held::let_go_and_tell() {
  Reports reports;
  reports.swap(vi_.reports);
  vi_.mutex.unlock();
  if (later_ == nullptr) return tell(reports);
  later_->insert(later_->end(), reports.begin(), reports.end());
}

WireAttributes Vi::wire_attributes() const {
  WireAttributes wire;
  wire.max_transfer = attributes.MaxTransferSize;
  wire.qos = reinterpret_cast<std::uintptr_t>(attributes.QoS);
  wire.level = attributes.ReliabilityLevel;
  wire.rdma_write = attributes.EnableRdmaWrite != 0;
  wire.rdma_read = attributes.EnableRdmaRead != 0;
  wire.splits = options.SplitMessages != 0;
  wire.defers = options.DeferSends != 0;
  wire.copy_limit = copy_limit();
  if (own_count != nullptr) {
    wire.count = provider()->counts.number(own_count);
    wire.counts = provider()->counts.cookie();
  }
  return wire;
}

void Vi::begin(Stream made) {
  stream = std::move(made);
  theirs = {};
  counting = {};
  const PeerInfo info = stream->peer();
  peer_node = info.node;
  far = std::string_view(info.path) == "udp";
  if (!far) own_count = provider()->counts.take();
}

Status Vi::meet(const WireAttributes& peer) {
  theirs = peer;
  // Its sends cannot wait for what only counts, and long messages in several buffers do not either.
  counting.is_enough = own_count != nullptr && !peer.defers && !options.SplitMessages;
  if (far || peer.counts.node == NodeId{}) return {};
  // The cookie is the peer's word: only for memory of its own.
  if (peer.counts.node != peer_node) return Error{EPROTO, "no memory of the peer"};
  auto made = RemoteAperture::import(provider()->context, peer.counts, kMeetMs);
  if (!made) return made.error();
  their_count = PostedCounts::at(*made, peer.count);
  their_counts = std::move(*made);
  return their_count == nullptr ? Error{EPROTO, "no count of the peer"} : Status();
}

void Vi::connect() {
  state = VIP_STATE_CONNECTED;
  connected = true;
  row = new_row(stream->peer());
  watch_stream();
  progress();
}

Place* Vi::place_of(WorkQueue& queue) {
  if (queue.cq != nullptr) return queue.cq->place.get();
  if (!own_place) own_place = Place::create(provider()->context);
  if (own_place) watch_stream();
  return own_place.get();
}

// The stream's events come where its receives are waited for.
void Vi::watch_stream() {
  if (!connected || watched) return;
  paused = false;
  if (receives.cq != nullptr) {
    watched = stream->register_with(receives.cq->place->events(), tag).ok();
  } else if (own_place) {
    watched = stream->register_with(own_place->events(), 1).ok();
  }
}

// A thread that looks by itself is not to be woken: the peer need not say that something has come.
void Vi::expect_events(bool expected) {
  if (!watched || bulk_waits || paused != expected) return;
  paused = !expected;
  expected ? (void)stream->resume_events() : stream->pause_events();
}

void Vi::progress(Until until) {
  if (connected) drain(until);
  if (!has_work()) return;
  if (stream) tell_buffers();  // before what the peer may answer
  pump();
  attend();
}

// What neither this call nor another of the program need be there to finish.
void Vi::attend_later() {
  const bool waits = has_to_wait();
  if (waits || !flights.empty()) {
    provider()->bulk.need(*this, waits);
  } else {
    provider()->bulk.release(*this);
  }
}

void Vi::report(VIP_ERROR_CODE code, VIP_RESOURCE_CODE resource, VIP_DESCRIPTOR* descriptor,
                std::uint32_t op) {
  nic.use();
  reports.push_back({&nic, this, nullptr, descriptor, op, resource, code});
}

void Vi::report_overrun(Cq& cq) {
  nic.use();
  reports.push_back({&nic, this, &cq, nullptr, 0, VIP_RESOURCE_CQ, VIP_ERROR_VI_OVERRUN});
}

void Vi::break_off(VIP_ERROR_CODE code, VIP_DESCRIPTOR* descriptor) {
  report(code, descriptor == nullptr ? VIP_RESOURCE_VI : VIP_RESOURCE_DESCRIPTOR, descriptor,
         descriptor == nullptr ? 0 : op_of_send(*descriptor));
  state = VIP_STATE_ERROR;
  close_stream();
  flush();
}

void Vi::close_stream() {
  stream.reset();
  connected = watched = paused = bulk_waits = stuck = false;
  told = 0;
  counting = {};
  copied = copied_drained = drained = 0;
  if (own_count != nullptr) provider()->counts.give_back(std::exchange(own_count, nullptr));
  their_count = nullptr;
  their_counts.reset();
  slots.clear();
  free_slots.clear();
  slot_of.clear();
  last_slot = kNoSlot;
  buffers = {};
  peer_memory.clear();
  if (row != nullptr) words::store_release(row->open, 0u);
  row = nullptr;
}

// Sends behind one whose RDMA is under way are flushed when that is over.
void Vi::flush() {
  while (receives.completed < receives.posted.size()) {
    complete(receives, VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_OP_RECEIVE, 0);
  }
  while (flights.empty() && sends.completed < sends.posted.size()) {
    started = sends.completed + 1;
    complete(sends,
             VIP_STATUS_DESC_FLUSHED_ERROR | op_of_send(*sends.posted[sends.completed].descriptor),
             0);
  }
}

void Vi::complete(WorkQueue& queue, std::uint32_t status, std::uint32_t length) {
  const bool receive = &queue == &receives;
  Work& work = queue.posted[queue.completed];
  if (receive) take_back(work);
  VIP_DESCRIPTOR& d = *work.descriptor;
  if (!is_there(work)) [[unlikely]] {
    report(VIP_ERROR_COMP_PROT, VIP_RESOURCE_DESCRIPTOR, &d, status & VIP_STATUS_OP_MASK);
  } else {
    d.CS.Length = length;
    // order: the program may read it by itself; what it announces lies in memory
    words::store_release(std::atomic_ref(d.CS.Status), status | VIP_STATUS_DONE);
  }
  ++queue.completed;
  if (queue.cq != nullptr) {
    queue.cq->push(*this, receive);
  } else if (own_place) {
    own_place->wake();
  }
  if (receive) end_bad_receives();
}

// Those that could not be used from the start, once it is their turn.
void Vi::end_bad_receive() {
  const Work& next = receives.posted[receives.completed];
  if (state == VIP_STATE_ERROR) return;
  VIP_DESCRIPTOR* const descriptor = next.descriptor;
  complete(receives, next.bad | VIP_STATUS_OP_RECEIVE, 0);
  if (connected && is_reliable()) break_off(VIP_ERROR_POST_DESC, descriptor);
}

}  // namespace clan::via
