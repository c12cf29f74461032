// Virtual memory-mapped communication over CLAN (plugins/vmmc), beside what it is built of and
// beside the kernel; figure 1 of shrimp-client-server.
//
// vmmc_latency    round trips, polling, with one copy at the receiver: deliberate update, an alias,
//                 message endpoints, and a bare slot of shared memory
// vmmc_send       how fast a long deliberate update gets away; beside RdmaQueue alone
// vmmc_flush      a mirror of 1,024 pages of which some have been stored into; beside the scan,
//                 memcmp and memcpy of these pages
// vmmc_interval   what a mirror with an interval of 1 ms takes of a core when one page of it is
//                 stored into once a ms
// vmmc_wakeup     from a notification until its handler has run in a process that sleeps; beside an
//                 eventfd
#include <clan/rdma.h>
#include <sys/resource.h>
#include <time.h>

#include "benchmarks.h"
#include "dirty_pages.h"
#include "transports/bare_transport.h"
#include "transports/clan_transport.h"
#include "transports/round_trip.h"
#include "transports/wakeup.h"
#include "vmmc/vmmc_transport.h"

namespace clan::bench {
namespace {

constexpr std::size_t kPage = 4096, kPages = 1024;

/// The two members' VMMCs; member 1's cookie is in the scratch memory.
std::optional<VmmcPair> open_pair(Member& m, const std::string& names, std::size_t bytes,
                                  bool mapped = true) {
  const bool first = m.index() == 0;
  std::optional<VmmcPair> pair(std::in_place, names + (first ? "c" : "s"),
                               names + (first ? "s" : "c"), bytes, 0, nullptr, nullptr, mapped);
  if (!pair->ready) return std::nullopt;
  if (!first) (void)vmmc_cookie(pair->buffer, reinterpret_cast<unsigned char*>(m.scratch()));
  m.barrier();
  return pair;
}

// Member 0 runs `measure(m, pair)` for each sample; member 1 is its target and takes no part.
template <typename Measure>
Outcome measure_at_client(Context& context, std::size_t bytes, bool mapped, Measure measure) {
  const std::string names = vmmc_name();
  return run_group(context.across_cores(), [&](Member& m) {
    auto pair = open_pair(m, names, bytes, mapped);
    if (!pair) return m.fail("cannot open VMMC");
    return measure(m, *pair);
  });
}

template <typename Send>
bool time_sends(Member& m, std::size_t bytes, Send send) {
  const std::vector<std::byte> data(bytes, std::byte{0x5a});
  while (m.next_sample()) {
    for (int i = m.options().smoke ? 198 : 0; m.index() == 0 && i < 200; ++i) {
      const std::uint64_t begin = Clock::now();
      if (!send(data)) return m.fail("a send has failed");
      m.record(static_cast<double>(bytes) / Clock::to_ns(Clock::now() - begin));
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
  return [=](Context& context) -> std::optional<Row> {
    const std::string variant = std::string(name) + (mapped ? ", mapped" : "");
    const Outcome outcome = measure_at_client(
        context, bytes, mapped, [&](Member& m, VmmcPair& pair) { return send(m, pair, bytes); });
    if (!outcome.ok()) {
      context.failed("vmmc_send", variant, outcome.failure);
      return std::nullopt;
    }
    Row row = make_row("vmmc_send", variant, static_cast<double>(bytes), "GB/s", outcome);
    row.higher_is_better = true;
    row.op_ns = static_cast<double>(bytes) / row.stats.p50;
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
      m.record(Clock::to_ns(Clock::now() - begin));
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
  return [=](Context& context) -> std::optional<Row> {
    const Outcome outcome =
        measure_at_client(context, kPages * kPage, true,
                          [&](Member& m, VmmcPair& pair) { return flush(m, pair, pages); });
    if (!outcome.ok()) {
      context.skip("vmmc_flush", name, outcome.failure);
      return std::nullopt;
    }
    Row row = make_row("vmmc_flush", name, static_cast<double>(pages), "ns", outcome);
    row.x_name = "written pages";
    row.op_ns = row.stats.p50;
    return row;
  };
}

double cpu_us() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
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
    const double begin = cpu_us();
    for (int i = 0; m.index() == 0 && i < count; ++i) {
      dirty(memory, 1);
      const timespec ms{0, 1'000'000};
      nanosleep(&ms, nullptr);
    }
    if (m.index() == 0) m.record((cpu_us() - begin) / (count * 1000.0) * 100);
  }
  return true;
}

Context::Variant interval_variant(const char* name, bool bound) {
  return [=](Context& context) -> std::optional<Row> {
    const Outcome outcome =
        measure_at_client(context, kPages * kPage, true,
                          [&](Member& m, VmmcPair& pair) { return store_each_ms(m, pair, bound); });
    if (!outcome.ok()) {
      context.failed("vmmc_interval", name, outcome.failure);
      return std::nullopt;
    }
    Row row = make_row("vmmc_interval", name, 1, "% of a core", outcome);
    row.x_name = "pages a ms";
    return row;
  };
}

// --- notifications -------------------------------------------------------------------------------

/// The sleeper suspends itself until its handler has run.
class NotifiedSleeper {
 public:
  std::string name() const { return "vmmc"; }
  std::string prepare() {
    names_ = vmmc_name();
    return "";
  }
  bool open(Side side) {
    const bool client = side == Side::kClient;
    pair_.emplace(names_ + (client ? "c" : "s"), names_ + (client ? "s" : "c"), kPage,
                  VMMC_HANDLERS_IN_POLL, [](auto*, auto*, void*) {});
    return pair_->ready;
  }
  bool sleep() { return vmmc_suspend(pair_->buffer, -1) == 0; }
  bool ring() {
    const std::uint64_t word = 1;
    return vmmc_send(pair_->remote, 0, &word, sizeof word, VMMC_NOTIFY) == 0;
  }

 private:
  std::string names_;
  std::optional<VmmcPair> pair_;
};

}  // namespace

void vmmc_questions(Context& context) {
  const auto way = [](VmmcWay w) { return [=] { return VmmcTransport(w); }; };
  for (const std::size_t bytes :
       context.sizes({8, 56, 256, 1024, 4096, 16384, 65536}, {8, 4096}, {8, 4096})) {
    const auto& cores = context.across_cores();
    context.point({
        round_trip_variant("vmmc_latency", way(VmmcWay::kDeliberate), bytes, cores),
        round_trip_variant("vmmc_latency", way(VmmcWay::kAlias), bytes, cores),
        round_trip_variant(
            "vmmc_latency", [] { return ClanMessages(WaitMode::kPoll); }, bytes, cores),
        round_trip_variant(
            "vmmc_latency", [] { return BareSlot(); }, bytes, cores),
    });
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
