// What a Pipe (clan/face/pipe.h) is asked for and answers: plain data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::shm {
struct RingProducer;
struct RingSlot;
}  // namespace clan::shm

namespace clan {

/// What is next in a pipe for the reader.
enum class PipeFront {
  kNothing,  ///< no record; more may come
  kBytes,
  kEnd,     ///< the writer has half-closed
  kLeave,   ///< the writer goes on elsewhere: see Pipe::leave()
  kBroken,  ///< impossible contents
};

/// How much of its room a send takes before it says that there is none.
enum class PipeRoom {
  kWindow,  ///< what serves a reader that keeps reading: at most kPipeWindow bytes
  kWhole,   ///< all that TCP would take, see Pipe::set_limits()
};
constexpr std::uint64_t kPipeWindow = 512 * 1024;

/// The locks of an end, one for each direction: 0, or the thread that has it (sys::name_of()). In
/// memory that all processes of the end write, and the other end does not.
struct PipeLocks {
  std::atomic<std::uint32_t> sending{0}, receiving{0};
};

/// What a call has done. `err`: 0, EDEADLK (the caller is a handler that interrupted this
/// direction), EPROTO (broken), EPIPE (this end has ended its sending already), or behind `bytes`
/// EFAULT (see Pipe::guard_copies()).
struct PipeDone {
  std::size_t bytes = 0;
  bool must_ring = false;  ///< the other end sleeps, or is about to: wake it
  int err = 0;
};

}  // namespace clan
