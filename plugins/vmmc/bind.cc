// Automatic update (SHRIMP, 3.2): bindings in three modes.
#include <algorithm>
#include <cstring>

#include "binding.h"
#include "send.h"

using namespace clan::vmmc;

namespace clan::vmmc {

Flusher::Flusher() : thread_([this] { run(); }) {}

Flusher::~Flusher() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Flusher::add(vmmc_binding& binding) {
  std::lock_guard lock(mutex_);
  binding.due_ns = monotonic_ns();
  bindings_.push_back(&binding);
  changed_.notify_all();
}

void Flusher::remove(vmmc_binding& binding) {
  std::lock_guard lock(mutex_);
  std::erase(bindings_, &binding);
}

void Flusher::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    std::uint64_t next = kNoDeadline;
    for (vmmc_binding* binding : bindings_) {
      if (monotonic_ns() >= binding->due_ns) {
        (void)binding->mirror->flush();  // vmmc_flush() returns a lasting error
        binding->due_ns = monotonic_ns() + binding->interval_ms * 1'000'000ull;
      }
      next = std::min(next, binding->due_ns);
    }
    if (next == kNoDeadline) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock,
                          std::chrono::steady_clock::time_point(std::chrono::nanoseconds(next)));
    }
  }
}

namespace {

bool is_aligned(std::uint64_t n) { return n % sizeof(std::uint64_t) == 0; }

// Memory of two bindings does not overlap.
bool claim(vmmc_t& v, std::byte* address, std::size_t bytes) {
  std::lock_guard lock(v.mutex);
  for (const auto& [at, n] : v.bound) {
    if (address < at + n && at < address + bytes) return false;
  }
  v.bound.emplace_back(address, bytes);
  return true;
}

void give_up(vmmc_t& v, std::byte* address) {
  std::lock_guard lock(v.mutex);
  std::erase_if(v.bound, [&](const auto& bound) { return bound.first == address; });
}

Status make_alias(vmmc_binding& binding) {
  std::byte* const shared = binding.remote->aperture->data();
  if (shared == nullptr) return Error{EOPNOTSUPP, "an alias of memory that is not mapped"};
  auto alias = Alias::map(shared + binding.offset, binding.address, binding.bytes);
  if (!alias) return alias.error();
  binding.address = (*alias)->address();
  binding.alias = std::move(*alias);
  return {};
}

// The program has an alias of the memory: so a child gets memory of its own, and the library can
// read the memory after the program has unmapped its alias.
Status give_memory(vmmc_binding& binding) {
  auto memory = Memory::allocate(binding.bytes);
  if (!memory) return memory.error();
  auto alias = Alias::map(memory->data(), nullptr, binding.bytes);
  if (!alias) return alias.error();
  binding.own = std::move(*memory);
  binding.address = (*alias)->address();
  binding.alias = std::move(*alias);
  return {};
}

Status make_mirror(vmmc_binding& binding) {
  std::span<const std::byte> lands;
  if (binding.landing != nullptr) lands = binding.landing->region().first(binding.bytes);
  const std::byte* const view = binding.own ? binding.own->data() : nullptr;
  auto mirror = Mirror::create(*binding.remote->aperture, binding.offset,
                               {{binding.address, binding.bytes}, view, lands});
  if (!mirror) return mirror.error();
  binding.mirror = std::move(*mirror);
  if (binding.interval_ms == 0) return {};
  vmmc_t& v = *binding.remote->v;
  std::lock_guard lock(v.mutex);
  if (!v.flusher) v.flusher = std::make_unique<Flusher>();
  v.flusher->add(binding);
  return {};
}

Status start(vmmc_binding& binding) {
  switch (binding.mode) {
    case VMMC_ALIAS: return make_alias(binding);
    case VMMC_MIRROR: return make_mirror(binding);
    default: return {};
  }
}

int bind(vmmc_remote_t& remote, vmmc_binding& binding) {
  if (binding.bytes == 0 || !has(remote, {binding.offset, binding.bytes})) return -ERANGE;
  const bool words = is_aligned(binding.offset) && is_aligned(binding.bytes) &&
                     is_aligned(reinterpret_cast<std::uintptr_t>(binding.address));
  if (binding.mode == VMMC_MIRROR && !words) return -EINVAL;
  if (binding.address == nullptr && binding.mode != VMMC_ALIAS) {
    if (auto s = give_memory(binding); !s) return answer(s);
  }
  const bool given = binding.address != nullptr;
  if (given && !claim(*remote.v, binding.address, binding.bytes)) return -EBUSY;
  if (auto s = start(binding); !s) {
    if (given) give_up(*remote.v, binding.address);
    return answer(s);
  }
  if (!given) (void)claim(*remote.v, binding.address, binding.bytes);
  words::add(remote.bindings, 1u);
  if (binding.landing != nullptr) words::add(binding.landing->landings, 1u);
  words::add(remote.v->users, 1u);
  count(page().bindings);
  return 0;
}

int make(vmmc_remote_t* remote, size_t offset, vmmc_buffer_t* landing, void* address, size_t bytes,
         int mode, unsigned interval_ms, vmmc_binding_t** binding) {
  if (const int rc = check(remote); rc != 0) return rc;
  if (binding == nullptr || mode < VMMC_ALIAS || mode > VMMC_MIRROR) return -EINVAL;
  auto made = std::make_unique<vmmc_binding>();
  made->remote = remote;
  made->landing = landing;
  made->mode = static_cast<vmmc_mode_t>(mode);
  made->offset = offset;
  made->address = static_cast<std::byte*>(address);
  made->bytes = bytes;
  made->interval_ms = interval_ms;
  if (const int rc = bind(*remote, *made); rc != 0) return rc;
  *binding = made.release();
  return 0;
}

// Returns where a store goes; null: it is outside the binding, or the mode is another one.
std::byte* place_of(const vmmc_binding_t& binding, std::size_t offset, std::size_t bytes) {
  const bool inside = offset <= binding.bytes && bytes <= binding.bytes - offset;
  return inside && binding.mode == VMMC_STORE ? binding.address + offset : nullptr;
}

}  // namespace
}  // namespace clan::vmmc

