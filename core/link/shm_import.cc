// The link on one host: imports the peer's memory, grants ours, and answers the peer's requests.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "link/shm_link.h"

namespace clan::link {

using nic::RemoteHandle;

namespace {

constexpr std::size_t kMostImported = 16384;  ///< memories of one peer: mappings are scarce
// Nor may a peer fill our address space with memory that nobody has.
std::uint64_t most_imported_bytes() {
  static const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return 2 * pages * kPageSize;
}
constexpr auto kAnswerTimeout = std::chrono::seconds(10);

}  // namespace

const shm::ApertureEntry* ShmLink::entry_of(const RemoteHandle& handle) const {
  return &image_.tables->apertures[handle.aperture % shm::kMaxApertures];
}

// The cookie against the peer's table. EAGAIN: right, but its memory is not mapped here yet.
Result<RemoteHandle> ShmLink::handle_for(const RdmaCookie& cookie) {
  if (cookie.node != peer_.node || cookie.aperture >= shm::kMaxApertures) {
    return Error{ESTALE, "RDMA cookie of another node"};
  }
  const shm::ApertureEntry& entry = image_.tables->apertures[cookie.aperture];
  // PAIR aperture.generation: sees the entry published by Nic::export_aperture
  auto generation = static_cast<std::uint32_t>(words::load_acquire(entry.generation));
  if (generation != cookie.generation || (generation & 1) == 0) {
    return Error{ESTALE, "RDMA cookie of a revoked aperture"};
  }
  if (entry.key_image.load(std::memory_order_relaxed) != nic::key_image(cookie)) {
    return Error{EACCES, "RDMA cookie with a wrong key"};
  }
  RemoteHandle handle;
  handle.armed = &entry.armed;
  handle.generation = &entry.generation;
  handle.length = cookie.length;
  handle.aperture = cookie.aperture;
  handle.generation_wanted = cookie.generation;
  handle.rights = cookie.rights;
  handle.light_fence = light_fence_;
  handle.key = cookie.key;
  handle.memory_id = entry.memory.load(std::memory_order_relaxed);
  if (handle.memory_id == 0) return handle;
  std::uint64_t offset = entry.memory_offset.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  auto it = imported_.find(handle.memory_id);
  if (it == imported_.end()) return Error{EAGAIN, "memory not mapped yet"};
  std::size_t size = it->second.mapping.size();
  if (offset > size || cookie.length > size - offset) {
    return Error{EPROTO, "the peer's aperture reaches beyond its memory"};
  }
  if (it->second.read_only && includes(cookie.rights, Rights::kWrite)) {
    return Error{EPROTO, "the peer's memory is mapped read-only"};
  }
  handle.mapped = it->second.mapping.data() + offset;
  ++it->second.references;
  return handle;
}

Result<RemoteHandle> ShmLink::import(const RdmaCookie& cookie, bool may_wait) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  auto handle = handle_for(cookie);
  if (handle.ok() || handle.error().err != EAGAIN || !may_wait) return handle;
  auto answer = ask({.type = ControlType::kImport, .cookie = cookie});
  if (!answer) return answer.error();
  if (*answer == EMFILE) {
    return Error{EMFILE,
                 "no file descriptor is left to import an aperture: raise the limit (ulimit -n)"};
  }
  if (*answer != 0) return Error{*answer, "the owner of the aperture refused the import"};
  handle = handle_for(cookie);
  if (handle.ok() || handle.error().err != EAGAIN) return handle;
  return Error{ENOMEM, "the aperture's memory could not be mapped here"};
}

void ShmLink::release(const RemoteHandle& handle) {
  if (handle.memory_id == 0 || handle.mapped == nullptr) return;
  Mapping gone;
  std::lock_guard lock(mutex_);
  auto it = imported_.find(handle.memory_id);
  if (it != imported_.end() && --it->second.references <= 0 && !it->second.granted) {
    imported_bytes_ -= it->second.mapping.size();
    gone = std::move(it->second.mapping);
    imported_.erase(it);
  }
}

