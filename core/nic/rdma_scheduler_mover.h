// RdmaMover: what moves the bytes that the RDMA scheduler (nic/rdma_scheduler.h) hands out.
#pragma once

#include <clan/rdma_request.h>

#include <cerrno>
#include <cstdint>

namespace clan::nic {

/// What the mover and the callback learn about a queue.
struct RdmaQueueRef {
  std::uint32_t id = 0;     // its number while it is attached
  void* context = nullptr;  // as given to attach()
};

/// One contiguous piece of a request. `local` is an address of the queue's application.
struct RdmaChunk {
  RdmaQueueRef queue;
  std::uint64_t token = 0;  // for complete_chunk, if the answer is kPending
  RdmaOp op = RdmaOp::kWrite;
  bool last = false;  // the request's last chunk
  std::uint32_t remote = 0;
  void* local = nullptr;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t cookie = 0;
};

struct RdmaMoveResult {
  enum class Kind : std::uint8_t {
    kDone,      // every byte has arrived
    kPending,   // under way; complete_chunk(token) will tell
    kDeferred,  // nothing moved: a page is not resident. Offered again after resume()
    kError,     // `err`; `bytes` of the chunk may have arrived
  };
  Kind kind = Kind::kDone;
  int err = 0;
  std::uint64_t bytes = 0;

  static RdmaMoveResult done() { return {Kind::kDone, 0, 0}; }
  static RdmaMoveResult pending() { return {Kind::kPending, 0, 0}; }
  static RdmaMoveResult deferred() { return {Kind::kDeferred, 0, 0}; }
  static RdmaMoveResult error(int err, std::uint64_t bytes = 0) {
    return {Kind::kError, err, bytes};
  }
};

/// What moves the bytes.
class RdmaMover {
 public:
  virtual ~RdmaMover() = default;

  /// Is this request allowed, and does its memory not wrap? 0 or an errno value. Called once per
  /// request, before its first chunk.
  virtual int check(const RdmaQueueRef& queue, const RdmaRequest& request) = 0;

  /// Moves one chunk. Rights may have been revoked since check(): that is an error here.
  virtual RdmaMoveResult move(const RdmaChunk& chunk) = 0;

  /// The queue goes away while the chunk with this token is pending. After the call neither its
  /// local nor its remote memory may be touched for it. complete_chunk for it is harmless.
  virtual void cancel(const RdmaQueueRef& queue, std::uint64_t token) = 0;
};

/// What a mover reported as an error is one, and a positive errno value.
inline int rdma_errno(int err) { return err > 0 ? err : EIO; }

}  // namespace clan::nic
