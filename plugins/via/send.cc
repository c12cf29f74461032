// Posted sends: how each travels (via-over-clan 3.3.3 to 3.5).
//
//   up to the copy limit   data and record go into the peer's ring together (PIO)
//   longer, and RDMA       data by RDMA; the record follows when they have arrived
//
// Sends are begun in the order of posting and complete in it. One that is copied waits for those
// that fly.
#include <clan/detail/log.h>

#include <cstring>

#include "segments.h"
#include "vi.h"

namespace clan::via {
namespace {

constexpr std::size_t kLine = 64;  ///< of the ring, which every record begins anew
/// A receiver that sleeps is woken before the copy, and not behind it: it is awake early enough to
/// make a part of it.
constexpr std::uint64_t kLong = 256 * 1024;
constexpr std::size_t kMostFlights = 64;
constexpr std::size_t kMostPeerMemory = 64;  ///< imports that are kept (the paper's cache, 3.5)

bool is_rights_error(int err) { return err == EACCES || err == ESTALE || err == ERANGE; }

}  // namespace

void Vi::pump() {
  stuck = false;
  do {
    if (!flights.empty()) land();
    if (state == VIP_STATE_ERROR) return flush();
  } while (connected && !stuck && started < sends.posted.size() &&
           start(sends.posted[started]) != Outcome::kStuck);
}

[[gnu::always_inline]] inline Vi::Outcome Vi::start(Work& work) {
  const VIP_DESCRIPTOR& d = *work.descriptor;
  const std::uint32_t op = d.CS.Control & VIP_CONTROL_OP_MASK;
  if (!flights.empty() && (d.CS.Control & VIP_CONTROL_QFENCE) != 0) return Outcome::kStuck;
  std::uint64_t bytes = 0;
  std::uint32_t wrong = check_segments(d, first_segment(d), &bytes);
  if (op == VIP_CONTROL_OP_RESERVED || (d.CS.Control & VIP_CONTROL_RESERVED) != 0 ||
      (op == VIP_CONTROL_OP_RDMAREAD && (d.CS.Control & VIP_CONTROL_IMMEDIATE) != 0)) {
    wrong = VIP_STATUS_FORMAT_ERROR;
  }
  if (wrong != 0) return fail_send(wrong, VIP_ERROR_POST_DESC, VIP_ERROR_CONN_LOST);
  return op == VIP_CONTROL_OP_SENDRECV ? start_message(work, bytes) : start_rdma(work, bytes);
}

// A send that ends without anything of it under way.
Vi::Outcome Vi::end_send(std::uint32_t status, std::uint64_t bytes) {
  const std::uint32_t op = op_of_send(*sends.posted[started].descriptor);
  ++started;
  complete(sends, status | op, static_cast<std::uint32_t>(bytes));
  return Outcome::kOver;
}

// With the reliable levels that is the end of the connection; the peer learns why.
Vi::Outcome Vi::fail_send(std::uint32_t status, VIP_ERROR_CODE here, VIP_ERROR_CODE there) {
  if (!flights.empty()) return Outcome::kStuck;
  VIP_DESCRIPTOR* const descriptor = sends.posted[started].descriptor;
  (void)end_send(status, 0);
  if (is_reliable()) lose(here, there, descriptor);
  return Outcome::kOver;
}

void Vi::lose(VIP_ERROR_CODE here, VIP_ERROR_CODE there, VIP_DESCRIPTOR* descriptor) {
  if (!connected) return;
  if (auto room = stream->reserve(sizeof(FailureRecord)); room.ok()) {
    const FailureRecord record{Kind::kFailure, static_cast<std::uint8_t>(there), 0};
    std::memcpy(room->data(), &record, sizeof record);
    stream->commit(sizeof record);
  }
  break_off(here, descriptor);
}

// The peer has no buffer: the data are not sent at all (3.3.4).
Vi::Outcome Vi::overrun(Work& work) {
  const bool writes = first_segment(*work.descriptor) != 0;
  if (options.DeferSends) {
    stuck = true;
    return Outcome::kStuck;
  }
  if (!flights.empty()) return Outcome::kStuck;
  add(row->dropped, 1);
  if (!is_reliable()) return end_send(0, 0);
  return fail_send(is_reception() ? VIP_STATUS_REMOTE_DESC_ERROR : VIP_STATUS_TRANSPORT_ERROR,
                   VIP_ERROR_CONN_LOST, writes ? VIP_ERROR_RDMAW_ABORT : VIP_ERROR_RECVQ_EMPTY);
}

/// How many of the peer's buffers a message takes; 0: more than there are.
std::uint32_t Vi::buffers_for(std::uint64_t bytes) {
  if (!theirs.splits) return buffers.empty() ? 0 : 1;
  for (std::uint32_t n = 0; n < buffers.size(); ++n) {
    if (bytes <= buffers.space(n)) return n + 1;
    bytes -= buffers.space(n);
  }
  return 0;
}

[[gnu::always_inline]] inline Vi::Outcome Vi::start_message(Work& work, std::uint64_t bytes) {
  std::uint32_t taken = buffers_for(bytes);
  if (taken == 0) {
    look_for_buffers();
    if (!connected) return Outcome::kOver;
    taken = buffers_for(bytes);
  }
  if (taken == 0) return overrun(work);
  if (!theirs.splits && bytes > buffers.space(0)) return too_long();
  // Between hosts a copy is in the receiver's memory only some time later.
  const bool copies = bytes == 0 || buffers.described(0) == nullptr ||
                      (bytes <= copy_limit() && !(far && is_reception()) &&
                       copied - copied_drained + bytes <= kMostCopied);
  if (!copies) return move_message(work, bytes, taken);
  return flights.empty() ? copy_message(work, bytes, taken) : Outcome::kStuck;
}

Vi::Outcome Vi::too_long() {
  if (!flights.empty()) return Outcome::kStuck;
  if (!write({.flags = MessageRecord::kTooLong}, nullptr)) return Outcome::kStuck;
  buffers.take();
  if (!is_reliable()) return end_send(0, 0);
  return fail_send(is_reception() ? VIP_STATUS_REMOTE_DESC_ERROR : VIP_STATUS_TRANSPORT_ERROR,
                   VIP_ERROR_CONN_LOST, VIP_ERROR_CONN_LOST);
}

// Puts a record, and what of the data goes with it, into the peer's ring. False: no room.
[[gnu::always_inline]] inline bool Vi::write(MessageRecord record, SegmentWalk* data) {
  const std::uint32_t bytes = data == nullptr ? 0 : record.length;
  const auto words = record.words(counting.posted, drained);
  const auto head = std::as_bytes(std::span(words));
  std::span<std::byte> first;
  if (bytes > 0) first = data->next(bytes);
  if (first.size() == bytes) {
    stuck = !stream->append(head, first).ok();
  } else if (auto room = stream->reserve(sizeof record + bytes); room.ok()) {
    std::memcpy(room->data(), head.data(), head.size());
    std::memcpy(room->data() + sizeof record, first.data(), first.size());
    data->gather(room->data() + sizeof record + first.size(), bytes - first.size());
    stream->commit(sizeof record + bytes);
  } else {
    stuck = true;
  }
  if (!stuck) copied += bytes;
  return !stuck;
}

// The record of the next buffer of a message.
[[gnu::always_inline]] inline MessageRecord Vi::next_record(const VIP_DESCRIPTOR& d,
                                                            std::uint64_t left,
                                                            std::uint32_t buffer) {
  MessageRecord record;
  record.length = static_cast<std::uint32_t>(std::min<std::uint64_t>(left, buffers.space(buffer)));
  if (record.length < left) {
    record.flags = MessageRecord::kContinues;
  } else if ((d.CS.Control & VIP_CONTROL_IMMEDIATE) != 0) {
    record.flags = MessageRecord::kImmediate;
    record.immediate = d.CS.ImmediateData;
  }
  return record;
}

[[gnu::always_inline]] inline Vi::Outcome Vi::copy_message(Work& work, std::uint64_t bytes,
                                                           std::uint32_t taken) {
  // All of it has room, or nothing is begun.
  if (taken > 1 && !stream->reserve(bytes + taken * kLine)) {
    stuck = true;
    return Outcome::kStuck;
  }
  SegmentWalk data(*work.descriptor, 0);
  for (std::uint64_t left = bytes; taken > 0; --taken) {
    MessageRecord record = next_record(*work.descriptor, left, 0);
    record.flags |= MessageRecord::kCopied;
    if (!write(record, &data)) return Outcome::kStuck;
    left -= record.length;
    buffers.take();
  }
  add(row->sent, 1);
  add(row->sent_bytes, bytes);
  return end_send(0, bytes);
}

Vi::Outcome Vi::move_message(Work& work, std::uint64_t bytes, std::uint32_t taken) {
  const VIP_DESCRIPTOR& d = *work.descriptor;
  Flight flight;
  std::vector<Move> moves;
  SegmentWalk data(d, 0);
  std::uint64_t left = bytes;
  for (std::uint32_t k = 0; k < taken; ++k) {
    const PeerBuffer* const buffer = buffers.described(k);
    if (buffer == nullptr) return fail_transfer(d, ESTALE);
    flight.records.push_back(next_record(d, left, k));
    std::uint64_t part = flight.records.back().length;
    left -= part;
    for (std::uint32_t i = 0; i < buffer->segments && part > 0; ++i) {
      Piece piece = buffer->pieces[i];
      if (piece.bytes == 0) continue;
      const auto remote = slot_memory(piece);
      if (!remote) return fail_transfer(d, ESTALE);
      flight.remotes.push_back(remote);
      while (piece.bytes > 0 && part > 0) {
        const auto local = data.next(std::min<std::uint64_t>(part, piece.bytes));
        moves.push_back({RdmaOp::kWrite, remote.get(), piece.offset, local.data(), local.size()});
        piece.offset += local.size();
        piece.bytes -= static_cast<std::uint32_t>(local.size());
        part -= local.size();
      }
    }
  }
  if (bytes >= kLong && flights.size() < kMostFlights) stream->nudge();
  const Outcome outcome = fly(std::move(flight), moves);
  if (outcome != Outcome::kUnderWay) return outcome;
  for (; taken > 0; --taken) buffers.take();
  add(row->moved, 1);
  return outcome;
}

Vi::Outcome Vi::start_rdma(Work& work, std::uint64_t bytes) {
  const VIP_DESCRIPTOR& d = *work.descriptor;
  const bool reads = (d.CS.Control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAREAD;
  const bool tells = (d.CS.Control & VIP_CONTROL_IMMEDIATE) != 0;
  if (tells && buffers.empty()) {
    look_for_buffers();
    if (!connected) return Outcome::kOver;
    if (buffers.empty()) return overrun(work);
  }
  const RdmaOp op = reads ? RdmaOp::kRead : RdmaOp::kWrite;
  const VIP_ADDRESS_SEGMENT& target = segment_of(d, 0).Remote;
  std::uint64_t offset = 0;
  const auto found = rdma_memory(target.Handle, op, target.Data.AddressBits, bytes, &offset);
  if (!found) return fail_transfer(d, found.error().err);
  const std::shared_ptr<RemoteAperture>& remote = *found;
  Flight flight;
  flight.remotes.push_back(remote);
  if (tells) {
    MessageRecord record = next_record(d, 0, 0);
    record.flags |= MessageRecord::kRdmaWrite;
    record.length = static_cast<std::uint32_t>(bytes);
    flight.records.push_back(record);
  }
  std::vector<Move> moves;
  SegmentWalk data(d, 1);
  for (std::uint64_t left = bytes; left > 0;) {
    const auto local = data.next(left);
    moves.push_back({op, remote.get(), offset, local.data(), local.size()});
    offset += local.size();
    left -= local.size();
  }
  if (moves.empty()) moves.push_back({op, remote.get(), offset, nullptr, 0});
  const Outcome outcome = fly(std::move(flight), moves);
  if (outcome != Outcome::kUnderWay) return outcome;
  if (tells) buffers.take();
  add(row->rdma, 1);
  add(row->rdma_bytes, bytes);
  return outcome;
}

Vi::Outcome Vi::fly(Flight flight, std::span<const Move> moves) {
  if (flights.size() >= kMostFlights) return Outcome::kStuck;
  flight.requests = static_cast<std::uint32_t>(moves.size());
  if (const Status s = provider()->bulk.post(*this, moves); !s) {
    if (s.error().err != EAGAIN) return fail_transfer(*sends.posted[started].descriptor, EIO);
    stuck = true;
    return Outcome::kStuck;
  }
  flights.push_back(std::move(flight));
  ++started;
  return Outcome::kUnderWay;
}

// --- what has been under way ---------------------------------------------------------------------

void Vi::land() {
  std::vector<int> statuses;
  provider()->bulk.take(*this, &statuses);
  std::size_t next = 0;
  for (const int status : statuses) {
    while (next < flights.size() && flights[next].requests == 0) ++next;
    if (next == flights.size()) return;  // not ours, which cannot be
    --flights[next].requests;
    if (flights[next].error == 0) flights[next].error = status;
  }
  while (!flights.empty() && flights.front().requests == 0) {
    if (!land_first()) return;
  }
}

// False: there is no room for its record.
bool Vi::land_first() {
  Flight& flight = flights.front();
  const VIP_DESCRIPTOR& d = *sends.posted[sends.completed].descriptor;
  std::uint64_t bytes = 0;
  (void)check_segments(d, first_segment(d), &bytes);
  while (connected && flight.error == 0 && flight.told < flight.records.size()) {
    if (!write(flight.records[flight.told], nullptr)) return false;
    ++flight.told;
  }
  const int error = flight.error;
  flights.pop_front();
  if (error != 0) {
    const Failure failure = failure_of(d, error);
    complete(sends, failure.status | op_of_send(d), 0);
    if (is_reliable())
      lose(failure.here, failure.there, sends.posted[sends.completed - 1].descriptor);
    return true;
  }
  if (row != nullptr && first_segment(d) == 0) {
    add(row->sent, 1);
    add(row->sent_bytes, bytes);
  }
  complete(sends, op_of_send(d), static_cast<std::uint32_t>(bytes));
  return true;
}

Vi::Failure Vi::failure_of(const VIP_DESCRIPTOR& d, int error) const {
  const std::uint32_t op = d.CS.Control & VIP_CONTROL_OP_MASK;
  if (op == VIP_CONTROL_OP_SENDRECV) {
    if (error == EFAULT) {
      return {VIP_STATUS_PROTECTION_ERROR, VIP_ERROR_POST_DESC, VIP_ERROR_CONN_LOST};
    }
    const bool remote = is_rights_error(error) && is_reception();
    const std::uint32_t status = remote ? VIP_STATUS_REMOTE_DESC_ERROR : VIP_STATUS_TRANSPORT_ERROR;
    return {status, VIP_ERROR_CONN_LOST, VIP_ERROR_CONN_LOST};
  }
  if (is_rights_error(error)) {
    const VIP_ERROR_CODE code =
        op == VIP_CONTROL_OP_RDMAREAD ? VIP_ERROR_RDMAR_PROT : VIP_ERROR_RDMAW_PROT;
    return {VIP_STATUS_RDMA_PROT_ERROR, code, code};
  }
  if (error == EFAULT) {
    return {VIP_STATUS_RDMA_PROT_ERROR, VIP_ERROR_RDMAW_DATA, VIP_ERROR_RDMAW_DATA};
  }
  return {VIP_STATUS_TRANSPORT_ERROR, VIP_ERROR_RDMA_TRANSPORT, VIP_ERROR_CONN_LOST};
}

Vi::Outcome Vi::fail_transfer(const VIP_DESCRIPTOR& d, int error) {
  const Failure failure = failure_of(d, error);
  return fail_send(failure.status, failure.here, failure.there);
}

// --- memory of the peer --------------------------------------------------------------------------

std::shared_ptr<RemoteAperture> Vi::slot_memory(const Piece& piece) {
  PeerSlot& slot = buffers.slots[piece.slot];
  // The cookie is the peer's word: only for memory of its own.
  if (!slot.remote && slot.cookie.node == peer_node) {
    auto made = RemoteAperture::import(provider()->context, slot.cookie);
    if (made) slot.remote = std::make_shared<RemoteAperture>(std::move(*made));
  }
  return slot.remote;
}

Result<std::shared_ptr<RemoteAperture>> Vi::rdma_memory(VIP_MEM_HANDLE handle, RdmaOp op,
                                                        std::uint64_t address, std::uint64_t bytes,
                                                        std::uint64_t* offset) {
  const Error refused{EACCES, "the peer has not allowed it"};
  if (op == RdmaOp::kRead ? !theirs.rdma_read : !theirs.rdma_write) return refused;
  auto known = peer_memory.find(handle);
  // Its rights may have changed.
  if (known != peer_memory.end() && !known->second.memory->check()) {
    peer_memory.erase(known);
    known = peer_memory.end();
  }
  if (known == peer_memory.end()) {
    Context& context = provider()->context;
    const auto named = RemoteAperture::look_up(context, peer_node, handle);
    if (!named && named.error().err != ENOENT) return named.error();  // it is gone
    if (!named || named->note_bytes != sizeof(PeerMemory::base)) {
      CLAN_DEBUG("VIA: RDMA refused: the peer has no memory %x for it", handle);
      return refused;
    }
    auto made = RemoteAperture::import(context, named->cookie);
    if (!made) return made.error();
    if (peer_memory.size() >= kMostPeerMemory) peer_memory.erase(peer_memory.begin());
    PeerMemory named_memory{0, named->cookie.rights,
                            std::make_shared<RemoteAperture>(std::move(*made))};
    std::memcpy(&named_memory.base, named->note.data(), sizeof named_memory.base);
    known = peer_memory.emplace(handle, std::move(named_memory)).first;
  }
  const PeerMemory& target = known->second;
  const std::uint64_t size = target.memory->size();
  *offset = address - target.base;
  const bool allowed =
      includes(target.rights, op == RdmaOp::kRead ? Rights::kRead : Rights::kWrite);
  if (!allowed || *offset > size || bytes > size - *offset) {
    CLAN_DEBUG("VIA: RDMA of %zu bytes at %zx refused: memory %x is %zx to %zx, rights %u", bytes,
               address, handle, target.base, target.base + size,
               static_cast<unsigned>(target.rights));
    return refused;
  }
  return target.memory;
}

}  // namespace clan::via
