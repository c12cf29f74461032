// Mirror: compares memory with a twin to find what the program has stored, and sends that.
//
//   memory    what the program stores into, at any time
//   twin      what has been sent from it, and what has been copied from the peer
//   landing   of a mirror both ways: where the peer sends to; `seen` is what has been copied
//
// The unit is the aligned word of 8 bytes: a changed word is sent as a whole, others are left
// alone, there and here. The library reads memory that it gave through a mapping of its own, which
// stays if the program unmaps its memory. The kernel reads and writes other memory
// (process_vm_readv): a page that disappears meanwhile causes an error and no signal.
// Thread-safety: any thread.
#pragma once

#include <clan/aperture.h>

#include <memory>
#include <mutex>
#include <span>

#include "dirty_pages.h"

namespace clan::vmmc {

class Mirror {
 public:
  /// The memory that is mirrored: aligned words.
  struct Place {
    std::span<std::byte> memory;
    const std::byte* view = nullptr;     ///< a second mapping of it, or none
    std::span<const std::byte> landing;  ///< as many bytes, or none
  };
  /// Makes a mirror. EOPNOTSUPP: the kernel does not copy.
  static Result<std::unique_ptr<Mirror>> create(RemoteAperture& remote, std::uint64_t offset,
                                                const Place& place);

  /// Sends what has changed, and copies what has landed. EFAULT: some of the memory is gone; the
  /// rest has been sent.
  Status flush();
  bool compares() const { return !dirty_.told(); }

 private:
  Mirror(RemoteAperture& remote, std::uint64_t offset, const Place& place);
  Status send_changes(std::size_t offset, std::size_t bytes);
  Status read_pages(std::size_t offset, std::size_t bytes);
  Status send_words(std::size_t offset, std::size_t count, const std::uint64_t* live);
  Status send_run(std::size_t offset, std::size_t begin, std::size_t end);
  Status take_over();
  std::uint64_t* twin(std::size_t offset) { return twin_.get() + offset / sizeof(std::uint64_t); }

  static constexpr std::size_t kPiece = 32 * 1024;
  RemoteAperture& remote_;
  const std::uint64_t offset_;
  const Place place_;
  std::mutex mutex_;
  bool gone_ = false;                          ///< some of the memory
  std::uint64_t compared_ = 0, mirrored_ = 0;  ///< bytes of this flush
  DirtyPages dirty_;                           ///< pages are protected before the twin is made
  std::unique_ptr<std::uint64_t[]> twin_, seen_;
  std::unique_ptr<std::uint64_t[]> piece_;  ///< words as they are sent
};

}  // namespace clan::vmmc
