#include "endpoint.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <bit>

namespace clan::unet::library {

namespace {

constexpr std::uint32_t kMostEntries = 1u << 20, kMostBufferBytes = 1u << 20;

std::uint32_t or_else(std::uint32_t wanted, std::uint32_t usual) {
  return wanted == 0 ? usual : wanted;
}

bool makes_sense(const unet_endpoint_options& o) {
  const auto entries = [](std::uint32_t n) {
    return n == 0 || (std::has_single_bit(n) && n <= kMostEntries);
  };
  return entries(o.send_entries) && entries(o.free_entries) && entries(o.receive_entries) &&
         o.buffer_bytes <= kMostBufferBytes && o.mode <= UNET_ANYWHERE &&
         (o.flags & ~(UNET_DIRECT_AREA | UNET_EMULATED | UNET_THREADS)) == 0 &&
         ((o.flags & UNET_DIRECT_AREA) == 0 || o.area_bytes > 0) &&
         ((o.flags & UNET_EMULATED) == 0 || o.service == nullptr);
}

Result<std::shared_ptr<Port>> port_for(unet_node& node, const unet_endpoint_options& wanted) {
  const std::string service = wanted.service == nullptr ? "" : wanted.service;
  if ((wanted.flags & UNET_EMULATED) == 0)
    return Port::create(node, service, (wanted.flags & UNET_THREADS) != 0);
  std::lock_guard lock(node.mutex);
  if (node.shared) return node.shared;
  auto port = Port::create(node, service, true);
  if (port) node.shared = *port;
  return port;
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<Port> port, const unet_endpoint_options& wanted)
    : unet_endpoint{},
      port_(std::move(port)),
      mode_(wanted.mode),
      flags_(wanted.flags),
      queues_(std::make_unique<Queues>()),
      waiter_(node().context.options().wait) {
  send_entries = or_else(wanted.send_entries, 64);
  free_entries = or_else(wanted.free_entries, 64);
  receive_entries = or_else(wanted.receive_entries, 64);
  buffer_bytes = or_else(wanted.buffer_bytes, 4096);
  queues_->sends.resize(send_entries);
  queues_->frees.resize(free_entries);
  queues_->receives.resize(receive_entries);
  indices = &queues_->indices;
  sends = queues_->sends.data();
  frees = queues_->frees.data();
  receives = queues_->receives.data();
}

Result<std::unique_ptr<Endpoint>> Endpoint::create(unet_node& node,
                                                   const unet_endpoint_options& wanted) {
  if (!makes_sense(wanted)) return Error{EINVAL, "options of a U-Net endpoint"};
  if (wanted.mode == UNET_ANYWHERE) {
    if (auto s = node.translate(); !s) return s.error();
  }
  auto port = port_for(node, wanted);
  if (!port) return port.error();
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(*port), wanted));
  endpoint->row_ = take_row();
  if (auto s = endpoint->make_area(wanted); !s) return s.error();
  const Held held(endpoint->port());
  endpoint->number_ = endpoint->port().add(*endpoint);
  endpoint->added_ = true;
  return endpoint;
}

Status Endpoint::make_area(const unet_endpoint_options& wanted) {
  if ((flags_ & UNET_EMULATED) != 0) {
    own_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (own_fd_ < 0) return Error{errno, "eventfd of an emulated endpoint"};
    row_->emulated.store(1, std::memory_order_relaxed);  // relaxed: for people
  }
  if (wanted.area_bytes == 0) return {};
  auto memory = Memory::allocate(wanted.area_bytes);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  area = reinterpret_cast<unsigned char*>(memory_->data());
  area_bytes = memory_->size();
  if ((flags_ & UNET_DIRECT_AREA) == 0) return {};
  auto exported =
      Aperture::export_memory(node().context, *memory_, 0, memory_->size(), Rights::kReadWrite);
  if (!exported) return exported.error();
  cookie_ = exported->cookie();
  aperture_ = std::move(*exported);
  return {};
}

Endpoint::~Endpoint() {
  (void)on_receive(nullptr, nullptr);
  {
    const Held held(*port_);
    rdma_.reset();
    while (!channels_.empty()) (void)close(channels_.begin()->first);
    if (added_) port_->remove(number_);
  }
  if (own_fd_ >= 0) ::close(own_fd_);
  if (both_fd_ >= 0) ::close(both_fd_);
  if (row_ != nullptr) clan::unet::library::give_back(row_);
}

unet_address Endpoint::address() const {
  const Address there = port_->messages.address();
  return {there.node.value, there.endpoint, there.uid, number_, 0};
}

}  // namespace clan::unet::library
