// Fuzzes the consumer and the producer of a ring: the input is what a hostile peer has written into
// the ring's memory and into the credit word. Whatever it is, no byte outside the ring may be
// touched and no record may be larger than the ring allows.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "shm/ring.h"

namespace {

constexpr std::uint64_t kLines = 32;

void consume(std::byte* memory) {
  const clan::shm::RecordRing ring{kLines};
  clan::shm::RingConsumer consumer;
  for (int i = 0; i < 256; ++i) {
    clan::shm::RingRecord record;
    if (ring.peek(consumer, memory, &record) <= 0) return;
    const std::byte* end = record.payload + record.head.length();
    if (record.payload < memory || end > memory + kLines * 64) std::abort();
    if (record.head.length() > ring.max_payload()) std::abort();
    consumer.head += record.lines;
  }
}

void produce(const std::uint8_t* data, std::size_t size, std::byte* memory) {
  const clan::shm::RecordRing ring{kLines};
  clan::shm::RingProducer producer;
  std::uint64_t trusted = 0;  // what we would know if the peer were honest
  for (std::size_t i = 0; i + 9 <= size; i += 9) {
    std::uint64_t credit;
    std::memcpy(&credit, data + i + 1, sizeof credit);
    if ((data[i] & 1) != 0) credit = trusted;
    clan::shm::RingSlot slot;
    const std::uint64_t payload = data[i] * 2u;
    const int rc = ring.reserve(
        producer, payload, kLines, [&] { return credit; }, &slot);
    if (rc < 0) return;
    if (rc == 0) continue;
    std::byte* room = ring.payload_at(memory, slot);
    if (room < memory || room + payload > memory + kLines * 64) std::abort();
    std::memset(room, 0xab, payload);
    ring.publish(memory, slot,
                 clan::shm::RingHead::make(static_cast<std::uint32_t>(payload), 1, 0));
    ring.advance(producer, slot, kLines);
    trusted = producer.tail;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // An allocation of exactly the ring: AddressSanitizer sees every step beyond it.
  std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, kLines * 64)), std::free);
  std::memset(memory.get(), 0, kLines * 64);
  std::memcpy(memory.get(), data, size < kLines * 64 ? size : kLines * 64);
  consume(memory.get());
  produce(data, size, memory.get());
  return 0;
}
