// Virtual memory-mapped communication over CLAN (plugins/vmmc), beside what it is built of and
// beside the kernel; figure 1 of shrimp-client-server.
//
// vmmc_latency    round trips, polling, with one copy at the receiver
// vmmc_send       how fast a long deliberate update gets away; beside RdmaQueue alone
// vmmc_flush      a mirror of 1,024 pages of which some have been stored into; beside the scan,
//                 memcmp and memcpy of these pages
// vmmc_interval   what a mirror with an interval of 1 ms takes of a core when one page of it is
//                 stored into once a ms
// vmmc_wakeup     from a notification until its handler has run in a process that sleeps
#include <clan/rdma.h>
#include <vmmc.h>

#include "benchmarks.h"
#include "dirty_pages.h"
#include "support/cpu_time.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/loops.h"
#include "transports/wakeup.h"

namespace clan::bench {
namespace {

/// An open VMMC with a buffer of its own, and the peer's.
class VmmcPair {
 public:
  /// `name` is that of both.
  VmmcPair(const std::string& name, Side side, std::size_t bytes, unsigned flags = 0,
           vmmc_handler_t handler = nullptr, bool mapped = true)
      : own_(mapped ? 0 : bytes) {
    const bool client = side == Side::kClient;
    const std::string own = name + (client ? "c" : "s"), peer = name + (client ? "s" : "c");
    if (vmmc_open(flags, &v) != 0) return;
    memory = mapped ? static_cast<std::byte*>(vmmc_alloc(v, bytes)) : own_.data();
    if (vmmc_export(v, own.c_str(), memory, bytes, nullptr, handler, nullptr, &buffer) != 0) return;
    int rc = -ENOENT;
    while (rc == -ENOENT) rc = vmmc_import(v, nullptr, peer.c_str(), 10'000, &remote);
    ready = rc == 0;
  }
  bool ready = false;
  vmmc_t* v = nullptr;
  std::byte* memory = nullptr;
  vmmc_buffer_t* buffer = nullptr;
  vmmc_remote_t* remote = nullptr;

 private:
  std::vector<std::byte> own_;
};

enum class VmmcWay { kDeliberate, kAlias };

/// Each end exports a buffer that the other one writes. A message is its bytes and, in the word
/// before them, its number; one of up to 56 bytes is one line. What has come is copied out.
class VmmcEnd {
 public:
  VmmcEnd(const std::string& name, Side side, std::size_t bytes, VmmcWay way)
      : pair_(name, side, bytes + 64), copy_(64) {
    if (!pair_.ready || way == VmmcWay::kDeliberate) return;
    pair_.ready = vmmc_bind(pair_.remote, 0, nullptr, bytes + 64, VMMC_ALIAS, 0, &alias_) == 0;
    if (pair_.ready) out_ = static_cast<std::byte*>(vmmc_bound(alias_));
  }
  bool ready() const { return pair_.ready; }

  bool send(std::span<const std::byte> message) {
    ++sent_;
    if (out_ != nullptr) {
      std::memcpy(out_ + kWord, message.data(), message.size());
      word(out_).store(sent_, std::memory_order_release);  // PAIR bench.vmmc: to recv()
      return true;
    }
    if (message.size() == kWord) {  // both in one store of 16 bytes
      std::memcpy(copy_.data(), &sent_, kWord);
      std::memcpy(copy_.data() + kWord, message.data(), kWord);
      return vmmc_send(pair_.remote, 0, copy_.data(), 2 * kWord, 0) == 0;
    }
    return vmmc_send(pair_.remote, kWord, message.data(), message.size(), 0) == 0 &&
           vmmc_put_word(pair_.remote, 0, sent_) == 0;
  }
  bool recv(std::span<std::byte> message) {
    ++received_;
    Spinner spin;
    // PAIR bench.vmmc: sees the message
    while (word(pair_.memory).load(std::memory_order_acquire) != received_) spin();
    std::memcpy(message.data(), pair_.memory + kWord, message.size());
    return true;
  }

 private:
  static constexpr std::size_t kWord = 8;
  static std::atomic<std::uint64_t>& word(std::byte* at) {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(at);
  }
  VmmcPair pair_;
  vmmc_binding_t* alias_ = nullptr;
  std::byte* out_ = nullptr;
  std::vector<std::byte> copy_;
  std::uint64_t sent_ = 0, received_ = 0;
};

class VmmcTransport : public Named {
 public:
  explicit VmmcTransport(VmmcWay way) : way_(way) {}
  std::string name() const { return way_ == VmmcWay::kAlias ? "vmmc, alias" : "vmmc"; }
  std::optional<VmmcEnd> open(Side side) {
    VmmcEnd end(name_, side, bytes_, way_);
    if (!end.ready()) return std::nullopt;
    return end;
  }