Status ShmLink::grant(const RdmaCookie& cookie) {
  auto grant = nic_.check_cookie(cookie);
  if (!grant) return grant.error();
  if (grant->memory_id == 0) return {};
  // Held until it is sent: a thread that finds it granted may name it in a message.
  std::lock_guard lock(mutex_);
  auto at = std::lower_bound(granted_.begin(), granted_.end(), grant->memory_id);
  if (at != granted_.end() && *at == grant->memory_id) return {};
  const ControlMessage message{.type = ControlType::kMemory,
                               .memory_id = grant->memory_id,
                               .memory_bytes = grant->memory_bytes,
                               .flags = grant->read_only ? kMemoryReadOnly : 0};
  int fd = grant->memfd;
  if (auto s = send(message, {&fd, 1}); !s) return s;
  granted_.insert(at, grant->memory_id);
  return {};
}

// --- requests to the peer's driver --------------------------------------------------------------

// What the peer has answered, 0 or an errno value.
Result<int> ShmLink::ask(ControlMessage message) {
  if (reactor_.on_reactor_thread())
    return Error{EDEADLK, "the driver thread cannot wait for itself"};
  std::unique_lock lock(mutex_);
  const std::uint64_t request = message.request = next_request_++;
  answers_[request] = {};
  lock.unlock();
  Status sent = send(message, {});
  lock.lock();
  if (sent) answered_.wait_for(lock, kAnswerTimeout, [&] { return answers_[request] || !alive(); });
  const std::optional<int> answer = answers_[request];
  answers_.erase(request);
  if (!sent) return sent.error();
  if (answer) return *answer;
  if (!alive()) return Error{ECONNRESET, "the peer went away"};
  return Error{ETIMEDOUT, "the peer's driver did not answer within 10 s"};
}

void ShmLink::serve_import(const ControlMessage& message) {
  ControlMessage reply{.type = ControlType::kImportReply, .request = message.request};
  auto grant = nic_.check_cookie(message.cookie);
  if (!grant) {
    reply.err = grant.error().err;
    (void)send(reply, {});
    return;
  }
  reply.memory_id = grant->memory_id;
  reply.memory_bytes = grant->memory_bytes;
  reply.flags = grant->read_only ? kMemoryReadOnly : 0;
  int fd = grant->memfd;
  auto sent = send(reply, fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>());
  if (sent || fd < 0) return;
  reply.err = sent.error().err;  // the descriptor could not be passed: a thread waits there
  (void)send(reply, {});
}

void ShmLink::accept_memory(const ControlMessage& message, Datagram& datagram) {
  if (datagram.fd_count != 1 || message.memory_id == 0) return;
  bool read_only = (message.flags & kMemoryReadOnly) != 0;
  std::lock_guard lock(mutex_);
  if (const auto known = imported_.find(message.memory_id); known != imported_.end()) {
    // Asked for before: the peer takes it from now on that we have it.
    if (message.type == ControlType::kMemory) known->second.granted = true;
    return;
  }
  if (imported_.size() >= kMostImported ||
      message.memory_bytes > most_imported_bytes() - imported_bytes_) {
    CLAN_INFO("memory of peer %d not mapped: it shares more than this machine has",
              static_cast<int>(remote_pid()));
    return;
  }
  auto mapping = Mapping::map(datagram.fds[0].get(), message.memory_bytes,
                              read_only ? Mapping::Access::kRead : Mapping::Access::kReadWrite);
  if (!mapping) {
    CLAN_WARN("memory of peer %d: %s", static_cast<int>(remote_pid()),
              mapping.error().message().c_str());
    if (mapping.error().err == ENOMEM) ask_again(message);  // else it is the peer's doing
    return;
  }
  imported_bytes_ += mapping->size();
  imported_.emplace(message.memory_id, Imported{std::move(*mapping), 0, read_only,
                                                message.type == ControlType::kMemory});
}

}  // namespace clan::link
