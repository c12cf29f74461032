// Alias: the exporter's pages at an address of the binder's, a second mapping beside the engine's.
//
//   the engine's mapping -->  the exporter's pages  <-- the bound memory
//
// When it ends, private memory with the same contents takes its place, as in a forked child. Memory
// that the program has unmapped or moved away is left alone. Thread-safety: none, but for fork.
#pragma once

#include <clan/result.h>

#include <cstddef>
#include <memory>

namespace clan::vmmc {

class Alias {
 public:
  /// Maps the pages of [shared, shared + bytes) at `address`, in place of what is there; null:
  /// anywhere. EINVAL: there is an address, and it, `shared` or `bytes` is not page-aligned.
  static Result<std::unique_ptr<Alias>> map(std::byte* shared, std::byte* address,
                                            std::size_t bytes);
  ~Alias();
  Alias(const Alias&) = delete;
  Alias& operator=(const Alias&) = delete;

  std::byte* address() const { return base_ + (shared_ - pages_); }

 private:
  Alias() = default;
  static void in_child();
  std::byte* shared_ = nullptr;  ///< in the engine's mapping
  std::byte* pages_ = nullptr;   ///< its pages there
  std::byte* base_ = nullptr;    ///< the alias's pages
  std::size_t length_ = 0;
  bool given_ = false;  ///< the program has given the address, and keeps memory there
};

}  // namespace clan::vmmc