 private:
  VmmcWay way_;
};

constexpr std::size_t kPage = 4096, kPages = 1024;

/// Member 0 runs `measure(m, pair)` for each sample; member 1 is its target and takes no part. Its
/// cookie is in the scratch memory.
template <typename Measure>
std::optional<Row> measure_at_client(Context& context, const char* benchmark,
                                     const std::string& variant, double x, const char* unit,
                                     std::size_t bytes, bool mapped, bool required,
                                     Measure measure) {
  const std::string name = unique_name();
  const auto outcome = context.run(
      benchmark, variant, "", context.across_cores(),
      [&](Member& m) {
        VmmcPair pair(name, m.side(), bytes, 0, nullptr, mapped);
        if (!pair.ready) return m.fail("cannot open VMMC");
        if (m.index() == 1)
          (void)vmmc_cookie(pair.buffer, reinterpret_cast<unsigned char*>(m.scratch()));
        m.barrier();
        return measure(m, pair);
      },
      required);
  if (!outcome) return std::nullopt;
  return make_row(benchmark, variant, x, unit, *outcome);
}

template <typename Send>
bool time_sends(Member& m, std::size_t bytes, Send send) {
  const std::vector<std::byte> data(bytes, std::byte{0x5a});
  while (m.next_sample()) {
    for (int i = m.options().smoke ? 198 : 0; m.index() == 0 && i < 200; ++i) {
      const std::uint64_t begin = Clock::now();
      if (!send(data)) return m.fail("a send has failed");
      m.record(static_cast<double>(bytes) / Clock::ns_since(begin));
    }
  }
  return true;
}

bool send_by_vmmc(Member& m, VmmcPair& pair, std::size_t bytes) {
  return time_sends(m, bytes, [&](const std::vector<std::byte>& data) {
    return vmmc_send(pair.remote, 0, data.data(), bytes, 0) == 0;
  });
}

bool send_by_rdma(Member& m, VmmcPair&, std::size_t bytes) {
  auto own = make_context(WaitMode::kAdaptive);
  auto queue = RdmaQueue::create(*own);
  auto remote = RemoteAperture::import(*own, *reinterpret_cast<const RdmaCookie*>(m.scratch()));
  if (m.index() == 0 && (!queue || !remote)) return m.fail("cannot set up RDMA");
  return time_sends(m, bytes, [&](const std::vector<std::byte>& data) {
    std::array<RdmaCompletion, 1> done;
    return queue->write(*remote, 0, data.data(), bytes).ok() && queue->wait(done).ok() &&
           done[0].status == 0;
  });
}

template <typename Send>
Context::Variant send_variant(const char* name, Send send, bool mapped, std::size_t bytes) {
  return [=](Context& context) {
    const auto x = static_cast<double>(bytes);
    auto row = measure_at_client(
        context, "vmmc_send", std::string(name) + (mapped ? ", mapped" : ""), x, "GB/s", bytes,
        mapped, true, [&](Member& m, VmmcPair& pair) { return send(m, pair, bytes); });
    if (!row) return row;
    row->higher_is_better = true;
    row->op_ns = x / row->stats.p50;
    return row;
  };
}

// --- mirrors -------------------------------------------------------------------------------------

/// One word in each of so many pages.
void dirty(std::byte* memory, std::size_t pages) {
  static std::uint64_t number = 0;
  for (std::size_t i = 0; i < pages; ++i) {
    ++number;
    std::memcpy(memory + i * (kPages / pages) * kPage + kPage - 8, &number, sizeof number);
  }
}

template <typename Flush>
bool time_flushes(Member& m, std::byte* memory, std::size_t pages, Flush flush) {
  while (m.next_sample()) {
    for (int i = m.options().smoke ? 98 : 0; m.index() == 0 && i < 100; ++i) {
      dirty(memory, pages);
      const std::uint64_t begin = Clock::now();
      if (!flush()) return m.fail("a flush has failed");
      m.record(Clock::ns_since(begin));
    }
  }
  return true;
}

bool flush_by_vmmc(Member& m, VmmcPair& pair, std::size_t pages) {
  vmmc_binding_t* binding = nullptr;
  if (vmmc_bind(pair.remote, 0, nullptr, kPages * kPage, VMMC_MIRROR, 0, &binding) != 0)
    return m.fail("cannot bind");
  if (vmmc_compares(binding) != 0) return m.fail("the kernel does not tell written pages");
  auto* const memory = static_cast<std::byte*>(vmmc_bound(binding));
  std::memset(static_cast<void*>(memory), 1, kPages * kPage);
  (void)vmmc_flush(binding);
  return time_flushes(m, memory, pages, [&] { return vmmc_flush(binding) == 0; });
}

bool flush_by_hand(Member& m, VmmcPair& pair, std::size_t pages) {
  vmmc_binding_t* alias = nullptr;
  if (vmmc_bind(pair.remote, 0, nullptr, kPages * kPage, VMMC_ALIAS, 0, &alias) != 0)
    return m.fail("cannot bind");
  auto* const there = static_cast<std::byte*>(vmmc_bound(alias));
  const auto memory = std::make_unique<std::byte[]>((kPages + 1) * kPage);
  std::byte* const first =
      memory.get() + kPage - reinterpret_cast<std::uintptr_t>(memory.get()) % kPage;
  const auto twin = std::make_unique<std::byte[]>(kPages * kPage);
  vmmc::DirtyPages written(first, kPages * kPage);
  int differ = 0;
  return time_flushes(m, first, pages, [&] {
    return written
        .scan([&](std::size_t offset, std::size_t bytes) {
          for (const std::size_t end = offset + bytes; offset < end; offset += kPage) {
            differ += std::memcmp(first + offset, twin.get() + offset, kPage) != 0;
            std::memcpy(there + offset, first + offset, kPage);
          }
          return Status();
        })
        .ok();
  });
}

template <typename Flush>
Context::Variant flush_variant(const char* name, Flush flush, std::size_t pages) {
  return [=](Context& context) {
    auto row = measure_at_client(context, "vmmc_flush", name, static_cast<double>(pages), "ns",
                                 kPages * kPage, true, false,
                                 [&](Member& m, VmmcPair& pair) { return flush(m, pair, pages); });
    if (row) row->x_name = "written pages";
    return row;
  };
}

bool store_each_ms(Member& m, VmmcPair& pair, bool bound) {
  vmmc_binding_t* binding = nullptr;
  if (vmmc_bind(pair.remote, 0, nullptr, kPages * kPage, bound ? VMMC_MIRROR : VMMC_STORE, 1,
                &binding) != 0) {
    return m.fail("cannot bind");
  }
  auto* const memory = static_cast<std::byte*>(vmmc_bound(binding));
  while (m.next_sample()) {
    const int count = m.options().smoke ? 5 : 200;
    const double begin = cpu_ns();
    for (int i = 0; m.index() == 0 && i < count; ++i) {
      dirty(memory, 1);
      const timespec ms{0, 1'000'000};
      nanosleep(&ms, nullptr);
    }
    if (m.index() == 0) m.record((cpu_ns() - begin) / (count * 1e6) * 100);
  }
  return true;
}

Context::Variant interval_variant(const char* name, bool bound) {
  return [=](Context& context) {
    auto row = measure_at_client(
        context, "vmmc_interval", name, 1, "% of a core", kPages * kPage, true, true,
        [&](Member& m, VmmcPair& pair) { return store_each_ms(m, pair, bound); });
    if (!row) return row;
    row->x_name = "pages a ms";
    row->op_ns = 0;
    return row;
  };
}

// --- notifications -------------------------------------------------------------------------------

/// The sleeper suspends itself until its handler has run.
class NotifiedSleeper : public Named {
 public:
  std::string name() const { return "vmmc"; }
  std::string prepare() { return Named::prepare(kPage); }
  bool open(Side side) {
    pair_.emplace(name_, side, kPage, VMMC_HANDLERS_IN_POLL, [](auto*, auto*, void*) {});
    return pair_->ready;
  }
  bool sleep() { return vmmc_suspend(pair_->buffer, -1) == 0; }
  bool ring() {
    const std::uint64_t word = 1;
    return vmmc_send(pair_->remote, 0, &word, sizeof word, VMMC_NOTIFY) == 0;
  }

