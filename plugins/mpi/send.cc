// Sending: fragments, and the way of a message into its receiver's channel.
#include <clan/detail/clock.h>

#include <algorithm>
#include <cstring>

#include "component.h"

namespace clan::mpi {

namespace {

/// at once: smaller pieces cost more than they bring
constexpr std::size_t kAnnouncedBytes = 2048;

/// To a receiver that waits on a processor far away: it has most of the record in its caches when
/// that is complete.
void copy_announced(ChannelSender& sender, std::byte* to, const std::byte* from,
                    std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kAnnouncedBytes) {
    const std::size_t more = std::min(bytes - at, kAnnouncedBytes);
    std::memcpy(to + at, from + at, more);
    if (at + more < bytes) sender.announce(at + more);
  }
}

/// Into what has been reserved, behind a header; the long ones timed.
void copy_in(Endpoint& endpoint, std::byte* to, const void* from, std::size_t bytes) {
  if (bytes < kTimedBytes) {
    std::memcpy(to, from, bytes);
    return;
  }
  const bool far = endpoint.far;
  const std::uint64_t start = monotonic_ns();
  if (far && endpoint.sender.drained()) {
    copy_announced(endpoint.sender, to, static_cast<const std::byte*>(from), bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
  // A pause of the thread is not the copy's.
  const std::uint64_t ps =
      std::min<std::uint64_t>((monotonic_ns() - start) * 1000 / bytes, 4 * kFarPs);
  endpoint.copy_ps = static_cast<std::uint32_t>((7 * std::uint64_t{endpoint.copy_ps} + ps) / 8);
  endpoint.far = endpoint.copy_ps >= (far ? kNearPs : kFarPs);
  endpoint.sender.set_far(endpoint.far);
}

/// Puts it into the channel; false: there is no room. Under the endpoint's lock.
bool write(Endpoint& endpoint, Fragment& fragment) {
  const mca_btl_base_segment_t& head = fragment.segments[0];
  const mca_btl_base_segment_t& rest = fragment.segments[1];
  const std::size_t more = fragment.base.des_segment_count > 1 ? rest.seg_len : 0;
  const std::size_t all = head.seg_len + more;
  ChannelSender& sender = endpoint.sender;
  if (all > kInlineBytes || !sender.send_inline(fragment.tag, head.seg_addr.pval, head.seg_len,
                                                rest.seg_addr.pval, more)) {
    std::byte* room = sender.reserve(head.seg_len, more);
    if (room == nullptr) return false;
    std::memcpy(room, head.seg_addr.pval, head.seg_len);
    if (more > 0) copy_in(endpoint, room + head.seg_len, rest.seg_addr.pval, more);
    sender.commit(fragment.tag, all);
  }
  count_record(*endpoint.counters, all);
  return true;
}

/// The message as the convertor has it, all of it, into the channel. Under the endpoint's lock.
bool send_now(Endpoint& endpoint, opal_convertor_t* convertor, const void* header,
              std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t tag) {
  ChannelSender& sender = endpoint.sender;
  const std::size_t all = header_bytes + payload_bytes;
  const bool packs = payload_bytes != 0 && opal_convertor_need_buffers(convertor) != 0;
  void* data = nullptr;
  if (payload_bytes != 0 && !packs) opal_convertor_get_current_pointer(convertor, &data);
  if (all <= kInlineBytes && !packs &&
      sender.send_inline(tag, header, header_bytes, data, payload_bytes)) [[likely]] {
    return true;
  }
  std::byte* room = sender.reserve(header_bytes, payload_bytes);
  if (room == nullptr) return false;
  copy_short(room, header, header_bytes);
  if (packs) {
    iovec vector{room + header_bytes, payload_bytes};
    std::uint32_t vectors = 1;
    std::size_t packed = payload_bytes;
    (void)opal_convertor_pack(convertor, &vector, &vectors, &packed);
    if (packed != payload_bytes) return false;  // nothing has been committed
  } else if (payload_bytes != 0) {
    copy_in(endpoint, room + header_bytes, data, payload_bytes);
  }
  sender.commit(tag, all);
  return true;
}

}  // namespace

mca_btl_base_descriptor_t* alloc(mca_btl_base_module_t*, Endpoint* endpoint, std::uint8_t order,
                                 std::size_t size, std::uint32_t flags) {
  Fragment* fragment = take_fragment(endpoint, size, order, flags);
  return fragment == nullptr ? nullptr : &fragment->base;
}

int free_fragment(mca_btl_base_module_t*, mca_btl_base_descriptor_t* descriptor) {
  give_back(reinterpret_cast<Fragment*>(descriptor));
  return OPAL_SUCCESS;
}

mca_btl_base_descriptor_t* prepare_src(mca_btl_base_module_t*, Endpoint* endpoint,
                                       opal_convertor_t* convertor, std::uint8_t order,
                                       std::size_t reserve, std::size_t* size,
                                       std::uint32_t flags) {
  if (endpoint->pending.size >= kMostPending) return nullptr;
  return pack_fragment(g_module, endpoint, convertor, order, reserve, size, flags);
}

int send(mca_btl_base_module_t*, Endpoint* endpoint, mca_btl_base_descriptor_t* descriptor,
         mca_btl_base_tag_t tag) {
  auto* fragment = reinterpret_cast<Fragment*>(descriptor);
  fragment->tag = tag;
  fragment->endpoint = endpoint;
  {
    std::lock_guard lock(endpoint->lock);
    if (endpoint->pending.first != nullptr || !write(*endpoint, *fragment)) {
      if (endpoint->pending.first == nullptr) {
        // relaxed: a hint for progress()
        g_node->with_pending.fetch_add(1, std::memory_order_relaxed);
      }
      g_node->page->queued.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
      endpoint->pending.push(fragment);
      return OPAL_SUCCESS;
    }
  }
  complete(g_module, fragment, (fragment->base.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK) != 0);
  return 1;
}

int sendi(mca_btl_base_module_t* module, Endpoint* endpoint, opal_convertor_t* convertor,
          void* header, std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t order,
          std::uint32_t flags, mca_btl_base_tag_t tag, mca_btl_base_descriptor_t** descriptor) {
  {
    std::lock_guard lock(endpoint->lock);
    if (endpoint->pending.first == nullptr) [[likely]] {
      if (send_now(*endpoint, convertor, header, header_bytes, payload_bytes, tag)) [[likely]] {
        count_record(*endpoint->counters, header_bytes + payload_bytes);
        return OPAL_SUCCESS;
      }
    }
  }
  if (descriptor == nullptr) return OPAL_ERR_OUT_OF_RESOURCE;
  // Open MPI looks again at what it keeps itself when one of our fragments is complete: there are
  // some as long as we refuse.
  const bool full = endpoint->pending.size >= kMostPending;
  *descriptor =
      full ? nullptr : alloc(module, endpoint, order, header_bytes + payload_bytes, flags);
  return OPAL_ERR_OUT_OF_RESOURCE;
}

namespace {

int flush_endpoint(Node& node, Endpoint& endpoint) {
  for (int gone = 0;; ++gone) {
    Fragment* fragment = nullptr;
    {
      std::lock_guard lock(endpoint.lock);
      if (endpoint.pending.first == nullptr || !write(endpoint, *endpoint.pending.first))
        return gone;
      fragment = endpoint.pending.pop();
      if (endpoint.pending.first == nullptr)
        node.with_pending.fetch_sub(1, std::memory_order_relaxed);
    }
    complete(g_module, fragment, true);
  }
}

}  // namespace

void flush_last(Node& node, Endpoint& endpoint, std::uint64_t until_ns) {
  const auto left = [&] {
    std::lock_guard lock(endpoint.lock);
    return endpoint.pending.size;
  };
  while (left() != 0 && endpoint.remote.check().ok() && !endpoint.remote.leaving() &&
         monotonic_ns() < until_ns) {
    if (flush_endpoint(node, endpoint) == 0) sched_yield();
  }
  std::lock_guard lock(endpoint.lock);
  if (endpoint.pending.first == nullptr) return;
  log(1, "rank %u has not taken the last %zu fragments", static_cast<unsigned>(endpoint.name.vpid),
      endpoint.pending.size);
  endpoint.pending = {};  // their memory is the lists'
  node.with_pending.fetch_sub(1, std::memory_order_relaxed);
}

int flush_pending(Node& node) {
  if (node.with_pending.load(std::memory_order_relaxed) == 0) return 0;  // relaxed: a hint
  std::vector<Endpoint*> waiting;
  {
    std::unique_lock lock(node.endpoints_mutex, std::try_to_lock);
    if (!lock) return 0;
    for (auto& [name, endpoint] : node.endpoints) {
      if (endpoint->pending.first != nullptr) waiting.push_back(endpoint.get());
    }
  }
  int gone = 0;
  for (Endpoint* endpoint : waiting) gone += flush_endpoint(node, *endpoint);
  return gone;
}

}  // namespace clan::mpi
