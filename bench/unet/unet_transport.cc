#include "unet/unet_transport.h"

#include <unistd.h>

namespace clan::bench {
namespace {

constexpr std::int64_t kConnectMs = 10'000;
constexpr std::uint64_t kBenchKey = 1;

}  // namespace

std::string unet_name(UnetMemory memory) {
  return memory == UnetMemory::kArea ? "unet-area" : "unet-anywhere";
}

std::string UnetTransport::prepare(std::size_t bytes) {
  static int number = 0;
  name_ = "unet-bench-" + std::to_string(::getpid()) + "." + std::to_string(++number);
  bytes_ = static_cast<std::uint32_t>(bytes);
  return "";
}

std::optional<UnetEnd> UnetTransport::open(Side side) {
  unet_node* node = nullptr;
  if (unet_open(nullptr, &node) != 0) return std::nullopt;
  std::unique_ptr<unet_node, UnetEnd::Close> owned(node);
  unet_endpoint_options options{};
  options.mode = memory_ == UnetMemory::kArea ? UNET_AREA : UNET_ANYWHERE;
  options.area_bytes = memory_ == UnetMemory::kArea ? 256 * 1024 : 0;
  options.buffer_bytes = bytes_ > UNET_INLINE ? bytes_ : 0;
  const bool serves = side == Side::kServer;
  options.service = serves ? name_.c_str() : nullptr;
  unet_endpoint* endpoint = nullptr;
  if (unet_create(node, &options, &endpoint) != 0) return std::nullopt;
  std::unique_ptr<unet_endpoint, UnetEnd::Close> made(endpoint);
  int error = serves ? unet_accept(endpoint, 1, kBenchKey) : ECONNREFUSED;
  while (!serves && error == ECONNREFUSED) {  // the server is not there yet
    error = unet_connect_service(endpoint, 1, name_.c_str(), 1, kBenchKey, kConnectMs);
    if (error == ECONNREFUSED) ::usleep(100);
  }
  if (error != 0) return std::nullopt;
  return UnetEnd(std::move(owned), std::move(made), memory_);
}

}  // namespace clan::bench
