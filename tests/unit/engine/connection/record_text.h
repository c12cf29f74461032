// What the next record of a connection says.
#pragma once

#include <cstdint>
#include <string>

#include "clan/detail/clock.h"
#include "engine/connection/connection.h"

namespace clan::engine {

/// Taken; "nothing": none came in that time, "gone": nor will one.
inline std::string take_text(Connection& c, std::int64_t ms) {
  if (!c.wait_readable(deadline_after_ms(ms))) return "nothing";
  shm::RingRecord record;
  if (c.peek(&record) <= 0) return "gone";
  std::string text(reinterpret_cast<const char*>(record.payload), record.head.length());
  c.consume(record);
  return text;
}

}  // namespace clan::engine
