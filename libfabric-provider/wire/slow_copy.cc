#include "wire/slow_copy.h"

#include <algorithm>
#include <cerrno>

#include "system/provider.h"

namespace clan::ofi {

int copy_failure(int err) {
  switch (err) {
    case 0: return 0;
    case ESTALE: return -FI_ENOKEY;
    case ERANGE: return -FI_EINVAL;
    default: return failure(Error{err, "an RDMA request failed"});
  }
}

void Silence::begin(std::uint64_t now_ns) {
  length_ = std::clamp(length_ * 2, kFirstNs, kLastNs);
  until_ = now_ns + length_;
}

}  // namespace clan::ofi
