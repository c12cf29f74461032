#include "nic/link.h"

namespace clan::nic {

Status Link::publish(const RemoteHandle& handle, std::uint64_t offset,
                     std::span<const std::byte> bytes, const std::shared_ptr<PinnedPayload>&) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  begin_batch();
  Status s;
  if (bytes.size() > kWord) s = put(handle, offset + kWord, bytes.subspan(kWord), PutOrder::kAny);
  if (s) s = put(handle, offset, bytes.first(kWord), PutOrder::kAfterEarlier);
  end_batch();
  return s;
}

}  // namespace clan::nic
