// Exports: memory, its names, its permissions, and its end.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "objects.h"

using namespace clan::vmmc;

namespace clan::vmmc {
namespace {

constexpr vmmc_permissions_t kOwn{-1, VMMC_READ | VMMC_WRITE};

// Returns the memory of vmmc_alloc() that contains the whole range, or null.
const Memory* memory_of(vmmc_t& v, const std::byte* address, std::size_t bytes) {
  std::lock_guard lock(v.mutex);
  auto at = v.memories.upper_bound(const_cast<std::byte*>(address));
  if (at == v.memories.begin()) return nullptr;
  const Memory& memory = (--at)->second;
  const auto offset = static_cast<std::size_t>(address - memory.data());
  return offset <= memory.size() && bytes <= memory.size() - offset ? &memory : nullptr;
}

Result<Aperture> export_it(vmmc_t& v, std::byte* address, std::size_t bytes,
                           const vmmc_permissions_t& permissions) {
  const auto rights = static_cast<Rights>(permissions.rights);
  const std::int64_t uid = permissions.uid == ::geteuid() ? -1 : permissions.uid;
  if (const Memory* memory = memory_of(v, address, bytes)) {
    return Aperture::export_memory(
        v.context, *memory, static_cast<std::size_t>(address - memory->data()), bytes, rights, uid);
  }
  return Aperture::export_region(v.context, {address, bytes}, rights, uid);
}

// The service comes last: once it exists, importers ask for the name.
Status name_it(vmmc_buffer& buffer, const char* name) {
  const BellNumber number = buffer.v->arrivals.address().endpoint;
  const auto note = std::as_bytes(std::span(&number, buffer.handler == nullptr ? 0 : 1));
  if (auto s = buffer.aperture->set_name(hash_of(name), note); !s) return s;
  auto service = OobEndpoint::create(buffer.v->context, service_of(name));
  if (!service) return service.error();
  buffer.name = std::move(*service);
  return {};
}

}  // namespace

std::string service_of(const char* name) { return "vmmc/" + std::string(name); }

std::uint64_t hash_of(const char* name) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325;
  for (; *name != 0; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 0x100000001b3;
  return hash;
}

}  // namespace clan::vmmc

extern "C" CLAN_EXPORT void* vmmc_alloc(vmmc_t* v, size_t bytes) {
  errno = -check(v);
  if (errno != 0) return nullptr;
  auto memory = clan::Memory::allocate(bytes);
  if (!memory) {
    errno = memory.error().err;
    return nullptr;
  }
  void* const address = memory->data();
  std::lock_guard lock(v->mutex);
  v->memories.emplace(address, std::move(*memory));
  return address;
}

extern "C" CLAN_EXPORT int vmmc_free(vmmc_t* v, void* memory) {
  if (const int rc = check(v); rc != 0) return rc;
  std::lock_guard lock(v->mutex);
  return v->memories.erase(memory) == 1 ? 0 : -EINVAL;
}

extern "C" CLAN_EXPORT int vmmc_export(vmmc_t* v, const char* name, void* address, size_t bytes,
                                       const vmmc_permissions_t* permissions,
                                       vmmc_handler_t handler, void* context,
                                       vmmc_buffer_t** buffer) {
  if (const int rc = check(v); rc != 0) return rc;
  const vmmc_permissions_t allowed = permissions == nullptr ? kOwn : *permissions;
  if (address == nullptr || bytes == 0 || buffer == nullptr || allowed.rights == 0 ||
      allowed.rights > (VMMC_READ | VMMC_WRITE)) {
    return -EINVAL;
  }
  auto aperture = export_it(*v, static_cast<std::byte*>(address), bytes, allowed);
  if (!aperture) return -aperture.error().err;
  auto made = std::make_shared<vmmc_buffer>();
  made->v = v;
  made->aperture = std::move(*aperture);
  made->handler = handler;
  made->context = context;
  const std::uint64_t key = made->aperture->cookie().key;
  {
    std::lock_guard lock(v->mutex);
    v->buffers.emplace(key, made);
  }
  if (name != nullptr) {
    if (auto s = name_it(*made, name); !s) {
      std::lock_guard lock(v->mutex);
      v->buffers.erase(key);
      return answer(s);
    }
  }
  clan::words::add(v->users, 1u);
  count(page().buffers);
  *buffer = made.get();
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_cookie(vmmc_buffer_t* buffer,
                                       unsigned char bytes[VMMC_COOKIE_BYTES]) {
  if (const int rc = check(buffer); rc != 0) return rc;
  clan::RdmaCookie cookie = buffer->aperture->cookie();
  if (buffer->handler != nullptr) cookie.reserved = buffer->v->arrivals.address().endpoint;
  std::memcpy(bytes, &cookie, sizeof cookie);
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_unexport(vmmc_buffer_t* buffer) {
  if (const int rc = check(buffer); rc != 0) return rc;
  vmmc_t& v = *buffer->v;
  if (clan::words::load_acquire(buffer->landings) != 0) return -EBUSY;
  if (auto s = buffer->aperture->revoke(); !s) return answer(s);
  buffer->name.reset();
  std::unique_lock lock(v.mutex);
  buffer->ended = true;
  buffer->pending.clear();
  v.changed.notify_all();
  v.changed.wait(lock,
                 [&] { return !buffer->runner || *buffer->runner == std::this_thread::get_id(); });
  const auto at = v.buffers.find(buffer->aperture->cookie().key);
  const std::shared_ptr<vmmc_buffer> last = at->second;
  v.buffers.erase(at);
  lock.unlock();
  clan::words::subtract(v.users, 1u);
  uncount(page().buffers);
  return 0;
}
