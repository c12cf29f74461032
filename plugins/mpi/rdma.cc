// Puts and gets: copies between our memory and a peer's, without the peer.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>

#include "completion.h"
#include "component.h"
#include "pool.h"

namespace clan::mpi {
namespace {

/// Where the registration of all memory begins (register_all_memory()).
constexpr std::uintptr_t kWholeBase = 4096;

std::uint64_t import_key(const RdmaCookie& cookie) {
  return std::uint64_t{cookie.aperture} << 32 | cookie.generation;
}

}  // namespace

Result<std::shared_ptr<RemoteAperture>> import(Node& node, Endpoint& endpoint,
                                               const Handle& handle) {
  const bool kept = handle.lasting != 0 || handle.base == kWholeBase;
  if (kept) {
    std::lock_guard lock(endpoint.imports_mutex);
    const auto found = endpoint.imports.find(import_key(handle.cookie));
    if (found != endpoint.imports.end()) return found->second;
  }
  auto remote = RemoteAperture::import(node.context, handle.cookie);
  if (!remote) return remote.error();
  auto shared = std::make_shared<RemoteAperture>(std::move(*remote));
  if (kept) {
    constexpr std::size_t kMostImports = 1024;
    std::lock_guard lock(endpoint.imports_mutex);
    if (endpoint.imports.size() >= kMostImports) endpoint.imports.clear();
    // Windows that are no more, whose memory this process would keep.
    std::erase_if(endpoint.imports, [](const auto& entry) { return !entry.second->check().ok(); });
    endpoint.imports[import_key(handle.cookie)] = shared;
  }
  return shared;
}

namespace {

/// Where the kernel forbids copies from process to process, the peer's driver thread does its half.
Status by_queue(Node& node, RemoteAperture& remote, std::uint64_t offset, void* local,
                std::size_t size, bool write) {
  std::lock_guard lock(node.rdma_mutex);
  const RdmaOptions options{.cookie = ++node.rdma_requests};
  if (auto s = write ? node.rdma->write(remote, offset, local, size, options)
                     : node.rdma->read(remote, offset, local, size, options);
      !s) {
    return s;
  }
  return wait_for(*node.rdma, options.cookie);
}

bool make_queue(Node& node) {
  std::lock_guard lock(node.rdma_mutex);
  if (node.rdma) return true;
  auto queue = RdmaQueue::create(node.context);
  if (!queue) return false;
  node.rdma.emplace(std::move(*queue));
  return true;
}

int copy(Endpoint& endpoint, void* local, std::uint64_t address, const Handle& given,
         std::size_t size, bool write) {
  Node& node = *g_node;
  Handle handle = handle_for(endpoint, given, address, size);
  auto remote = import(node, endpoint, handle);
  if (!remote && remote.error().err == ESTALE && find_handle(endpoint, address, size, &handle))
    remote = import(node, endpoint, handle);
  if (!remote) {
    log(2, "memory of rank %u: %s", static_cast<unsigned>(endpoint.name.vpid),
        remote.error().message().c_str());
    return OPAL_ERR_NOT_AVAILABLE;
  }
  const std::uint64_t offset = address - handle.base;
  const bool mapped = (*remote)->data() != nullptr;
  if (handle.lasting != 0 && !mapped && size <= kCellData &&
      move_by_peer(endpoint, local, address, handle.cookie, size, write)) {
    return OPAL_SUCCESS;
  }
  Status s;
  if (endpoint.can_copy || mapped) {
    s = write ? (*remote)->write(offset, local, size) : (*remote)->read(offset, local, size);
  } else {
    s = make_queue(node) ? by_queue(node, **remote, offset, local, size, write)
                         : Status(Error{ENOMEM, "no RDMA queue"});
  }
  if (s) return OPAL_SUCCESS;
  log(2, "%s %zu bytes of rank %u: %s", write ? "put of" : "get of", size,
      static_cast<unsigned>(endpoint.name.vpid), s.error().message().c_str());
  if (s.error().err == ESTALE && handle.lasting != 0) {
    std::lock_guard lock(endpoint.imports_mutex);
    endpoint.imports.erase(import_key(handle.cookie));
  }
  return OPAL_ERR_NOT_AVAILABLE;
}

/// Whether the receiver had better copy it, rather than both by way of the channel.
bool worth_fetching(Endpoint& endpoint, std::size_t size) {
  if (size >= g_parameters.get_bytes) return true;
  const bool less = FetchCost::counts(size) && endpoint.fetch_cost.known()
                        ? endpoint.fetch_cost.is_less(size, endpoint.copy_ps)
                        : endpoint.far;
  if (!less) return false;
  constexpr std::uint32_t kTryEvery = 128;  // threads move
  return ++endpoint.turn % kTryEvery != 0;
}

/// Registers the whole block of memory that MPI has allocated, when the first window lies there.
Handle* register_block(Node& node, const void* base, std::size_t size) {
  const auto block = pool().find(base, size);
  if (!block) return nullptr;
  std::lock_guard lock(node.blocks_mutex);
  auto& registration = node.blocks[block->data()];
  if (registration) return &registration->handle;
  auto aperture =
      Aperture::export_memory(node.context, *block, 0, block->size(), Rights::kReadWrite);
  if (!aperture) {
    node.blocks.erase(block->data());
    return nullptr;
  }
  registration = std::make_unique<Registration>(Registration{{}, std::move(*aperture)});
  registration->handle = {registration->aperture.cookie(),
                          reinterpret_cast<std::uintptr_t>(block->data()), 1, 1, 0};
  registration->handle.check = check_of(registration->handle);
  node.registrations.add(*registration);
  log(1, "%zu bytes that MPI has allocated are shared", block->size());
  return &registration->handle;
}

}  // namespace

std::unique_ptr<Registration> forget_block(Node& node, const void* base) {
  std::lock_guard lock(node.blocks_mutex);
  const auto found = node.blocks.find(base);
  if (found == node.blocks.end()) return nullptr;
  auto gone = std::move(found->second);
  node.blocks.erase(found);
  node.registrations.remove(*gone);
  return gone;
}

Status register_all_memory(Node& node) {
  constexpr std::uintptr_t kFirst = kWholeBase, kEnd = (std::uintptr_t{1} << 47) - 4096;
  auto aperture = Aperture::export_region(
      node.context, {reinterpret_cast<std::byte*>(kFirst), kEnd - kFirst}, Rights::kRead);
  if (!aperture) return aperture.error();
  node.all_memory = std::make_unique<Registration>(Registration{{}, std::move(*aperture)});
  node.all_memory->handle = {node.all_memory->aperture.cookie(), kFirst, 1, 0, 0};
  node.all_memory->handle.check = check_of(node.all_memory->handle);
  return {};
}

// Open MPI registers a message that it would have its receiver fetch, and the memory of windows.
// Null: it sends the message by the channel instead.
Handle* register_memory(mca_btl_base_module_t*, Endpoint* endpoint, void* base, std::size_t size,
                        std::uint32_t flags) {
  Node& node = *g_node;
  const bool window = endpoint == MCA_BTL_ENDPOINT_ANY;
  if (!window && flags == MCA_BTL_REG_FLAG_REMOTE_READ) {
    if (!endpoint->can_copy || !worth_fetching(*endpoint, size)) return nullptr;
    if (!endpoint->hears_us) endpoint->hears_us = node.segment.hears(endpoint->node);
    if (!endpoint->hears_us || !make_queue(node)) return nullptr;
    words::add(node.offered, 1);  // PAIR mpi.offered: the queue is there
    return &node.all_memory->handle;
  }
  // where a get goes
  if (!window && (flags & MCA_BTL_REG_FLAG_LOCAL_WRITE) != 0) return &node.local_memory;
  if (size == 0 || !make_queue(node)) return nullptr;
  if (window) {
    if (!start_server(node)) return nullptr;
    if (Handle* handle = register_block(node, base, size)) return handle;
  }
  const bool writes = (flags & ~static_cast<std::uint32_t>(MCA_BTL_REG_FLAG_REMOTE_READ)) != 0;
  auto aperture = Aperture::export_region(node.context, {static_cast<std::byte*>(base), size},
                                          writes ? Rights::kReadWrite : Rights::kRead);
  if (!aperture) return nullptr;
  auto* registration = new Registration{{}, std::move(*aperture)};
  registration->handle.cookie = registration->aperture.cookie();
  registration->handle.base = reinterpret_cast<std::uintptr_t>(base);
  registration->handle.lasting = window ? 1 : 0;
  registration->handle.check = check_of(registration->handle);
  if (window) node.registrations.add(*registration);
  return &registration->handle;
}

int deregister_memory(mca_btl_base_module_t*, Handle* handle) {
  if (g_node != nullptr && handle == &g_node->local_memory) return OPAL_SUCCESS;
  if (g_node != nullptr && handle == &g_node->all_memory->handle) {
    g_node->offered.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a count alone
    return OPAL_SUCCESS;
  }
  if (handle->block != 0) return OPAL_SUCCESS;  // the pool's, for other windows on the same memory
  auto* registration = reinterpret_cast<Registration*>(handle);
  if (g_node != nullptr && handle->lasting != 0) g_node->registrations.remove(*registration);
  delete registration;
  return OPAL_SUCCESS;
}

int put(mca_btl_base_module_t* module, Endpoint* endpoint, void* local, std::uint64_t remote,
        Handle* local_handle, Handle* remote_handle, std::size_t size, int, int,
        mca_btl_base_rdma_completion_fn_t callback, void* context, void* data) {
  if (const int rc = copy(*endpoint, local, remote, *remote_handle, size, true); rc != OPAL_SUCCESS)
    return rc;
  endpoint->counters->puts.fetch_add(1, std::memory_order_relaxed);          // relaxed: for people
  endpoint->counters->put_bytes.fetch_add(size, std::memory_order_relaxed);  // relaxed: for people
  if (callback != nullptr)
    callback(module, endpoint, local, local_handle, context, data, OPAL_SUCCESS);
  return OPAL_SUCCESS;
}

int get(mca_btl_base_module_t* module, Endpoint* endpoint, void* local, std::uint64_t remote,
        Handle* local_handle, Handle* remote_handle, std::size_t size, int, int,
        mca_btl_base_rdma_completion_fn_t callback, void* context, void* data) {
  const bool timed = remote_handle->base == kWholeBase && FetchCost::counts(size);
  const std::uint64_t start = timed ? monotonic_ns() : 0;
  if (const int rc = copy(*endpoint, local, remote, *remote_handle, size, false);
      rc != OPAL_SUCCESS)
    return rc;
  if (timed) endpoint->fetch_cost.note(size, monotonic_ns() - start);
  endpoint->counters->gets.fetch_add(1, std::memory_order_relaxed);          // relaxed: for people
  endpoint->counters->get_bytes.fetch_add(size, std::memory_order_relaxed);  // relaxed: for people
  if (callback != nullptr)
    callback(module, endpoint, local, local_handle, context, data, OPAL_SUCCESS);
  return OPAL_SUCCESS;
}

}  // namespace clan::mpi
