// What descriptors and the free queue name: offsets in the area, or addresses through the TLB.
#include "endpoint.h"

namespace clan::unet::library {

int Endpoint::locate(const unet_piece& piece, const void** at) const {
  if (mode_ == UNET_ANYWHERE) {
    *at = reinterpret_cast<const void*>(piece.at);
    return 0;
  }
  if (piece.at > area_bytes || piece.bytes > area_bytes - piece.at) return EFAULT;
  *at = area + piece.at;
  return 0;
}

int Endpoint::fetch(std::byte* to, std::uint64_t at, std::size_t bytes) {
  if (mode_ == UNET_ANYWHERE)
    return node().translator->copy_from(to, reinterpret_cast<const void*>(at), bytes);
  if (at > area_bytes || bytes > area_bytes - at) return EFAULT;
  std::memcpy(to, area + at, bytes);
  return 0;
}

// A whole buffer must be there, however much of it is filled.
int Endpoint::store(std::uint64_t at, const std::byte* from, std::size_t bytes) {
  if (mode_ == UNET_ANYWHERE)
    return node().translator->copy_to(reinterpret_cast<void*>(at), from, bytes);
  if (at > area_bytes || buffer_bytes > area_bytes - at) return EFAULT;
  std::memcpy(area + at, from, bytes);
  return 0;
}

// Translates buffers ahead of their use, so that what arrives for them need not wait: this thread
// takes their page faults. A buffer that cannot be had is found out when it is to be filled.
void Endpoint::prepare_buffers() {
  if (mode_ != UNET_ANYWHERE) return;
  Translator& translator = *node().translator;
  for (;;) {
    std::array<std::uint64_t, 64> fresh;
    std::size_t n = 0;
    {
      Held held(*port_);
      held.leave_armed();
      const std::uint32_t end = added(indices->free_added);
      if (end - frees_taken_ > free_entries) return;
      if (static_cast<std::int32_t>(frees_ready_ - frees_taken_) < 0) frees_ready_ = frees_taken_;
      while (frees_ready_ != end && n < fresh.size())
        fresh[n++] = frees[frees_ready_++ & (free_entries - 1)];
    }
    if (n == 0) return;
    for (std::size_t i = 0; i < n; ++i) {
      void* const buffer = reinterpret_cast<void*>(fresh[i]);
      (void)translator.pre_translate(buffer, buffer_bytes, PageAccess::kWrite);
    }
  }
}

}  // namespace clan::unet::library
