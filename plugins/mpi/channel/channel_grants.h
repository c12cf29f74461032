// The channels of a segment are granted, each once and for good. Nothing of Open MPI here.
//
// Two ranks have CLAN both ways or not at all: ob1 answers by its own transport to that rank, and
// waits for ever where that is not the sender's. So "segment S has a channel for rank X" must have
// one answer, whichever of S's owner and X asks first, while both live; a pair has CLAN where both
// of its segments say yes. What the owner word of a channel goes through:
//
//   1. One for X is there: yes. Where it has only been asked for: X asked -> X granted, yes.
//   2. One is free: 0 -> X asked. Then, if the segment is not closed: X asked -> X granted, yes.
//      If it is: X asked -> 0, and 3. once more; yes where the other has granted it meanwhile.
//   3. None is free: the segment is closed, for good. One for X is there now: yes, as in 1. Else
//   no.
//   4. X alone, which is to send: X granted -> X taken, and what else was asked for it -> 0. S's
//      owner, which has asked in 2., checks whether X has come to this.
//
// A no stays a no: nothing is granted to a rank that asks a closed segment. A yes of 2. is seen by
// each that says no: it was asked for before `closed` was read as 0, so before the other set it or
// read it, and that comes before the other's last look. Owner words and `closed` are seq_cst for
// this; the functions are templates so that the model checker runs these lines
// (tests/model/mpi/channel/channel_grants_test.cc).
//
// A `Table` has size(), owner(i), closed(), leaving(i) and used(i): channels from used() on have
// never had an owner, and used(i) makes it more than i.
#pragma once

#include <clan/cookie.h>

#include <atomic>
#include <cstdint>
#include <optional>

