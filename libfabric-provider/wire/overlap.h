// An access to memory of a peer, in pieces on both sides: where they overlap.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "system/provider.h"

namespace clan::ofi {

/// Calls use(local, length, key, address) for one overlap after the other, until it answers
/// something else than 0, which is the answer then. None is empty; what one side has more than the
/// other is left out.
template <typename Use>
int for_each_overlap(std::span<const iovec> local, std::span<const fi_rma_iov> remote, Use&& use) {
  std::size_t l = 0, l_done = 0;
  for (const fi_rma_iov& piece : remote) {
    std::size_t r_done = 0;
    while (r_done < piece.len) {
      while (l < local.size() && l_done == local[l].iov_len) {
        ++l;
        l_done = 0;
      }
      if (l == local.size()) return 0;
      const std::size_t n = std::min(piece.len - r_done, local[l].iov_len - l_done);
      const int rc = use(static_cast<std::byte*>(local[l].iov_base) + l_done, n, piece.key,
                         piece.addr + r_done);
      if (rc != 0) return rc;
      r_done += n;
      l_done += n;
    }
  }
  return 0;
}

}  // namespace clan::ofi
