// The receiving side, and whatever else has to be looked at now and then. Open MPI calls progress() whenever a thread
// waits, or tests.
#include "component.h"

namespace clan::mpi {
namespace {

constexpr unsigned kMostRecords = 32;       ///< of one channel in one call: others wait, too
constexpr unsigned kIdleBeforeLooking = 4096;  ///< calls in a row that found nothing

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
    if (node.progressing.load(std::memory_order_relaxed) != self) {  // relaxed: only we store that value
      std::uint64_t nobody = 0;
      // PAIR mpi.progress: sees what the thread before us has left
      if (!node.progressing.compare_exchange_strong(nobody, self, std::memory_order_acquire)) return;
    }
    mine_ = true;
    ++node.depth;
  }
  ~Turn() {
    if (!mine_ || --node_.depth > 0) return;
    node_.progressing.store(0, std::memory_order_release);  // PAIR mpi.progress: for the next thread
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool mine() const { return mine_; }

 private:
  Node& node_;
  bool mine_ = false;
};

void deliver(Node& node, const Record& record) {
  const mca_btl_active_message_callback_t& handler = mca_btl_base_active_message_trigger[record.tag];
  if (handler.cbfunc == nullptr) {
    node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    return;
  }
  mca_btl_base_segment_t segment;
  segment.seg_addr.pval = const_cast<std::byte*>(record.data);
  segment.seg_len = record.bytes;
  mca_btl_base_descriptor_t descriptor;  // not constructed: its list item is nobody's business
  descriptor.des_segments = &segment;
  descriptor.des_segment_count = 1;
  handler.cbfunc(&g_module, record.tag, &descriptor, handler.cbdata);
}

int receive(Node& node, ChannelReceiver& channel) {
  Record record;
  unsigned taken = 0;
  while (taken < kMostRecords) {
    const auto next = channel.next(&record);
    if (next == ChannelReceiver::Next::kNone) break;
    if (next == ChannelReceiver::Next::kNonsense) {
      node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
      break;
    }
    ++taken;
    channel.read(record, [&](const Record& r) { deliver(node, r); });
    channel.publish(false);
  }
  // A callback further out may still read a record of this channel: then the loop that called it gives all back.
  if (taken > 0) channel.publish(true);
  return static_cast<int>(taken);
}

/// Channels that peers have taken since we last looked.
void meet_senders(Node& node, std::uint32_t taken) {
  while (node.receivers.size() < taken) {
    auto receiver = std::make_unique<ChannelReceiver>();
    receiver->attach(node.segment.channel(static_cast<std::uint32_t>(node.receivers.size())));
    node.receivers.push_back(std::move(receiver));
  }
}

void free_channels(Node& node) {
  for (std::uint32_t i = 0; i < node.receivers.size(); ++i) {
    ChannelControl& control = *node.receivers[i]->view().control;
    // PAIR channel.leaving: sees the last record
    if (control.leaving.load(std::memory_order_acquire) == 0 || node.receivers[i]->ready()) continue;
    node.receivers[i]->publish(true);
    node.segment.give_back(i);
  }
}

int look_at_channels(Node& node) {
  int events = 0;
  for (unsigned look = 0; look < g_parameters.looks; ++look) {
    const std::uint32_t taken = node.segment.taken();
    if (taken != node.receivers.size()) [[unlikely]] meet_senders(node, taken);
    for (std::size_t i = 0; i < node.receivers.size(); ++i) {
      ChannelReceiver& channel = *node.receivers[i];
      if (channel.ready()) events += receive(node, channel);
      OperationCell& cell = *cells_of(channel.view());
      if (cell.state.load(std::memory_order_relaxed) == CellState::kPosted) {  // relaxed: serve_cell() acquires
        serve_cell(node, cell);
        ++events;
      }
    }
    events += serve_operations(node);
    if (events > 0) break;
  }
  return events;
}

}  // namespace

int progress() {
  Node* node = g_node;
  if (node == nullptr) return 0;
  const Turn turn(*node);
  if (!turn.mine()) return 0;
  int events = look_at_channels(*node);
  events += flush_pending(*node);
  events += finish_operations(*node);
  if (node->offered.load(std::memory_order_relaxed) != 0 && node->rdma) {  // relaxed: a hint
    (void)node->rdma->poll({});
  }
  if (events > 0) {
    node->idle = 0;
  } else if (++node->idle >= kIdleBeforeLooking && node->depth == 1) {
    node->idle = 0;
    free_channels(*node);
    look_after_peers(*node);
  }
  return events;
}

}  // namespace clan::mpi