namespace clan::mpi {

/// The lowest bits of an owner word; the others are the node's.
enum class ChannelState : std::uint64_t { kAsked = 1, kGranted = 2, kTaken = 3 };
constexpr std::uint64_t kChannelStateBits = 3;

constexpr std::uint64_t owner_word(NodeId node, ChannelState state) {
  return (node.value & ~kChannelStateBits) | static_cast<std::uint64_t>(state);
}
constexpr bool is_for(std::uint64_t word, NodeId node, ChannelState state) {
  return word == owner_word(node, state);
}

/// The owner word of a channel goes from `from` to `to`. False: it was not `from`.
template <typename Word>
bool change_owner(Word&& owner, std::uint64_t from, std::uint64_t to) {
  // PAIR channel.owner: sees what give_back() has left; what was before a grant is seen by its user
  return owner.compare_exchange_strong(from, to, std::memory_order_seq_cst);
}

template <typename Table>
bool has_taken(const Table& table, NodeId node) {
  for (std::uint32_t i = 0; i < table.used(); ++i) {
    // PAIR channel.owner: X has taken it
    const std::uint64_t word = table.owner(i).load(std::memory_order_seq_cst);
    if (is_for(word, node, ChannelState::kTaken) && !table.leaving(i)) return true;
  }
  return false;
}

/// Step 1 at one channel: X may have it, granted by this if need be.
template <typename Table>
std::optional<std::uint32_t> find_granted_at(const Table& table, std::uint32_t i, NodeId node) {
  const std::uint64_t asked = owner_word(node, ChannelState::kAsked);
  const std::uint64_t granted = owner_word(node, ChannelState::kGranted);
  auto&& owner = table.owner(i);
  // PAIR channel.owner: what its owner has done before
  std::uint64_t word = owner.load(std::memory_order_seq_cst);
  if (word == asked && change_owner(owner, asked, granted)) return i;
  // PAIR channel.owner: what its owner has done; the other may have been faster
  if (word == asked) word = owner.load(std::memory_order_seq_cst);
  if (word == granted) return i;
  return {};
}

/// Step 1.
template <typename Table>
std::optional<std::uint32_t> find_granted(const Table& table, NodeId node) {
  for (std::uint32_t i = 0; i < table.used(); ++i) {
    if (const auto there = find_granted_at(table, i, node)) return there;
  }
  return {};
}

/// Steps 2 and 3, where 1 has found nothing: a channel that X may have, or has.
template <typename Table>
std::optional<std::uint32_t> ask_for_channel(const Table& table, NodeId node, bool owner_asks) {
  const std::uint64_t asked = owner_word(node, ChannelState::kAsked);
  // PAIR segment.closed: a segment that has been closed is not asked again
  bool closed = table.closed().load(std::memory_order_seq_cst) != 0;
  for (std::uint32_t i = 0; i < table.size() && !closed; ++i) {
    if (!change_owner(table.owner(i), 0, asked)) {
      // Both begin at the first channel: here the other has been faster.
      if (const auto theirs = find_granted_at(table, i, node)) return theirs;
      continue;
    }
    table.use(i);
    // X may have taken another one, and its check of this one in step 4 may have been before.
    if (owner_asks && has_taken(table, node)) {
      change_owner(table.owner(i), asked, 0);
      return i;
    }
    // PAIR segment.closed: not set here, it is set behind the owner word, and the side that sets it
    // looks
    closed = table.closed().load(std::memory_order_seq_cst) != 0;
    if (!closed) change_owner(table.owner(i), asked, owner_word(node, ChannelState::kGranted));
    // Where one of these fails, the other has granted it, or X has another one.
    if (!closed || !change_owner(table.owner(i), asked, 0)) return i;
  }
  // PAIR segment.closed: before the last look
  if (!closed) table.closed().store(1, std::memory_order_seq_cst);
  return find_granted(table, node);
}

/// Steps 1 to 3, for S's owner: whether X has a channel, which nothing but refuse_rank() takes
/// away.
template <typename Table>
bool grant_channel(const Table& table, NodeId node) {
  return has_taken(table, node) || find_granted(table, node) ||
         ask_for_channel(table, node, true) || has_taken(table, node);
}

/// What has been asked for or granted, and not been taken.
template <typename Table>
void free_unused(const Table& table, NodeId node) {
  for (std::uint32_t i = 0; i < table.used(); ++i) {
    change_owner(table.owner(i), owner_word(node, ChannelState::kAsked), 0);
    change_owner(table.owner(i), owner_word(node, ChannelState::kGranted), 0);
  }
}

/// Steps 1 to 4, for X. Only refuse_rank() makes a grant fail to be taken, and that once: what
/// meet_both_ways() frees is of a pair that has a no already.
template <typename Table>
std::optional<std::uint32_t> take_channel(const Table& table, NodeId node) {
  const std::uint64_t granted = owner_word(node, ChannelState::kGranted);
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto index = find_granted(table, node);
    if (!index) index = ask_for_channel(table, node, false);
    if (!index) return {};
    if (!change_owner(table.owner(*index), granted, owner_word(node, ChannelState::kTaken)))
      continue;
    free_unused(table, node);
    return index;
  }
  return {};
}

/// A pair's decision, for either of them: the channel of this rank in the other's segment, where
/// both segments say yes.
template <typename Table>
std::optional<std::uint32_t> meet_both_ways(const Table& own, NodeId own_node, const Table& other,
                                            NodeId other_node) {
  if (!grant_channel(own, other_node)) return {};
  const auto index = take_channel(other, own_node);
  if (!index) free_unused(own, other_node);  // the other hears that no as well
  return index;
}

/// S's owner, which cannot reach X: S says no to it, and to all that it has not met. False: X has
/// taken its channel already.
template <typename Table>
bool refuse_rank(const Table& table, NodeId node) {
  // PAIR segment.closed: before the check of what has been granted
  table.closed().store(1, std::memory_order_seq_cst);
  free_unused(table, node);
  return !has_taken(table, node);
}

}  // namespace clan::mpi
