// Why connections stay on TCP: each process's interposer writes the words, `clan stat` and the log
// read them. Behind the slots of sockets that are passed on, in the same memfd:
//
//   /proc/PID/fd/N -> /memfd:clan-slots-12 (deleted)
//   +0            slots (preload/table/slot_table.h)
//   +kSlotBytes   kBuckets buckets, a cache line each: 8 words, 0 = free
//
//   word   63 .. 40   39           38 .. 32   31 .. 0
//          number     of process   Why        inode of the socket, or the process as its own
//                                             namespace counts
//          it
//
// The process that made the memfd and its children write each line, at decisions only. A word is
// always whole, even if its writer is killed. A connection's word goes when it closes or moves; a
// shared one's stays until its place is needed. Readers copy the memory, and believe only what
// concerns sockets that a holder of the memfd holds, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace clan::reasons {

/// With the version of all that is in it: a process with another one finds none.
constexpr char kMemfdName[] = "clan-slots-12";
constexpr char kMemfdLink[] = "/memfd:clan-slots-12 (deleted)";  ///< as /proc/PID/fd/N shows it
static_assert(std::string_view(kMemfdLink).substr(7, sizeof kMemfdName - 1) == kMemfdName);
/// What memfds of all versions are called at the beginning.
constexpr char kMemfdPrefix[] = "clan-slots-";

constexpr std::size_t kSlotBytes = 8 * 1024 * 1024;  ///< sparse
constexpr std::size_t kWays = 8;                     ///< words of a bucket
constexpr std::size_t kBuckets = 1024;
constexpr std::size_t kWords = kWays * kBuckets;
constexpr std::size_t kBytes = kSlotBytes + kWords * sizeof(std::uint64_t);

/// An end that has made so many calls has asked for its other end, whichever calls they were.
constexpr std::uint32_t kCallsNeeded = 16;
/// An end with fewer calls has not looked for its other end, and has no word.
constexpr std::uint32_t kFirstCalls = 5;
constexpr std::uint32_t kMostNumber = 0xff'ffff;

enum class Why : std::uint8_t {
  kNone,
  // What is said of a connection only if neither end says more.
  kUnused,  ///< number: calls
  kNoPeer,
  kNotInDirectory,
  kTakenBack,
  kPinned,
  kOfferLost,
  kSeveral,
  // Settings, limits, refusals.
  kExcept,
  kOnly,
  kMemory,
  kMappings,
  kNoUnix,
  kNoNetlink,
  kOtherUser,
  kUnmappedUser,
  kNotOwner,
  kDirectory,
  kVersion,
  kAddressSpace,
  kNoMemory,
  kNoDescriptors,
  // What the program has done with it.
  kStandardStream,
  kInq,
  kTimestamp,
  kUlp,
  kRepair,
  kUrgent,
  kZeroCopy,
  kSigio,
  kSpliced,
  kSharedSet,
  kPassed,
  kExecuted,
  kHalfClosed,
  kDisconnected,
  kForked,
  // Of a whole process.
  kUring,
  kBypass,
  kFilter,   ///< number: of the system call, see clan/face/reason_text.h
  kRefused,  ///< likewise, without a filter
  kSandboxed,
  kFileLimit,
  kNoNetwork,
  // Of a connection; behind the others, as their numbers are in memory that `clan stat` reads.
  kPeekOff,
  kOutlived,
  kOtherNetwork,
  kNotCounted,
  kOwnTable,
  kFastOpen,
  kSelfConnected,
  kBothConnected,
  kUnseenSet,
  kAio,
  kZeroCopyReceive,
  kStream,
  kUserTimeout,
  kPacing,
  kSocketFilter,
  kWindowClamp,
  kTxDelay,
  kPolledSet,
  kCount,
};

constexpr bool is_weak(Why why) { return why < Why::kExcept; }
/// It may move yet, and another reason takes this one's place.
constexpr bool may_pass(Why why) { return why <= Why::kUnused || why == Why::kSeveral; }

struct Reason {
  std::uint32_t of = 0;  ///< inode, or process
  Why why = Why::kNone;
  bool of_process = false;
  std::uint32_t number = 0;
};

constexpr std::uint64_t word_of(const Reason& reason) {
  const std::uint64_t number = reason.number < kMostNumber ? reason.number : kMostNumber;
  const std::uint64_t kind =
      static_cast<std::uint64_t>(reason.why) | (reason.of_process ? 0x80u : 0u);
  return number << 40 | kind << 32 | reason.of;
}
/// Of any word: kNone if there is no such reason.
constexpr Reason reason_of(std::uint64_t word) {
  const auto why = static_cast<std::uint8_t>(word >> 32 & 0x7f);
  if (why == 0 || why >= static_cast<std::uint8_t>(Why::kCount)) return {};
  return {static_cast<std::uint32_t>(word), static_cast<Why>(why), (word >> 39 & 1) != 0,
          static_cast<std::uint32_t>(word >> 40)};
}
constexpr std::size_t bucket_of(std::uint32_t of) { return of % kBuckets * kWays; }

}  // namespace clan::reasons