 private:
  std::optional<VmmcPair> pair_;
};

}  // namespace

void vmmc_questions(Context& context) {
  const auto way = [](VmmcWay w) { return [=] { return VmmcTransport(w); }; };
  for (const std::size_t bytes :
       context.sizes({8, 56, 256, 1024, 4096, 16384, 65536}, {8, 4096}, {8, 4096})) {
    const auto variant = [&](auto make) {
      return round_trip_variant("vmmc_latency", make, bytes, context.across_cores());
    };
    context.point({variant(way(VmmcWay::kDeliberate)), variant(way(VmmcWay::kAlias)),
                   variant(clan_messages(WaitMode::kPoll)), variant([] { return BareSlot(); })});
  }
  for (const std::size_t bytes : context.sizes({65536, 1048576}, {1048576}, {1048576})) {
    for (const bool mapped : {true, false}) {
      context.point({
          send_variant("vmmc", send_by_vmmc, mapped, bytes),
          send_variant("RdmaQueue", send_by_rdma, mapped, bytes),
      });
    }
  }
  for (const std::size_t pages : context.sizes({1, 16, 128, 1024}, {16, 1024}, {16})) {
    context.point({
        flush_variant("vmmc", flush_by_vmmc, pages),
        flush_variant("scan, memcmp, memcpy", flush_by_hand, pages),
    });
  }
  context.point({interval_variant("vmmc", true), interval_variant("unbound", false)});
  context.point({wakeup_variant([] { return NotifiedSleeper(); }, "vmmc_wakeup"),
                 wakeup_variant([] { return EventfdSleeper(); }, "vmmc_wakeup")});
}

}  // namespace clan::bench
