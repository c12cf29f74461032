// What does a 64-byte store into memory mapped from another process cost the one that stores?
//
//   writer (member 0)                      owner of the memory (member 1)
//   its own mapping of a memfd    ───►     its own mapping; reads nothing, or reads all the time
//
// "bare" is the plain store loop that "clan", a PIO write into an imported aperture, is compared
// with: by the C library's memcpy(), as CLAN's, whose stores are wider than those that the compiler
// makes of a known length.
#include <clan/aperture.h>
#include <clan/memory.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstring>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/context.h"
#include "support/fd.h"
#include "support/pattern.h"
#include "support/shared_memory.h"
#include "transports/clan_transport.h"

namespace clan::bench {

namespace {

constexpr std::size_t kArea = 4096;
constexpr std::size_t kStore = 64;

/// A memfd made before the fork, mapped by each side for itself.
class BarePio {
 public:
  std::string prepare() {
    fd_.reset(memfd_create("clan-bench", MFD_CLOEXEC));
    if (!fd_ || ftruncate(fd_.get(), kArea) != 0) return "no memfd";
    return "";
  }
  bool open(Side) {
    memory_ = SharedMemory(kArea, fd_.get());
    return static_cast<bool>(memory_);
  }
  bool write(std::size_t offset, std::span<const std::byte> bytes) {
    std::size_t n = bytes.size();
    asm volatile("" : "+r"(n));  // not known to the compiler
    std::memcpy(memory_.data() + offset, bytes.data(), n);
    return true;
  }
  std::span<const std::byte> memory() const { return {memory_.data(), kArea}; }

 private:
  Fd fd_;
  SharedMemory memory_;
};

/// CLAN memory exported by its owner, imported by the writer; no tripwire is armed.
class ClanPio {
 public:
  std::string prepare() { return page_.prepare() ? "" : "no shared memory"; }
  bool open(Side side) {
    context_ = make_context(WaitMode::kAdaptive);
    if (!context_) return false;
    return side == Side::kServer ? open_owner() : open_writer();
  }
  bool write(std::size_t offset, std::span<const std::byte> bytes) {
    return remote_->write(offset, bytes.data(), kStore).ok();
  }
  std::span<const std::byte> memory() const { return aperture_->region(); }

 private:
  bool open_owner() {
    auto memory = Memory::allocate(kArea);
    if (!memory) return complain("memory", memory.error());
    memory_ = std::move(*memory);
    auto aperture = Aperture::export_memory(*context_, *memory_, 0, kArea, Rights::kReadWrite);
    if (!aperture) return complain("export", aperture.error());
    aperture_ = std::move(*aperture);
    page_.put(aperture_->cookie());
    return true;
  }
  bool open_writer() {
    auto remote = RemoteAperture::import(*context_, page_.take());
    if (!remote) return complain("import", remote.error());
    remote_ = std::move(*remote);
    return true;
  }

  CookiePage page_;
  std::unique_ptr<clan::Context> context_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  std::optional<RemoteAperture> remote_;
};

template <class Target>
bool write_area(Target& target, const std::array<std::byte, kStore>& line) {
  for (std::size_t offset = 0; offset < kArea; offset += kStore) {
    if (!target.write(offset, line)) return false;
    // The compiler may not merge this store with the next round's.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  return true;
}

template <class Target>
bool write_member(Member& m, Target& target) {
  std::array<std::byte, kStore> line;
  std::uint64_t round = 0;
  const auto rounds_of = [&](std::uint64_t rounds) {
    for (std::uint64_t i = 0; i < rounds; ++i) {
      line.fill(pattern_of(round++));
      if (!write_area(target, line)) return false;
    }
    return true;
  };
  constexpr std::uint64_t kWarmUp = 200;
  if (!rounds_of(kWarmUp)) return m.fail("the write was refused");
  const std::uint64_t start = Clock::now();
  if (!rounds_of(kWarmUp)) return m.fail("the write was refused");
  const double each = Clock::to_ns(Clock::now() - start) / kWarmUp;
  const std::uint64_t rounds = m.agree(m.repeats_for(each));
  auto* last = reinterpret_cast<std::atomic<std::uint64_t>*>(m.scratch());
  constexpr double kStoresPerRound = static_cast<double>(kArea) / kStore;
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!rounds_of(rounds)) return m.fail("the write was refused");
    const double ns = Clock::to_ns(Clock::now() - begin);
    m.record(ns / static_cast<double>(rounds) / kStoresPerRound);
    // PAIR bench.pio.last: publishes the number of the last round to the owner
    last->store(round, std::memory_order_release);
    m.barrier();
  }
  return true;
}

template <class Target>
bool own_member(Member& m, Target& target, bool reads) {
  m.agree(0);
  auto* last = reinterpret_cast<std::atomic<std::uint64_t>*>(m.scratch());
  while (m.next_sample()) {
    std::uint64_t seen = 0;
    // PAIR bench.pio.last: sees the number of the last round
    if (reads) {
      const std::uint64_t before = last->load(std::memory_order_acquire);
      std::size_t offset = 0;
      while (last->load(std::memory_order_acquire) == before) {
        seen += static_cast<std::uint64_t>(target.memory()[offset]);
        offset = (offset + kStore) % kArea;
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
    m.barrier();
    const std::byte wanted = pattern_of(last->load(std::memory_order_acquire) - 1);
    for (std::byte b : target.memory()) {
      if (b != wanted) return m.fail("the last round did not arrive");
    }
    m.set_figure(0, static_cast<double>(seen));
  }
  return true;
}

template <class Target>
std::optional<Row> measure_pio(Context& context, const std::string& variant, bool reads,
                               Target target) {
  if (const std::string why = target.prepare(); !why.empty()) {
    context.skip("pio_write", variant, why);
    return std::nullopt;
  }
  const Outcome outcome = run_group(context.across_cores(), [&](Member& m) {
    if (!target.open(m.index() == 0 ? Side::kClient : Side::kServer))
      return m.fail("cannot map the memory");
    return m.index() == 0 ? write_member(m, target) : own_member(m, target, reads);
  });
  if (!outcome.ok()) {
    context.failed("pio_write", variant, outcome.failure);
    return std::nullopt;
  }
  Row row = make_row("pio_write", variant, static_cast<double>(kStore), "ns", outcome);
  row.op_ns = row.stats.p50;
  return row;
}

}  // namespace

void pio_write(Context& context) {
  context.point({[](Context& c) { return measure_pio(c, "bare", false, BarePio()); },
                 [](Context& c) { return measure_pio(c, "clan", false, ClanPio()); }});
  context.point({[](Context& c) { return measure_pio(c, "bare, owner reads", true, BarePio()); },
                 [](Context& c) { return measure_pio(c, "clan, owner reads", true, ClanPio()); }});
}

}  // namespace clan::bench
