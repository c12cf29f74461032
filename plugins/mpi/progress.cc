// The receiving side, and whatever else needs a check now and then. Open MPI calls progress()
// whenever a thread waits, or tests.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>

#include <algorithm>

#include "component.h"

namespace clan::mpi {
namespace {

/// of one channel in one call: others wait, too
constexpr unsigned kMostRecords = 32;
constexpr unsigned kIdleBeforeLooking = 4096;  ///< calls in a row that found nothing
constexpr unsigned kCallsBetweenTimes = 256;   ///< of progress, before it reads the clock
/// for deaths, where there is always something to do
constexpr std::uint64_t kBetweenLooksNs = 100'000'000;

/// One thread at a time, which may come again from a callback.
class Turn {
 public:
  explicit Turn(Node& node) : node_(node) {
    if (!opal_using_threads()) {
      mine_ = true;
      ++node.depth;
      return;
    }
    const auto self = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
    // relaxed: only we store that value
    if (node.progressing.load(std::memory_order_relaxed) != self) {
      std::uint64_t nobody = 0;
      // PAIR mpi.progress: sees what the thread before us has left
      if (!words::cas(node.progressing, nobody, self)) return;
    }
    mine_ = true;
    ++node.depth;
  }
  ~Turn() {
    if (!mine_ || --node_.depth > 0) return;
    words::store_release(node_.progressing, 0);  // PAIR mpi.progress: for the next thread
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  Node& node_;
  bool mine_ = false;
};

int receive(Node& node, ChannelReceiver& channel) {
  Record record;
  unsigned taken = 0;
  while (taken < kMostRecords && channel.next(&record) == ChannelReceiver::Next::kRecord) {
    ++taken;
    channel.read(record, [&](const Record& r) {
      if (!deliver(node, g_module, r)) (void)channel.break_off();
    });
    channel.publish(false);
  }
  if (channel.broken()) {                                         // once: it is never ready again
    node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    node.nonsense = true;
  }
  // A callback further out may still read a record of this channel: then the loop that called it
  // gives all back.
  channel.publish(true);
  return static_cast<int>(taken);
}

/// Channels that peers have taken since we last looked.
void meet_senders(Node& node, std::uint32_t taken) {
  while (node.receivers.size() < taken) {
    auto receiver = std::make_unique<ChannelReceiver>();
    receiver->attach(node.segment.channel(static_cast<std::uint32_t>(node.receivers.size())));
    node.receivers.push_back(std::move(receiver));
    node.has_met.store(true, std::memory_order_relaxed);  // relaxed: a hint
  }
}

/// Whether an operation of its sender is still to be carried out.
bool operation_in(const ChannelView& channel) {
  const OperationCell* cells = cells_of(channel);
  return std::any_of(cells, cells + kCells, [](const OperationCell& cell) {
    // relaxed: only its value counts
    const CellState state = cell.state.load(std::memory_order_relaxed);
    return state == CellState::kPosted || state == CellState::kTaken;
  });
}

void free_channels(Node& node) {
  // A peer that parts and meets us again is not asked for meanwhile.
  std::unique_lock lock(node.endpoints_mutex, std::try_to_lock);
  if (!lock) return;  // the next look does it
  for (std::uint32_t i = 0; i < node.receivers.size(); ++i) {
    ChannelControl& control = *node.receivers[i]->view().control;
    // PAIR channel.leaving: sees the last record
    if (words::load_acquire(control.leaving) == 0 || node.receivers[i]->ready() ||
        node.receivers[i]->broken() || operation_in(node.receivers[i]->view())) {
      continue;
    }
    node.receivers[i]->publish(true);
    node.segment.give_back(i);
  }
}

int look_at_channels(Node& node) {
  int events = 0;
  for (unsigned look = 0; look < g_parameters.looks; ++look) {
    const std::uint32_t taken = node.segment.taken();
    if (taken != node.receivers.size()) [[unlikely]]
      meet_senders(node, taken);
    for (std::size_t i = 0; i < node.receivers.size(); ++i) {
      ChannelReceiver& channel = *node.receivers[i];
      if (channel.ready()) events += receive(node, channel);
      OperationCell& cell = *cells_of(channel.view());
      if (cell.state.load(std::memory_order_relaxed) ==
          CellState::kPosted) {  // relaxed: serve_cell() acquires
        serve_cell(node, cell);
        ++events;
      }
    }
    if (operations_posted(node)) [[unlikely]]
      events += serve_operations(node);
    if (events > 0) break;
  }
  return events;
}

/// Or nonsense has been found.
bool time_to_look(Node& node) {
  if (node.nonsense) return true;
  if (++node.calls % kCallsBetweenTimes != 0) return false;
  const std::uint64_t now = monotonic_ns();
  if (now < node.looked_ns + kBetweenLooksNs) return false;
  node.looked_ns = now;
  return true;
}

}  // namespace

bool deliver(Node& node, mca_btl_base_module_t& module, const Record& record) {
  if (record.tag >= MCA_BTL_TAG_MAX) return false;
  const mca_btl_active_message_callback_t& handler =
      mca_btl_base_active_message_trigger[record.tag];
  if (handler.cbfunc == nullptr) {
    node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    return true;  // of a part that this rank has not opened, or has closed
  }
  mca_btl_base_segment_t segment;
  segment.seg_addr.pval = const_cast<std::byte*>(record.data);
  segment.seg_len = record.bytes;
  mca_btl_base_descriptor_t descriptor;  // not constructed: its list item is nobody's business
  descriptor.des_segments = &segment;
  descriptor.des_segment_count = 1;
  handler.cbfunc(&module, record.tag, &descriptor, handler.cbdata);
  return true;
}

int progress() {
  Node* node = g_node;
  if (node == nullptr || !node->is_used()) return 0;
  const Turn turn(*node);
  if (!turn.mine()) return 0;
  int events = look_at_channels(*node);
  // relaxed, both: hints
  if (node->with_pending.load(std::memory_order_relaxed) != 0) events += flush_pending(*node);
  if (node->outstanding_count.load(std::memory_order_relaxed) != 0)
    events += finish_operations(*node);
  if (node->far) events += node->far->progress(*node);
  // Helps receivers that copy; not where that keeps their processor, or another rank's, busy.
  // PAIR mpi.offered: sees the queue, which stays until the end
  if (words::load_acquire(node->offered) != 0 && !g_parameters.crowded) (void)node->rdma->poll({});
  if (events > 0) {
    node->idle = 0;
  } else {
    ++node->idle;
  }
  if (node->depth == 1 && (node->idle >= kIdleBeforeLooking || time_to_look(*node))) {
    node->idle = 0;
    free_channels(*node);
    look_after_peers(*node);
  }
  return events;
}

}  // namespace clan::mpi
