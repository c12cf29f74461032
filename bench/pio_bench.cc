// What does a 64-byte store into memory mapped from another process cost the one that stores?
//
//   writer (member 0)                      owner of the memory (member 1)
//   its own mapping of a memfd    ───►     its own mapping; reads nothing, or reads all the time
//
// "bare" is the plain store loop that "clan", a PIO write into an imported aperture, is compared
// with: by the C library's memcpy(), as CLAN's, whose stores are wider than those that the compiler
// makes of a known length.

#include <cstring>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/pattern.h"
#include "transports/clan_transport.h"

namespace clan::bench {

namespace {

constexpr std::size_t kArea = RemotePage::kBytes;
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
  std::span<const std::byte> memory() { return {memory_.data(), kArea}; }

 private:
  Fd fd_;
  SharedMemory memory_;
};

/// CLAN memory exported by its owner, imported by the writer; no tripwire is armed.
class ClanPio {
 public:
  std::string prepare() { return page_.prepare(); }
  bool open(Side side) { return page_.open(side, WaitMode::kAdaptive); }
  bool write(std::size_t offset, std::span<const std::byte> bytes) {
    return page_.remote().write(offset, bytes.data(), kStore).ok();
  }
  std::span<const std::byte> memory() { return page_.aperture().region(); }

 private:
  RemotePage page_;
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
      if (!write_area(target, line)) return m.fail("the write was refused");
    }
    return true;
  };
  constexpr std::uint64_t kWarmUp = 200;
  if (!rounds_of(kWarmUp)) return false;
  const std::uint64_t start = Clock::now();
  if (!rounds_of(kWarmUp)) return false;
  const double each = Clock::ns_since(start) / kWarmUp;
  const std::uint64_t rounds = m.agree(m.repeats_for(each));
  auto* last = reinterpret_cast<std::atomic<std::uint64_t>*>(m.scratch());
  constexpr double kStoresPerRound = static_cast<double>(kArea) / kStore;
  while (m.next_sample()) {
    const std::uint64_t begin = Clock::now();
    if (!rounds_of(rounds)) return false;
    const double ns = Clock::ns_since(begin);
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
  // Not loaded when a sample begins: the writer may have ended it by then.
  std::uint64_t before = 0;
  while (m.next_sample()) {
    std::uint64_t seen = 0;
    // PAIR bench.pio.last: sees the number of the last round
    if (reads) {
      std::size_t offset = 0;
      while (last->load(std::memory_order_acquire) == before) {
        seen += static_cast<std::uint64_t>(target.memory()[offset]);
        offset = (offset + kStore) % kArea;
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
    m.barrier();
    before = last->load(std::memory_order_acquire);
    const std::byte wanted = pattern_of(before - 1);
    for (std::byte b : target.memory()) {
      if (b != wanted) return m.fail("the last round did not arrive");
    }
    m.set_figure(0, static_cast<double>(seen));
  }
  return true;
}

template <class Target>
Context::Variant pio_variant(const char* variant, bool reads) {
  return [=](Context& context) -> std::optional<Row> {
    Target target;
    const auto outcome =
        context.run("pio_write", variant, target.prepare(), context.across_cores(), [&](Member& m) {
          if (!target.open(m.side())) return m.fail("cannot map the memory");
          return m.index() == 0 ? write_member(m, target) : own_member(m, target, reads);
        });
    if (!outcome) return std::nullopt;
    return make_row("pio_write", variant, static_cast<double>(kStore), "ns", *outcome);
  };
}

}  // namespace

void pio_write(Context& context) {
  context.point({pio_variant<BarePio>("bare", false), pio_variant<ClanPio>("clan", false)});
  context.point({pio_variant<BarePio>("bare, owner reads", true),
                 pio_variant<ClanPio>("clan, owner reads", true)});
}

}  // namespace clan::bench
