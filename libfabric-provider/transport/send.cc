#include "transport/send.h"

namespace clan::ofi {

std::span<const std::byte> lasting_bytes(OperationTable& operations, Operation& operation,
                                         const SendRequest& request) {
  if (request.count <= 1 && !request.inject) {
    const void* const bytes = request.count > 0 ? request.iov[0].iov_base : nullptr;
    return {static_cast<const std::byte*>(bytes), request.length};
  }
  try {
    operation.gathered.resize(request.length);
  } catch (const std::bad_alloc&) {
    operations.release(operation);
    throw;
  }
  gather(operation.gathered.data(), request.iov, request.count);
  return operation.gathered;
}

}  // namespace clan::ofi
