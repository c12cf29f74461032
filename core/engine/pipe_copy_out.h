// What the two ways to receive from a Pipe do with a record.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/application_buffers.h"
#include "engine/pipe_parts.h"

namespace clan::pipes {

enum class Copied { kBytes, kFault, kBroken, kNoBytes };

/// Copies at most `most` bytes of a record, of which `offset` have been read. `n`: as many as there
/// were to copy.
inline Copied copy_out(const shm::RingRecord& record, std::uint64_t offset, std::uint64_t most,
                       Cursor& cursor, std::uint64_t* n) {
  if (record.head.type() != kBytesRecord) return Copied::kNoBytes;
  // Nobody sends an empty one, and a ring full of them has no end.
  if (record.head.length() <= kStampBytes) return Copied::kBroken;
  const std::uint64_t length = record.head.length() - kStampBytes;
  if (offset > length) return Copied::kBroken;
  *n = std::min(length - offset, most);
  auto copy = [&] { cursor.scatter(record.payload + kStampBytes + offset, *n); };
  return guarded(copy) ? Copied::kBytes : Copied::kFault;
}

}  // namespace clan::pipes
