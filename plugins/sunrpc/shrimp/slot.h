// The memory that a binding's two sides share. The client makes it, the server maps it.
//
//   | Head 64 | Slot 0: data 8128, Line 64 | Slot 1 ... | arena of arguments | arena of results |
//
//   Line: | data 40 | size 4 | number (in a reply: status) 4 | where 4 | reserved 4 | flag 8 |
//
// A message of up to 40 bytes lies in the line of its flag: one cache line moves each way. A longer
// one lies in the slot's data, or in an arena, which one call at a time uses. The flag is written
// after everything else and names the call, so that slots need not be cleared:
//
//     client                          server
//     flag = call << 2 | kAsked  ->   sees it, serves, writes results over the arguments
//     sees it                    <-   flag = call << 2 | kAnswered
//
//   A client that goes to sleep adds kSleeps to its flag; the server that exchanges the flag finds
//   that and sends it an empty message. A server that goes to sleep sets Head::server_sleeps; the
//   client checks it after its flag's exchange. What a death leaves: the message endpoint that
//   carries these wake-ups tells it.
//
// Trust: each side copies status, size, number and where once, before it checks them.
#pragma once

#include <clan/cookie.h>
#include <clan/detail/cpu.h>
#include <clan/message_types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::shrimp {

constexpr std::uint32_t kSlots = 16;
constexpr std::size_t kSlotBytes = 8192;
constexpr std::size_t kInLine = 40;
constexpr std::size_t kSlotData = kSlotBytes - kCacheLine;
constexpr std::size_t kLookedAt = 256;
constexpr std::size_t kArenaBytes = std::size_t{8} << 20;  ///< touched as far as it is used
constexpr std::uint32_t kAbi = 1 | sizeof(long) << 8;
constexpr int kMostErrno = 4095;
constexpr int kMostMessages = 64;  ///< taken in one go, as their sender may never stop

enum Flag : std::uint64_t { kAsked = 1, kAnswered = 2, kStateBits = 2 };
constexpr std::uint64_t kSleeps = std::uint64_t{1} << 63;
constexpr std::uint64_t flag_of(std::uint64_t call, Flag state) {
  return call << kStateBits | state;
}

enum Where : std::uint32_t { kLineData, kSlotsData, kArgumentsArena, kResultsArena };

struct alignas(kCacheLine) Head {
  std::atomic<std::uint32_t> server_sleeps;  ///< 1: a call needs a message
  std::atomic<std::uint32_t> server_cpu;     ///< hint: clan::current_cpu_tag()
  std::atomic<std::uint64_t>
      results_taken;  ///< the last call whose results the client has taken from the arena
};

struct alignas(kCacheLine) Line {
  std::byte data[kInLine];
  std::uint32_t size;    ///< of the message
  std::uint32_t number;  ///< of the procedure; in the reply its clan_shrimp_stat
  std::uint32_t where;
  std::uint32_t reserved;
  std::atomic<std::uint64_t> flag;
};
static_assert(sizeof(Line) == kCacheLine && offsetof(Line, flag) == 56);

/// A word that the peer may change meanwhile: it is loaded once, so that what is checked is what is
/// used.
inline std::uint32_t load_once(std::uint32_t& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);  // relaxed: the flag orders it
}

struct Slot {
  std::byte data[kSlotData];
  Line line;
};
static_assert(sizeof(Slot) == kSlotBytes);

struct Binding {
  Head head;
  Slot slots[kSlots];
  std::byte arguments[kArenaBytes];
  std::byte results[kArenaBytes];
  std::byte* arena(Where where) { return where == kArgumentsArena ? arguments : results; }
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// For a side that polls a flag: reads the lines of a message of so many bytes as well. They come
/// while the flag does, and not after it, which is a line's way less. Long messages come faster in
/// one go.
inline void look_at_data(const Slot& slot, std::size_t bytes) {
  if (bytes > kLookedAt) return;
  for (std::size_t at = 0; at < bytes; at += kCacheLine)
    (void)*static_cast<const volatile std::byte*>(slot.data + at);
}

enum HelloKind : std::uint32_t { kHello = 1, kAnswer, kBell };

/// What a client says first, what it is answered, and what wakes either side.
struct Hello {
  std::uint32_t abi = kAbi;
  std::uint32_t kind = kHello;
  std::uint64_t hash = 0;
  std::int32_t status = 0;  ///< of an answer: 0 or an errno
  std::uint32_t reserved = 0;
  RdmaCookie memory;
};
/// Nothing longer is taken, from clients that are not bound yet either.
inline const MessageOptions kHellos{.max_message = sizeof(Hello)};

/// Where a message of `bytes` lies, `arena` if it is long; null: nowhere.
inline std::byte* place(Binding& binding, Slot& slot, std::size_t bytes, Where arena,
                        std::uint32_t* where) {
  *where = bytes <= kInLine ? kLineData : bytes <= kSlotData ? kSlotsData : arena;
  if (*where == kLineData) return slot.line.data;
  if (*where == kSlotsData) return slot.data;
  return bytes <= kArenaBytes ? binding.arena(arena) : nullptr;
}

/// The message that `where` and `size`, copies of the other side's words, name; null: they make no
/// sense.
inline std::byte* find(Binding& binding, Slot& slot, Where arena, std::uint32_t where,
                       std::uint32_t size) {
  if (where == kLineData) return size <= kInLine ? slot.line.data : nullptr;
  if (where == kSlotsData) return size <= kSlotData ? slot.data : nullptr;
  return where == arena && size <= kArenaBytes ? binding.arena(arena) : nullptr;
}

}  // namespace clan::shrimp
