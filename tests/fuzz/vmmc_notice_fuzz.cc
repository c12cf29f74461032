// What an importer may say to the exporter's bell, at any time: notifications, whole or in part, of
// buffers that come and go, in each state; while it writes into their memory.
#include <vmmc.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "input.h"
#include "objects.h"

namespace {

using clan::vmmc::NoticeRecord;

constexpr std::size_t kBytes = 4096;

struct World {
  vmmc_t* v = nullptr;
  std::optional<clan::MessageEndpoint> liar;
  clan::PeerIndex bell = 0;
  std::byte* memory = nullptr;

  World() {
    if (vmmc_open(VMMC_HANDLERS_IN_POLL, &v) != 0) std::abort();
    memory = static_cast<std::byte*>(vmmc_alloc(v, kBytes));
    auto made = clan::MessageEndpoint::create(v->context);
    if (!made) std::abort();
    liar = std::move(*made);
    auto peer = liar->connect(v->arrivals.address(), 10'000);
    if (!peer) std::abort();
    bell = *peer;
  }
};

World& world() {
  static World w;
  return w;
}

// Each byte that a notification names is the buffer's.
void handle(vmmc_buffer_t*, const vmmc_notification_t* what, void*) {
  const auto* data = static_cast<const unsigned char*>(what->address);
  unsigned sum = 0;
  for (std::uint64_t i = 0; i < what->size; ++i) sum += data[i];
  if (what->size > kBytes || sum == ~0u) std::abort();
}

void say(World& w, clan::fuzz::Input& input, vmmc_buffer_t* buffer) {
  std::vector<std::byte> bytes(sizeof(NoticeRecord));
  NoticeRecord record{input.number(64), input.number(64), input.number(64)};
  if (input.byte() % 4 != 0 && buffer != nullptr) record.key = buffer->aperture->cookie().key;
  if (input.byte() % 2 != 0) record.offset %= kBytes + 1;
  if (input.byte() % 2 != 0) record.bytes %= kBytes + 1;
  std::memcpy(bytes.data(), &record, sizeof record);
  if (input.byte() % 8 == 0) bytes.resize(input.byte());
  (void)w.liar->try_send(w.bell, bytes, {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World& w = world();
  clan::fuzz::Input input(data, size);
  vmmc_buffer_t* buffer = nullptr;
  std::vector<std::byte> place(kBytes);
  while (!input.empty()) {
    const std::uint8_t what = input.byte();
    if (buffer == nullptr &&
        vmmc_export(w.v, nullptr, w.memory, kBytes, nullptr, handle, nullptr, &buffer) != 0) {
      std::abort();
    }
    switch (what % 8) {
      case 0: (void)vmmc_notifications(buffer, what / 8 % 3); break;
      case 1: (void)(what / 8 % 2 == 0 ? vmmc_block(w.v) : vmmc_unblock(w.v)); break;
      case 2: (void)vmmc_redirect(buffer, place.data(), what * 16u); break;
      case 3:
        if (vmmc_unexport(std::exchange(buffer, nullptr)) != 0) std::abort();
        break;
      case 4: (void)vmmc_suspend(buffer, 0); break;
      case 5: (void)vmmc_poll(w.v); break;
      default: say(w, input, buffer);
    }
  }
  (void)vmmc_unblock(w.v);
  (void)vmmc_poll(w.v);
  if (buffer != nullptr && vmmc_unexport(buffer) != 0) std::abort();
  if (w.v->buffers.size() != 0) std::abort();
  return 0;
}
