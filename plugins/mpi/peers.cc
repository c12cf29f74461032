// Ranks: how they meet, how they part, and how a death is noticed.
#include <clan/detail/clock.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "component.h"

namespace clan::mpi {
namespace {

constexpr std::int64_t kMeetOnHostMs = 10'000;

void read_boot_id(char (&boot)[40]) {
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t got = ::read(fd, boot, sizeof boot - 1);
  if (got < 0) boot[0] = '\0';
  ::close(fd);
}

/// Whether the kernel lets us copy out of the peer's memory: asked once, by doing it.
bool can_copy_from(Node& node, const Modex& peer) {
  if (!g_parameters.direct_copy) return false;
  auto probe = RemoteAperture::import(node.context, peer.probe, kMeetOnHostMs);
  std::uint64_t value = 0;
  return probe.ok() && probe->read(0, &value, sizeof value).ok() && value == peer.probe_value;
}

/// A peer whose segment this rank cannot map must not send here: Open MPI would answer it by
/// another transport, and both would wait for ever.
void refuse(Node& node, opal_proc_t* proc, NodeId peer, const Error& why) {
  if (why.err == ECONNREFUSED || why.err == ECONNRESET || why.err == ESTALE) return;  // it is gone
  const bool refused = node.segment.refuse(peer);
  if (refused && !std::exchange(node.full, true)) {
    log(0, "rank %u (job %x): %s; it and ranks that are met later go by another transport",
        static_cast<unsigned>(proc->proc_name.vpid), proc->proc_name.jobid, why.message().c_str());
  }
  if (refused) return;
  char text[240];
  std::snprintf(
      text, sizeof text,
      "btl clan: rank %u (job %x) sends by shared memory, and this rank cannot answer: %s "
      "(is the address space limited, ulimit -v?)",
      static_cast<unsigned>(proc->proc_name.vpid), proc->proc_name.jobid, why.message().c_str());
  node.failure = text;
  node.failed_proc = proc;
}

/// A channel of the peer's where the peer has one of this rank's as well, by one answer for both.
Result<RemoteSegment> meet_segment(Node& node, opal_proc_t* proc, const RdmaCookie& cookie) {
  auto remote = RemoteSegment::import(node.context, cookie, kMeetOnHostMs);
  if (!remote) {
    refuse(node, proc, cookie.node, remote.error());
    return remote;
  }
  if (!remote->fits(node.segment)) {
    return Error{EPROTO,
                 "the channels of one have no room for two of the longest records of the other "
                 "(btl_clan_channel_bytes)"};
  }
  if (remote->meet(node.segment, node.name)) return remote;
  if (!std::exchange(node.full, true)) {
    log(0,
        "a rank has no channel left for this one, or this one (%u) for that: such go by another "
        "transport (btl_clan_channels)",
        node.segment.channels());
  }
  return Error{ENOSPC, "no channel is left, here or there (btl_clan_channels)"};
}

std::unique_ptr<Endpoint> meet(Node& node, opal_proc_t* proc) {
  const auto rank = static_cast<unsigned>(proc->proc_name.vpid);
  Modex modex;
  if (!receive_modex(proc->proc_name, &modex)) {
    log(1, "rank %u (job %x) does not use btl clan", rank, proc->proc_name.jobid);
    return nullptr;
  }
  if (const char* why = out_of_reach(node.modex, modex)) {
    if (may_be_far(node, modex)) return nullptr;  // the other module has it
    log(1, "rank %u (job %x): %s", rank, proc->proc_name.jobid, why);
    return nullptr;
  }
  auto remote = meet_segment(node, proc, modex.segment);
  if (!remote) {
    log(1, "rank %u (job %x): %s", rank, proc->proc_name.jobid, remote.error().message().c_str());
    return nullptr;
  }
  auto endpoint = std::make_unique<Endpoint>(std::move(*remote), proc);
  endpoint->node = modex.segment.node;
  endpoint->wakeups = modex.wakeups;
  endpoint->can_copy = can_copy_from(node, modex);
  endpoint->counters = peer_counters(node, name_word(proc->proc_name));
  log(1, "rank %u (job %x) by shared memory, process %u%s", rank, proc->proc_name.jobid, modex.pid,
      endpoint->can_copy ? "" : ", without copies from process to process");
  return endpoint;
}

}  // namespace

bool receive_modex(const opal_process_name_t& name, Modex* modex) {
  void* bytes = nullptr;
  std::size_t size = 0;
  int rc = OPAL_SUCCESS;
  OPAL_MODEX_RECV(rc, &mca_btl_clan_component.btl_version, &name, reinterpret_cast<void**>(&bytes),
                  &size);
  const bool right = rc == OPAL_SUCCESS && bytes != nullptr && size == sizeof(Modex);
  if (right) std::memcpy(modex, bytes, sizeof(Modex));
  std::free(bytes);
  return right && modex->magic == Modex::kMagic;
}

const char* out_of_reach(const Modex& own, const Modex& peer) {
  if (std::memcmp(own.boot, peer.boot, sizeof own.boot) != 0) return "it is on another host";
  if (own.uid != peer.uid) return "it is another user's";
  if (own.namespace_of_network != peer.namespace_of_network)
    return "it is in another network namespace";
  return nullptr;
}

Result<Modex> make_modex(Node& node) {
  std::uint64_t& word = node.probe_word;
  word = node.context.node().value ^ 0x5a5a'5a5a'5a5a'5a5a;
  auto probe = Aperture::export_region(node.context, std::as_writable_bytes(std::span(&word, 1)),
                                       Rights::kRead);
  if (!probe) return probe.error();
  node.probe.emplace(std::move(*probe));
  auto wakeups = OobEndpoint::create(node.context);
  if (!wakeups) return wakeups.error();
  node.wakeups.emplace(std::move(*wakeups));
  Modex modex;
  modex.wakeups = node.wakeups->address();
  modex.segment = node.segment.cookie();
  modex.probe = node.probe->cookie();
  modex.probe_value = word;
  modex.pid = static_cast<std::uint32_t>(::getpid());
  modex.uid = ::geteuid();
  struct stat net {};
  if (::stat("/proc/self/ns/net", &net) == 0) modex.namespace_of_network = net.st_ino;
  read_boot_id(modex.boot);
  if (node.far) modex.far = node.far->own_address();
  return modex;
}

int add_procs(mca_btl_base_module_t*, std::size_t count, opal_proc_t** procs, Endpoint** endpoints,
              opal_bitmap_t* reachable) {
  Node* node = g_node;
  if (node == nullptr) return OPAL_ERR_NOT_AVAILABLE;
  std::lock_guard lock(node->endpoints_mutex);
  for (std::size_t i = 0; i < count; ++i) {
    endpoints[i] = nullptr;
    const std::uint64_t name = name_word(procs[i]->proc_name);
    if (name == node->name) continue;  // btl self's
    auto& endpoint = node->endpoints[name];
    if (!endpoint) endpoint = meet(*node, procs[i]);
    if (!endpoint) {
      node->endpoints.erase(name);
      continue;
    }
    node->has_met.store(true, std::memory_order_relaxed);  // relaxed: a hint
    endpoints[i] = endpoint.get();
    if (reachable == nullptr) continue;
    if (const int rc = opal_bitmap_set_bit(reachable, static_cast<int>(i)); rc != OPAL_SUCCESS)
      return rc;
  }
  return OPAL_SUCCESS;
}

namespace {

void end_endpoint(Endpoint& endpoint) {
  if (std::exchange(endpoint.ended, true)) return;
  say_sums(endpoint.name, *endpoint.counters);
  {
    std::lock_guard imports(endpoint.imports_mutex);
    endpoint.imports.clear();
  }
  endpoint.remote.leave_channel();
}

}  // namespace

// What a peer has had no room for yet it takes in its own MPI_Finalize; a peer that ends at the
// same moment does not.
void end_endpoints(Node& node, const std::vector<Endpoint*>& endpoints) {
  const std::uint64_t until = monotonic_ns() + 1'000'000'000;
  for (Endpoint* endpoint : endpoints) {
    if (!endpoint->ended) flush_last(node, *endpoint, until);
    end_endpoint(*endpoint);
  }
}

// Open MPI may name an endpoint twice: what has ended stays until the end.
int del_procs(mca_btl_base_module_t*, std::size_t count, opal_proc_t** procs,
              Endpoint** endpoints) {
  Node* node = g_node;
  if (node == nullptr) return OPAL_SUCCESS;
  std::vector<Endpoint*> ending;
  {
    std::lock_guard lock(node->endpoints_mutex);
    for (std::size_t i = 0; i < count; ++i) {
      const auto found = node->endpoints.find(name_word(procs[i]->proc_name));
      if (found == node->endpoints.end() || found->second.get() != endpoints[i]) continue;
      ending.push_back(found->second.get());
      node->ended.push_back(std::move(found->second));
      node->endpoints.erase(found);
    }
  }
  end_endpoints(*node, ending);
  return OPAL_SUCCESS;
}

void tell(Node& node, opal_proc_t* proc, const char* text) {
  if (node.error_callback == nullptr) {
    opal_output(0, "%s", text);
  } else {  // which prints it
    node.error_callback(&g_module, MCA_BTL_ERROR_FLAGS_FATAL, proc, const_cast<char*>(text));
  }
}

namespace {

/// Whether something is still on its way to that peer, or an answer on its way back.
bool anything_under_way(Node& node, Endpoint& endpoint) {
  {
    std::lock_guard lock(endpoint.lock);
    if (endpoint.pending.first != nullptr || !endpoint.sender.drained()) return true;
  }
  std::lock_guard lock(node.outstanding_mutex);
  return std::any_of(node.outstanding.begin(), node.outstanding.end(),
                     [&](const Outstanding& o) { return o.endpoint == &endpoint; });
}

/// Whose channels have nonsense in them. The name is that sender's own word, and may be anybody's.
void tell_of_nonsense(Node& node) {
  std::unique_lock lock(node.endpoints_mutex, std::try_to_lock);
  if (!lock) return;  // the next look does it
  node.nonsense = false;
  for (const auto& receiver : node.receivers) {
    if (!receiver->broken()) continue;
    // relaxed: for people
    const std::uint64_t name = receiver->view().control->name.load(std::memory_order_relaxed);
    char text[160];
    std::snprintf(text, sizeof text,
                  "btl clan: rank %u (job %x) has written nonsense into shared memory",
                  static_cast<unsigned>(name), static_cast<unsigned>(name >> 32));
    const auto found = node.endpoints.find(name);
    if (found != node.endpoints.end() && std::exchange(found->second->lost, true)) continue;
    opal_proc_t* proc = found != node.endpoints.end() ? found->second->proc : nullptr;
    lock.unlock();
    tell(node, proc, text);
    return;
  }
}

}  // namespace

namespace {

// Windows of the peer that it has freed: they keep their memory from the kernel as long as they are
// mapped here.
void drop_freed_memory(Endpoint& endpoint) {
  std::unique_lock lock(endpoint.imports_mutex, std::try_to_lock);
  if (lock) std::erase_if(endpoint.imports, [](const auto& i) { return !i.second->check().ok(); });
}

// A rank of another job that has ended, and nothing is on its way to it. Open MPI keeps its
// endpoint, and names it no more where the two have parted.
void give_up(Node& node, Endpoint& endpoint) {
  const std::size_t bytes = segment_bytes(1, g_parameters.bulk_bytes);
  if (!node.nowhere) {
    node.nowhere.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
    if (!node.nowhere) return;
    std::memset(node.nowhere.get(), 0, bytes);
  }
  const ChannelTable nowhere(node.nowhere.get(), 1, g_parameters.bulk_bytes);
  // relaxed: this process reads it
  nowhere.header().leaving.store(1, std::memory_order_relaxed);
  end_endpoint(endpoint);
  {
    std::lock_guard imports(endpoint.imports_mutex);
    endpoint.imports.clear();
  }
  std::lock_guard lock(endpoint.lock);
  std::lock_guard cells(endpoint.cells_lock);
  if (endpoint.cells_used != 0) return;  // another thread is at one: the next look does it
  endpoint.remote.give_up(nowhere);
  endpoint.sender.attach(nowhere.channel(0));
}

}  // namespace

void look_after_peers(Node& node) {
  if (node.nonsense) tell_of_nonsense(node);
  std::unique_lock lock(node.endpoints_mutex, std::try_to_lock);
  if (!lock) return;
  if (!node.failure.empty()) {
    const std::string failure = std::exchange(node.failure, {});
    lock.unlock();
    tell(node, node.failed_proc, failure.c_str());
    return;
  }
  for (auto& [name, endpoint] : node.endpoints) {
    Endpoint& e = *endpoint;
    drop_freed_memory(e);
    if (e.remote.given_up()) continue;
    const bool ended = !e.remote.check().ok();
    if (!ended && (e.lost || !e.sender.broken())) continue;
    if (e.remote.leaving() || e.lost) {
      if (!anything_under_way(node, e)) give_up(node, e);
      continue;
    }
    e.lost = true;
    // A job that has connected and disconnected may end as it likes; which of them have, Open MPI
    // does not tell us.
    if (e.name.jobid != OPAL_PROC_MY_NAME.jobid && !e.sender.broken() &&
        !anything_under_way(node, e)) {
      opal_output(
          0,
          "btl clan: rank %u of another job (%x) has died; nothing from here was on its way to it",
          static_cast<unsigned>(e.name.vpid), e.name.jobid);
      node.segment.forget(e.node);
      give_up(node, e);
      continue;
    }
    char text[160];
    std::snprintf(text, sizeof text, "btl clan: rank %u (job %x) %s",
                  static_cast<unsigned>(e.name.vpid), e.name.jobid,
                  e.sender.broken() ? "has written nonsense into shared memory" : "has died");
    opal_proc_t* proc = e.proc;
    lock.unlock();
    tell(node, proc, text);
    return;
  }
}

}  // namespace clan::mpi
