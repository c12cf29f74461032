// What the peer of a VI may say, at any time, between calls of the program: records of its stream,
// whole or in part, in a connection that is being made or is made.
#include <clan/stream.h>
#include <vipl.h>

#include <cstdlib>
#include <cstring>
#include <optional>

#include "input.h"
#include "vi.h"

using namespace clan::via;

namespace {

struct World {
  VIP_NIC_HANDLE nic = nullptr;
  VIP_MEM_HANDLE handle = 0;
  std::byte* memory = static_cast<std::byte*>(std::aligned_alloc(64, 1 << 16));
  std::optional<clan::Listener> listener;

  World() {
    VIP_MEM_ATTRIBUTES attributes{nullptr, 1, 1};
    if (VipOpenNic("fuzz", &nic) != VIP_SUCCESS ||
        VipRegisterMem(nic, memory, 1 << 16, &attributes, &handle) != VIP_SUCCESS) {
      std::abort();
    }
    (void)VipErrorCallback(nic, nullptr, [](VIP_PVOID, VIP_ERROR_DESCRIPTOR*) {});
    auto made =
        clan::Listener::create(provider()->context, "via-fuzz-" + std::to_string(::getpid()));
    if (!made) std::abort();
    listener = std::move(*made);
  }
  clan::Stream pair(std::optional<clan::Stream>* theirs) {
    auto stream = clan::Stream::connect(provider()->context, listener->address(), 10'000);
    auto other = listener->accept(10'000);
    if (!stream || !other) std::abort();
    *theirs = std::move(*other);
    return std::move(*stream);
  }
  VIP_DESCRIPTOR* descriptor(unsigned i, std::uint32_t bytes, std::uint16_t control) {
    auto* d = reinterpret_cast<VIP_DESCRIPTOR*>(memory) + i % 64;
    std::memset(static_cast<void*>(d), 0, sizeof *d);
    d->CS.Control = control;
    d->CS.SegCount = 1;
    auto& segment = d->DS[0].Local;
    if (control != VIP_CONTROL_OP_SENDRECV) {
      d->CS.SegCount = 2;
      d->DS[0].Remote.Handle = bytes;
      d->DS[0].Remote.Data.AddressBits = bytes * 4096ul;
      d->DS[1].Local = {{0}, handle, bytes % 4096};
      d->DS[1].Local.Data.Address = memory + 8192;
      return d;
    }
    segment.Data.Address = memory + 8192;
    segment.Handle = handle;
    segment.Length = bytes % 32'768;
    return d;
  }
};

World& world() {
  static World w;
  return w;
}

template <typename Record>
Record some(clan::fuzz::Input& input, Kind kind) {
  auto record = input.take<Record>();
  if (input.byte() % 8 != 0) record.kind = kind;
  return record;
}

// A record, mostly of a kind that there is and of its size.
void say(clan::Stream& stream, clan::fuzz::Input& input, std::uint16_t* posted) {
  std::byte bytes[4096];
  std::size_t n = 0;
  const auto put = [&](const auto& record) {
    std::memcpy(bytes + n, &record, sizeof record);
    n += sizeof record;
  };
  switch (input.byte() % 5) {
    case 0: {
      auto region = some<RegionRecord>(input, Kind::kRegion);
      region.slot %= 8;
      if (input.byte() % 2 == 0) region.cookie.node = provider()->context.node();
      region.cookie.length %= 1 << 20;
      put(region);
      break;
    }
    case 1: {
      auto buffer = some<BufferRecord>(input, Kind::kBuffer);
      buffer.segments %= 20;
      if (input.byte() % 4 != 0) {
        buffer.drained = 0;
        buffer.posted = *posted = static_cast<std::uint16_t>(*posted + 1);
      }
      put(buffer);
      for (unsigned i = 0; i < buffer.segments; ++i) {
        put(Piece{input.number(64), static_cast<std::uint32_t>(input.number(64)),
                  input.byte() % 9u});
      }
      break;
    }
    case 2: {
      auto message = some<MessageRecord>(input, Kind::kMessage);
      if (input.byte() % 4 != 0) {
        message.drained = 0;
        message.posted = *posted = static_cast<std::uint16_t>(*posted + input.byte() % 3);
      }
      message.length %= 3000;
      put(message);
      if (input.byte() % 4 != 0) n += message.length;
      break;
    }
    case 3: put(some<FailureRecord>(input, Kind::kFailure)); break;
    default: {
      const auto any = input.bytes(1 + input.byte());
      if (any.empty()) return;
      std::memcpy(bytes, any.data(), n = any.size());
    }
  }
  if (input.byte() % 16 == 0) n = 1 + n / 2;
  if (auto room = stream.reserve(n); room.ok()) {
    std::memcpy(room->data(), bytes, n);
    stream.commit(n);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  World& w = world();
  clan::fuzz::Input input(data, size);
  const std::uint8_t first = input.byte();
  VIP_VI_ATTRIBUTES attributes{};
  attributes.ReliabilityLevel = static_cast<VIP_RELIABILITY_LEVEL>(1u << (first % 3));
  attributes.EnableRdmaWrite = 1;
  VIP_VI_HANDLE handle = nullptr;
  if (VipCreateVi(w.nic, &attributes, nullptr, nullptr, &handle) != VIP_SUCCESS) std::abort();
  VIP_CLAN_VI_OPTIONS options{};
  options.DeferSends = (first & 8) != 0;
  options.SplitMessages = (first & 16) != 0;
  options.StrictProtection = (first & 32) != 0;
  (void)VipClanSetVi(handle, &options);
  Vi& vi = *static_cast<Vi*>(handle);
  std::optional<clan::Stream> peer;
  {
    const Held held(vi);
    vi.begin(w.pair(&peer));
    WireAttributes theirs = vi.wire_attributes();
    theirs.splits = (first & 64) != 0;
    theirs.rdma_write = theirs.rdma_read = 1;
    if (!vi.meet(theirs)) std::abort();
    vi.connect();
  }
  std::uint16_t posted = 0;
  while (!input.empty()) {
    VIP_DESCRIPTOR* done = nullptr;
    const std::uint8_t what = input.byte();
    switch (what % 8) {
      case 0:
        (void)VipPostRecv(handle, w.descriptor(what / 8, input.take<std::uint16_t>(), 0), w.handle);
        break;
      case 1:
        (void)VipPostSend(handle, w.descriptor(what / 8, input.take<std::uint16_t>(), what / 8 % 3),
                          w.handle);
        break;
      case 2: (void)VipRecvDone(handle, &done); break;
      case 3: (void)VipSendDone(handle, &done); break;
      default: say(*peer, input, &posted);
    }
  }
  if (VipDisconnect(handle) != VIP_SUCCESS) std::abort();
  if (VipDestroyVi(handle) != VIP_SUCCESS) std::abort();
  return 0;
}
