// What is measured, and what the client tells the server to do together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace clan::bench::ofi {

constexpr std::size_t kMostBytes = 4u << 20;
constexpr int kWindow = 64;
constexpr double kPatience = 20;  ///< seconds

enum class Kind : int {
  kTagged,        ///< ping-pong
  kMessage,       ///< the same without tags
  kTaggedWindow,  ///< 64 messages, then an answer
  kWriteWindow,   ///< both sides write at once, 64 under way
  kReadWindow,
  kWriteInject,  ///< both sides, fi_inject_write
  kWrite,        ///< one at a time, until it is complete; the owner polls
  kRead,
  kFetchAdd,
  kIdle,     ///< CPU time of two seconds of waiting at the queue's descriptor
  kWakeUp,   ///< ping-pong of two that sleep there
  kEventfd,  ///< the same with nothing but an eventfd
  kEnd,
};

struct Entry {
  const char* name;
  Kind kind;
  const char* family;
};
constexpr Entry kKinds[] = {
    {"tagged", Kind::kTagged, "tagged"},
    {"tagged-window", Kind::kTaggedWindow, "tagged"},
    {"msg", Kind::kMessage, "msg"},
    {"write-window", Kind::kWriteWindow, "rma"},
    {"read-window", Kind::kReadWindow, "rma"},
    {"write-inject", Kind::kWriteInject, "rma"},
    {"write", Kind::kWrite, "rma"},
    {"read", Kind::kRead, "rma"},
    {"fetch-add", Kind::kFetchAdd, "atomic"},
    {"idle", Kind::kIdle, "wait"},
    {"wake-up", Kind::kWakeUp, "wait"},
    {"eventfd", Kind::kEventfd, "wait"},
};

/// What the client tells the server to do together.
struct Order {
  Kind kind = Kind::kEnd;
  std::uint64_t bytes = 0;
  std::uint64_t times = 0;  ///< 0: check that the bytes arrive, all of them
};

}  // namespace clan::bench::ofi