extern "C" CLAN_EXPORT int vmmc_bind(vmmc_remote_t* remote, size_t offset, void* address,
                                     size_t bytes, int mode, unsigned interval_ms,
                                     vmmc_binding_t** binding) {
  return make(remote, offset, nullptr, address, bytes, mode, interval_ms, binding);
}

extern "C" CLAN_EXPORT int vmmc_bind_both(vmmc_remote_t* remote, size_t offset,
                                          vmmc_buffer_t* landing, void* address, size_t bytes,
                                          unsigned interval_ms, vmmc_binding_t** binding) {
  if (const int rc = check(landing); rc != 0) return rc;
  if (bytes > landing->region().size() ||
      !is_aligned(reinterpret_cast<std::uintptr_t>(landing->region().data()))) {
    return -EINVAL;
  }
  return make(remote, offset, landing, address, bytes, VMMC_MIRROR, interval_ms, binding);
}

extern "C" CLAN_EXPORT int vmmc_unbind(vmmc_binding_t* binding) {
  if (const int rc = check(binding); rc != 0) return rc;
  vmmc_t& v = *binding->remote->v;
  if (binding->mirror && binding->interval_ms != 0) v.flusher->remove(*binding);
  give_up(v, binding->address);
  clan::words::subtract(binding->remote->bindings, 1u);
  if (binding->landing != nullptr) clan::words::subtract(binding->landing->landings, 1u);
  clan::words::subtract(v.users, 1u);
  uncount(page().bindings);
  delete binding;
  return 0;
}

extern "C" CLAN_EXPORT void* vmmc_bound(const vmmc_binding_t* binding) {
  return check(binding) != 0 ? nullptr : binding->address;
}

extern "C" CLAN_EXPORT int vmmc_flush(vmmc_binding_t* binding) {
  if (const int rc = check(binding); rc != 0) return rc;
  return answer(binding->mirror ? binding->mirror->flush() : binding->remote->aperture->check());
}

extern "C" CLAN_EXPORT int vmmc_store(vmmc_binding_t* binding, size_t offset, const void* source,
                                      size_t bytes) {
  if (const int rc = check(binding); rc != 0) return rc;
  std::byte* const here = place_of(*binding, offset, bytes);
  if (here == nullptr) return -EINVAL;
  std::memcpy(here, source, bytes);
  return answer(binding->remote->aperture->write(binding->offset + offset, source, bytes));
}

extern "C" CLAN_EXPORT int vmmc_store_word(vmmc_binding_t* binding, size_t offset, uint64_t word) {
  if (const int rc = check(binding); rc != 0) return rc;
  std::byte* const here = place_of(*binding, offset, sizeof word);
  if (here == nullptr || !is_aligned(reinterpret_cast<std::uintptr_t>(here))) return -EINVAL;
  clan::words::store_release(*reinterpret_cast<std::atomic<uint64_t>*>(here), word);
  return answer(binding->remote->aperture->publish(binding->offset + offset, word));
}

extern "C" CLAN_EXPORT int vmmc_compares(const vmmc_binding_t* binding) {
  if (const int rc = check(binding); rc != 0) return rc;
  return binding->mirror && binding->mirror->compares() ? 1 : 0;
}
