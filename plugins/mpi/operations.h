// Operations on the memory of a peer that its own processors carry out: atomics on ordinary memory,
// which nobody else can do, and puts and gets of a few bytes, where a peer that polls is faster
// than the kernel.
//
// Each channel has some cells. Its sender fills one in and says so in the segment's header; the
// first of the receiver's threads that looks takes it, does it with the processor's own atomic
// instructions, and stores the answer there:
//
//   free -> posted     the sender
//   posted -> taken    a thread of the receiver: in progress(), or one that is woken for it
//   taken -> done      the same thread
//   done -> free       the sender, which has read the answer
//   posted -> free     the sender, which does it by itself instead
//
// A death leaves a cell as it was. The sender's next operation on it is reported with the peer's
// death; a receiver carries out what was posted by a sender that has died since, as it would read
// its messages.
#pragma once

#include <clan/detail/cpu.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace clan::mpi {

constexpr unsigned kCells = 16;             ///< of a channel
constexpr std::size_t kCellsOffset = 1024;  ///< in the channel's control page
constexpr std::size_t kCellData = 24;

enum class CellState : std::uint32_t { kFree = 0, kPosted, kTaken, kDone };

enum class Operation : std::uint16_t {
  kAdd = 1,
  kAnd,
  kOr,
  kXor,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kSwap,
  kMin,
  kMax,
  kCompareAndSwap,
  kPut,
  kGet,
  kFind  ///< the window that has `bytes` at `address`; the answer: FoundWindow
};

struct alignas(kCacheLine) OperationCell {
  std::atomic<CellState> state;
  Operation operation;
  std::uint16_t bytes;    ///< 4 or 8; of a put or get, up to kCellData
  std::uint64_t address;  ///< in the receiver
  std::uint64_t key;      ///< of the region's cookie
  std::uint32_t aperture;
  std::uint16_t error;  ///< the answer: 0 or errno
  std::uint16_t reserved;
  std::uint64_t data[3];  ///< operand, compared value; the answer: the value before; of a put or
                          ///< get, the bytes
};
static_assert(sizeof(OperationCell) == kCacheLine && offsetof(OperationCell, data) == 32);
static_assert(std::is_standard_layout_v<OperationCell> &&
              std::atomic<CellState>::is_always_lock_free);
static_assert(kCellsOffset + kCells * sizeof(OperationCell) <= 4096);

/// What a peer has asked for, in memory that the peer cannot change: what is checked is what is
/// done.
struct AskedOperation {
  Operation operation;
  std::uint16_t bytes;
  std::uint32_t aperture;
  std::uint64_t address;
  std::uint64_t key;
  std::uint64_t data[3];  ///< as in the cell
};

/// The answer to kFind, in the cell's data; its aperture and key stand where the request had them.
struct FoundWindow {
  std::uint64_t base;
  std::uint64_t length;
  std::uint32_t generation;
  std::uint16_t rights;
  std::uint16_t block;
};
static_assert(sizeof(FoundWindow) == kCellData);

/// The sender's words, each read once. Precondition: the cell is taken, by this thread.
AskedOperation asked_in(const OperationCell& cell);

/// Carries out an operation on memory that is known to be there; its answer is in `data`.
/// EINVAL: no such operation of that size, or the address is not aligned.
int carry_out(AskedOperation& asked, std::byte* address);

}  // namespace clan::mpi
