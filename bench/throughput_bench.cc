// How many bytes, and how many small messages, go through one connection in a second? And what can
// one producer and one consumer do with an in-slot flag and no protocol (ring_bound), in slots of
// 64 bytes (payload up to 56) and of 128 (payload 64)?
//
// Bandwidth is a stream's; the message rate is a message endpoint's ("clan") and, for comparison, a
// stream's that is sent as many pieces ("clan, stream").
#include "benchmarks.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/kernel_transport.h"
#include "transports/loops.h"

namespace clan::bench {

namespace {

/// What two cores and shared memory allow when there is no protocol at all, for large messages: 16
/// slots of 64 KB, copied in and copied out.
struct BareBulkMemory {
  static constexpr std::uint64_t kSlots = 16;
  static constexpr std::size_t kSlotBytes = 65536;
  struct alignas(64) Flag {
    std::atomic<std::uint64_t> filled{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  std::array<Flag, kSlots> flags;
  alignas(64) std::atomic<std::uint64_t> head{0};
  alignas(4096) std::array<std::array<std::byte, kSlotBytes>, kSlots> data;
};

class BareBulkEnd {
 public:
  BareBulkEnd(BareBulkMemory* out, BareBulkMemory* in) : out_(out), in_(in) {}

  bool send(std::span<const std::byte> message) {
    while (!message.empty()) {
      const std::size_t n = std::min(message.size(), BareBulkMemory::kSlotBytes);
      Spinner spin;
      // PAIR bare.bulk.head: sees the slots recv gave back
      while (tail_ - out_->head.load(std::memory_order_acquire) == BareBulkMemory::kSlots) spin();
      const std::uint64_t i = tail_ % BareBulkMemory::kSlots;
      std::memcpy(out_->data[i].data(), message.data(), n);
      out_->flags[i].bytes.store(n, std::memory_order_relaxed);  // published with the flag
      // PAIR bare.bulk.flag: publishes the slot to recv
      out_->flags[i].filled.store(++tail_, std::memory_order_release);
      message = message.subspan(n);
    }
    return true;
  }
  bool recv(std::span<std::byte> message) {
    while (!message.empty()) {
      const std::uint64_t i = head_ % BareBulkMemory::kSlots;
      Spinner spin;
      // PAIR bare.bulk.flag: sees the slot send filled
      while (in_->flags[i].filled.load(std::memory_order_acquire) != head_ + 1) spin();
      const std::size_t n = in_->flags[i].bytes.load(std::memory_order_relaxed);
      if (n > message.size()) return false;
      std::memcpy(message.data(), in_->data[i].data(), n);
      // PAIR bare.bulk.head: publishes the emptied slot to send
      in_->head.store(++head_, std::memory_order_release);
      message = message.subspan(n);
    }
    return true;
  }

 private:
  BareBulkMemory* out_;
  BareBulkMemory* in_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;
};

class BareBulk : public BareDirections<BareBulkMemory> {
 public:
  std::string name() const { return "bare"; }
  std::string prepare(std::size_t) { return make(); }
  std::optional<BareBulkEnd> open(Side side) { return BareBulkEnd(out(side), in(side)); }
};

template <std::size_t kSlot, std::size_t kPayload>
BareRing<kSlot, kPayload> ring() {
  return {};
}
/// With the producer prefetching slots for writing.
template <std::size_t kSlot, std::size_t kPayload>
BareRing<kSlot, kPayload, kPrefetchAhead> ring_ahead() {
  return {};
}

template <std::size_t kSlot, std::size_t kPayload>
void measure_bound(Context& context) {
  const auto group = context.across_cores();
  const auto trip = [&](auto make) {
    return round_trip_variant("ring_bound_latency", make, kPayload, group);
  };
  const auto rate = [&](auto make) {
    return one_way_variant("ring_bound_rate", make, kPayload, Figure::kMessageRate, group);
  };
  context.point({trip(ring<kSlot, kPayload>), trip(ring_ahead<kSlot, kPayload>)});
  context.point({rate(ring<kSlot, kPayload>), rate(ring_ahead<kSlot, kPayload>)});
}

template <std::size_t kSlot, std::size_t kPayload>
void measure_rate(Context& context) {
  const auto variant = [&](auto make) {
    return one_way_variant("message_rate", make, kPayload, Figure::kMessageRate,
                           context.across_cores());
  };
  const auto stream = [] { return ClanStream(WaitMode::kAdaptive, "clan, stream"); };
  context.point({variant(ring<kSlot, kPayload>), variant(ring_ahead<kSlot, kPayload>),
                 variant(clan_messages(WaitMode::kAdaptive)), variant(stream),
                 variant(kernel(Family::kTcp, Wait::kBlock)),
                 variant(kernel(Family::kUnixStream, Wait::kBlock)),
                 variant(kernel(Family::kUnixSeqpacket, Wait::kBlock))});
}

}  // namespace

void ring_bound(Context& context) {
  measure_bound<64, 8>(context);
  measure_bound<64, 48>(context);
  measure_bound<128, 64>(context);
}

void bandwidth(Context& context) {
  for (std::size_t bytes : context.sizes({64, 256, 1024, 4096, 16384, 65536, 262144, 1048576},
                                         {65536, 1048576}, {4096})) {
    const auto variant = [&](auto make) {
      return one_way_variant("bandwidth", make, bytes, Figure::kBandwidth, context.across_cores());
    };
    context.point({variant([] { return BareBulk(); }), variant(clan_stream(WaitMode::kPoll)),
                   variant(clan_stream(WaitMode::kAdaptive)),
                   variant(kernel(Family::kTcp, Wait::kBlock)),
                   variant(kernel(Family::kTcp, Wait::kPoll)),
                   variant(kernel(Family::kUnixStream, Wait::kBlock)),
                   variant(kernel(Family::kUnixStream, Wait::kPoll))});
  }
}

void message_rate(Context& context) {
  measure_rate<64, 8>(context);
  measure_rate<128, 64>(context);
}

}  // namespace clan::bench
