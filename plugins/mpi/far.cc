#include "far.h"

#include <clan/detail/clock.h>
#include <clan/face/settings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "component.h"

namespace clan::mpi {
namespace {

constexpr std::int64_t kMeetAddressMs = 3000;  ///< for each address of a peer
constexpr int kMostMessages = 64;              ///< of one call of progress(): others wait, too
constexpr std::uint64_t kLastNs = 1'000'000'000;

/// How a rank is called where it listens.
std::string service_of(const opal_process_name_t& name, std::uint32_t pid) {
  char text[64];
  std::snprintf(text, sizeof text, "mpi.%x.%x.%u", name.jobid, static_cast<unsigned>(name.vpid),
                pid);
  return text;
}

bool is_elsewhere(const Modex& own, const Modex& peer) {
  return std::memcmp(own.boot, peer.boot, sizeof own.boot) != 0 ||
         own.namespace_of_network != peer.namespace_of_network;
}

}  // namespace

NetworkOptions far_options() {
  const auto parameter = [](const char* name) -> const char* {
    const char* value = std::strcmp(name, "CLAN_KEY") == 0            ? g_parameters.key
                        : std::strcmp(name, "CLAN_NETWORK_MODE") == 0 ? g_parameters.network_mode
                                                                      : nullptr;
    return value != nullptr && *value != '\0' ? value : nullptr;
  };
  const auto given = [&](const char* name) -> const char* {
    const char* value = parameter(name);
    return value != nullptr ? value : std::getenv(name);
  };
  constexpr const char* kLoss = "ranks of other hosts go without CLAN";
  const auto say_wrong = [&](const WrongSetting& wrong) {
    if (parameter(wrong.name) == nullptr) {
      complain(wrong, "", kLoss);
    } else if (speaks_for_host()) {
      const bool key = std::strcmp(wrong.name, "CLAN_KEY") == 0;
      log(0, "btl_clan_%s=%s %s; %s", key ? "key" : "network_mode", wrong.value, wrong.why, kLoss);
    }
  };
  NetworkOptions options = take_network_settings(given, say_wrong);
  options.directory_port = 0;  // ranks tell each other their ports
  return options;
}

bool may_be_far(const Node& node, const Modex& peer) {
  return node.far && peer.far.port != 0 && peer.far.mode == node.far->own_address().mode &&
         is_elsewhere(node.modex, peer);
}

Far::Far(MessageEndpoint messages, std::vector<Interface> own, FarAddress address)
    : messages_(std::move(messages)), own_(std::move(own)), address_(address) {}

std::unique_ptr<Far> Far::create(Context& context, NetworkOptions::Mode mode,
                                 const opal_process_name_t& name, std::string* why) {
  auto own = interfaces();
  const FarAddress address = far_address(own, context.network_port(), mode);
  if (address.port == 0) {
    *why = "no interface with an address that other hosts can reach";
    return nullptr;
  }
  auto messages =
      MessageEndpoint::create(context, service_of(name, static_cast<std::uint32_t>(::getpid())));
  if (!messages) {
    *why = messages.error().message();
    return nullptr;
  }
  return std::unique_ptr<Far>(new Far(std::move(*messages), std::move(own), address));
}

// --- ranks meet and part -------------------------------------------------------------------------

std::unique_ptr<FarPeer> Far::meet(Node& node, opal_proc_t* proc, const Modex& modex) {
  const auto rank = static_cast<unsigned>(proc->proc_name.vpid);
  const std::string service = service_of(proc->proc_name, modex.pid);
  std::string why = "none of its addresses can be another host's";
  for (const std::string& host : hosts_to_try(own_, modex.far)) {
    const std::string name = "udp:" + host + ":" + std::to_string(modex.far.port) + "/" + service;
    auto index = messages_.connect(name, kMeetAddressMs);
    if (!index) {
      why = host + ": " + index.error().message();
      continue;
    }
    const std::size_t most = sizeof(FarHead) + g_far_module.btl_max_send_size;
    if (messages_.max_eager(*index) < most || !greet(*index)) {
      why = host + ": its ring is too small for what this rank sends";
      messages_.disconnect(*index);
      continue;
    }
    log(1, "rank %u (job %x) by UDP, %s port %u, process %u", rank, proc->proc_name.jobid,
        host.c_str(), modex.far.port, modex.pid);
    auto* counters = peer_counters(node, name_word(proc->proc_name));
    return std::make_unique<FarPeer>(FarPeer{*index, *index, proc, proc->proc_name, counters, {}});
  }
  log(0, "rank %u (job %x) is not reached by UDP (%s): another transport has it", rank,
      proc->proc_name.jobid, why.c_str());
  return nullptr;
}

bool Far::greet(PeerIndex index) {
  const opal_process_name_t name = OPAL_PROC_MY_NAME;
  auto room = messages_.reserve(index, sizeof(FarHead) + sizeof name);
  if (!room) return false;
  FarHead head;
  head.hello = 1;
  std::memcpy(room->data(), &head, sizeof head);
  std::memcpy(room->data() + sizeof head, &name, sizeof name);
  messages_.commit(index, sizeof head + sizeof name);
  return true;
}

FarPeer* Far::add(Node& node, opal_proc_t* proc) {
  Modex modex;
  if (!receive_modex(proc->proc_name, &modex) || !may_be_far(node, modex)) return nullptr;
  const Lock lock(mutex_);
  auto& peer = peers_[name_word(proc->proc_name)];
  if (!peer) peer = meet(node, proc, modex);
  if (!peer) {
    peers_.erase(name_word(proc->proc_name));
    return nullptr;
  }
  for (const auto& [from, name] : senders_) {
    if (name_word(name) == name_word(peer->name)) share_connection(*peer, from);
  }
  return peer.get();
}

// By the connection that the peer has made, if its name is the lower one. What it has said of its
// name is input: both connections have to end at the same endpoint.
void Far::share_connection(FarPeer& peer, PeerIndex from) {
  if (name_word(peer.name) > name_word(OPAL_PROC_MY_NAME) || peer.lost) return;
  const auto there = messages_.peer_address(from), known = messages_.peer_address(peer.own);
  if (!there || !known || there->node != known->node || there->endpoint != known->endpoint) return;
  if (messages_.max_eager(from) >= sizeof(FarHead) + g_far_module.btl_max_send_size)
    peer.index = from;
}

// Open MPI may name an endpoint twice: what has ended stays until the end.
void Far::remove(Node&, FarPeer& peer) {
  Lock lock(mutex_);
  const auto found = peers_.find(name_word(peer.name));
  if (found == peers_.end() || found->second.get() != &peer) return;
  ended_.push_back(std::move(found->second));
  peers_.erase(found);
  flush_last(peer, monotonic_ns() + kLastNs, lock);
  messages_.disconnect(peer.own);
}

void Far::end(Node&) {
  Lock lock(mutex_);
  const std::uint64_t until = monotonic_ns() + kLastNs;
  std::vector<FarPeer*> all;
  for (auto& [name, peer] : peers_) all.push_back(peer.get());
  for (FarPeer* peer : all) flush_last(*peer, until, lock);
}

// --- sending -------------------------------------------------------------------------------------

// Empty: no room, or the peer has gone, which tell_of_departed() says.
std::span<std::byte> Far::room_for(FarPeer& peer, std::uint8_t tag, std::size_t bytes) {
  if (peer.lost) return {};
  auto room = messages_.reserve(peer.index, sizeof(FarHead) + bytes);
  if (!room) {
    peer.lost = room.error().err != EAGAIN;
    return {};
  }
  FarHead head;
  head.tag = tag;
  std::memcpy(room->data(), &head, sizeof head);
  return room->subspan(sizeof head);
}

bool Far::write(FarPeer& peer, Fragment& fragment) {
  const mca_btl_base_segment_t& head = fragment.segments[0];
  const mca_btl_base_segment_t& rest = fragment.segments[1];
  const std::size_t more = fragment.base.des_segment_count > 1 ? rest.seg_len : 0;
  const auto room = room_for(peer, fragment.tag, head.seg_len + more);
  if (room.data() == nullptr) return false;
  std::memcpy(room.data(), head.seg_addr.pval, head.seg_len);
  if (more > 0) std::memcpy(room.data() + head.seg_len, rest.seg_addr.pval, more);
  messages_.commit(peer.index, sizeof(FarHead) + head.seg_len + more);
  count_record(*peer.counters, head.seg_len + more);
  return true;
}

bool Far::send_now(FarPeer& peer, opal_convertor_t* convertor, const void* header,
                   std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t tag) {
  const Lock lock(mutex_);
  if (peer.pending.first != nullptr) return false;
  const auto room = room_for(peer, tag, header_bytes + payload_bytes);
  if (room.data() == nullptr) return false;
  std::memcpy(room.data(), header, header_bytes);
  if (payload_bytes != 0) {
    iovec vector{room.data() + header_bytes, payload_bytes};
    std::uint32_t vectors = 1;
    std::size_t packed = payload_bytes;
    (void)opal_convertor_pack(convertor, &vector, &vectors, &packed);
    if (packed != payload_bytes) return false;  // nothing has been committed
  }
  messages_.commit(peer.index, sizeof(FarHead) + header_bytes + payload_bytes);
  count_record(*peer.counters, header_bytes + payload_bytes);
  return true;
}

bool Far::may_wait(const FarPeer& peer) {
  const Lock lock(mutex_);
  return peer.pending.size < kMostPending;
}

int Far::send(Fragment& fragment, FarPeer& peer) {
  {
    const Lock lock(mutex_);
    if (peer.pending.first != nullptr || !write(peer, fragment)) {
      g_node->page->queued.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
      peer.pending.push(&fragment);
      ++waiting_;
      return OPAL_SUCCESS;
    }
  }
  complete(g_far_module, &fragment,
           (fragment.base.des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK) != 0);
  return 1;
}

int Far::flush(FarPeer& peer, Lock& lock) {
  int gone = 0;
  while (peer.pending.first != nullptr && write(peer, *peer.pending.first)) {
    Fragment* fragment = peer.pending.pop();
    --waiting_;
    lock.unlock();
    complete(g_far_module, fragment, true);
    lock.lock();
    ++gone;
  }
  return gone;
}

void Far::flush_last(FarPeer& peer, std::uint64_t until_ns, Lock& lock) {
  if (std::exchange(peer.ended, true)) return;
  while (peer.pending.first != nullptr && !peer.lost && monotonic_ns() < until_ns) {
    if (flush(peer, lock) == 0) (void)messages_.spin();
  }
  if (peer.pending.first != nullptr) {
    log(1, "rank %u has not taken the last %zu fragments", static_cast<unsigned>(peer.name.vpid),
        peer.pending.size);
    waiting_ -= peer.pending.size;
    peer.pending = {};  // their memory is the lists'
  }
  say_sums(peer.name, *peer.counters);
}

// --- receiving -----------------------------------------------------------------------------------

// Under the mutex. False: it is for nobody but this class.
bool Far::take(Node& node, std::vector<std::byte>& bytes) {
  auto message = messages_.peek_fetched();
  FarHead head;
  const bool whole = !message->offered && message->bytes.size() >= sizeof head;
  if (whole) std::memcpy(&head, message->bytes.data(), sizeof head);
  opal_process_name_t name;
  const auto rest = whole ? message->bytes.subspan(sizeof head) : std::span<const std::byte>();
  if (whole && head.hello == 1 && rest.size() == sizeof name) {
    std::memcpy(&name, rest.data(), sizeof name);
    senders_.emplace(message->from, name);
    const auto peer = peers_.find(name_word(name));
    if (peer != peers_.end()) share_connection(*peer->second, message->from);
  } else if (!whole || head.hello != 0) {
    node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
  } else {
    bytes.assign(message->bytes.begin(), message->bytes.end());
    messages_.drop();
    return true;
  }
  messages_.drop();
  return false;
}

int Far::progress(Node& node) {
  Lock lock(mutex_, std::try_to_lock);
  if (!lock) return 0;
  // It fetches packets: the looks below need not, or each message would cost two system calls that
  // find nothing before Open MPI hears that the next one may be sent.
  const bool quiet = messages_.quiet();
  if (quiet && waiting_ == 0) return 0;
  int events = 0;
  const auto depth = static_cast<std::size_t>(node.depth);
  if (buffers_.size() <= depth) buffers_.resize(depth + 1);
  std::vector<std::byte>& bytes = buffers_[depth];
  for (; events < kMostMessages && messages_.peek_fetched().ok(); ++events) {
    if (!take(node, bytes)) continue;
    lock.unlock();
    Record record;
    record.tag = static_cast<std::uint8_t>(bytes[0]);
    record.data = bytes.data() + sizeof(FarHead);
    record.bytes = bytes.size() - sizeof(FarHead);
    if (!deliver(node, g_far_module, record)) {
      node.page->nonsense.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    }
    lock.lock();
  }
  std::vector<FarPeer*> waiting;
  for (auto& [name, peer] : peers_) {
    if (waiting_ != 0 && peer->pending.first != nullptr) waiting.push_back(peer.get());
  }
  for (FarPeer* peer : waiting) events += flush(*peer, lock);
  tell_of_departed(node, lock);
  return events;
}

void Far::tell_of_departed(Node& node, Lock& lock) {
  PeerIndex index = 0;
  int reason = 0;
  while (messages_.take_departed(&index, &reason)) {
    opal_process_name_t name{};
    opal_proc_t* proc = nullptr;
    bool known = false;
    if (const auto sender = senders_.find(index); sender != senders_.end()) {
      name = sender->second;
      known = true;
      senders_.erase(sender);
    }
    for (auto& [word, peer] : peers_) {
      if (peer->own != index && (!known || word != name_word(name))) continue;
      known = true;
      name = peer->name;
      proc = peer->proc;
      peer->lost = true;
    }
    // All that it has sent has been taken.
    messages_.disconnect(index);
    if (!known || reason == 0) continue;  // a stranger, or one that has ended in order
    char text[160];
    std::snprintf(text, sizeof text,
                  "btl clan: rank %u (job %x) of another host has died, or the "
                  "path to it has gone",
                  static_cast<unsigned>(name.vpid), name.jobid);
    if (name.jobid != OPAL_PROC_MY_NAME.jobid) {  // it may have disconnected, which nobody tells us
      opal_output(0, "%s", text);
      continue;
    }
    lock.unlock();
    tell(node, proc, text);
    lock.lock();
  }
}

}  // namespace clan::mpi
