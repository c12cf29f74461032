// What has arrived: into the descriptor, or into free buffers; dropped and counted where there are
// none.
#include "endpoint.h"

namespace clan::unet::library {

void Endpoint::push(const unet_receive& d) {
  receives[receives_added_ & (receive_entries - 1)] = d;
  publish(indices->receive_added, ++receives_added_);
  if (armed_ && own_fd_ >= 0) wake();
}

// A buffer that could not be used, or was not enough.
void Endpoint::give_back(std::uint64_t buffer, int status) {
  unet_receive d{};
  d.status = status;
  d.buffers = 1;
  d.u.buffer[0] = buffer;
  count(row_->returned);
  push(d);
}

void Endpoint::deliver(const Channel& channel, std::span<const std::byte> message) {
  if (places() == 0) [[unlikely]]
    return count(row_->dropped_queue);
  std::array<std::uint64_t, UNET_BUFFERS> filled;
  std::uint16_t buffers = 0;
  if (message.size() > UNET_INLINE && !fill_buffers(message, filled, buffers)) return;
  unet_receive& d = receives[receives_added_ & (receive_entries - 1)];
  if (buffers == 0) {
    copy_short(reinterpret_cast<std::byte*>(d.u.data), message.data(), message.size());
  } else {  // one by one: a wider load would wait for the stores
    for (unsigned i = 0; i < buffers; ++i) d.u.buffer[i] = filled[i];
  }
  d.buffers = buffers;
  d.tag = channel.tag;
  d.bytes = static_cast<std::uint32_t>(message.size());
  d.status = 0;
  d.flags = 0;
  finish(d.bytes);
}

// The descriptor is written.
void Endpoint::finish(std::uint32_t bytes) {
  publish(indices->receive_added, ++receives_added_);
  if (armed_ && own_fd_ >= 0) wake();
  count(row_->received);
  count(row_->received_bytes, bytes);
}

// Every buffer that is taken comes back to the program: with the message, or by itself. So each
// needs a place in the receive queue until the message has all it needs.
bool Endpoint::fill_buffers(std::span<const std::byte> message,
                            std::array<std::uint64_t, UNET_BUFFERS>& filled, std::uint16_t& n) {
  const std::uint32_t given = added(indices->free_added) - frees_taken_;
  const std::uint64_t most = std::uint64_t{buffer_bytes} * std::min(given, UNET_BUFFERS);
  if (message.size() > most || given > free_entries) {
    count(row_->dropped_buffer);
    return false;
  }
  while (!message.empty() && frees_taken_ != added(indices->free_added) && places() > n) {
    const std::uint64_t buffer = frees[frees_taken_ & (free_entries - 1)];
    publish(indices->free_taken, ++frees_taken_);
    const std::size_t bytes = std::min<std::size_t>(buffer_bytes, message.size());
    if (const int error = store(buffer, message.data(), bytes); error != 0) {
      give_back(buffer, error);
    } else {
      filled[n++] = buffer;
      message = message.subspan(bytes);
    }
  }
  if (message.empty()) return true;
  count(places() > n ? row_->dropped_buffer : row_->dropped_queue);
  for (unsigned i = 0; i < n; ++i) give_back(filled[i], ENOBUFS);
  return false;
}

// False: no such area has been shown to peers.
bool Endpoint::deliver_direct(const Channel& channel, std::uint64_t offset, std::uint32_t bytes) {
  if (!aperture_ || offset > area_bytes || bytes > area_bytes - offset) return false;
  if (places() == 0) {
    count(row_->dropped_queue);
    return true;
  }
  unet_receive d{};
  d.tag = channel.tag;
  d.bytes = bytes;
  d.flags = UNET_DIRECT;
  d.buffers = 1;
  d.u.buffer[0] = offset;
  receives[receives_added_ & (receive_entries - 1)] = d;
  finish(bytes);
  return true;
}

}  // namespace clan::unet::library
