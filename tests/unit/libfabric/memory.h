// Memory that tests of accesses expose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libfabric/node.h"

namespace clan::test {

inline constexpr std::uint64_t kAllAccess = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

inline Object<fid_mr> expose(Node& node, void* memory, std::size_t bytes, std::uint64_t key,
                             std::uint64_t access = kAllAccess) {
  fid_mr* mr = nullptr;
  MUST(fi_mr_reg(node.domain.get(), memory, bytes, access, 0, key, 0, &mr, nullptr));
  return Object<fid_mr>(mr);
}

}  // namespace clan::test
