// Ranks of other hosts: a module of its own, which sends messages by the engine's UDP link. Used
// where btl_clan_key or CLAN_KEY (or a network mode that needs no key) says so.
//
//   rank ── FarHead, ob1's header, bytes ──> MessageEndpoint ══ UDP ══> MessageEndpoint of the peer
//
// Each rank makes a connection of its own when Open MPI names the peer; one that cannot be reached
// in time is left to btl tcp. Once both connections are there, both ranks send by that of the rank
// whose name is the lower: so what one sends acknowledges what the other has sent, and the other's
// packets are not followed by one for that alone. Windows go by Open MPI's own messages.
#pragma once

#include <clan/face/mpi_face.h>
#include <clan/message.h>

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "far_address.h"
#include "fragment.h"
#include "open_mpi.h"

namespace clan::mpi {

struct Modex;

/// The longest piece of a message: some two trains of packets.
constexpr std::size_t kFarFragment = 112 * 1024;
/// The longest message with ob1's header that goes without asking the receiver first: a rendezvous
/// costs a round trip.
constexpr std::size_t kFarEager = 64 * 1024 + 256;

/// Before each message. Both ends run one version: the modex says so.
struct FarHead {
  std::uint8_t tag = 0;
  std::uint8_t hello = 0;  ///< 1: the first message of a sender, with its name behind this
  std::uint8_t zero[6] = {};
};
static_assert(sizeof(FarHead) == 8);

/// A rank of another host. Open MPI has it as an endpoint, of the other module's type; what is not
/// constant is under Far's mutex.
struct FarPeer {
  PeerIndex own;    ///< the connection that this rank has made
  PeerIndex index;  ///< the one that it sends by
  opal_proc_t* proc;
  opal_process_name_t name;
  MpiPeer* counters;
  FragmentQueue pending;
  bool lost = false;  ///< nothing can be sent any more
  bool ended = false;

  static FarPeer& of(Endpoint* endpoint) { return *reinterpret_cast<FarPeer*>(endpoint); }
  Endpoint* endpoint() { return reinterpret_cast<Endpoint*>(this); }
};

/// What a process has one of, beside Node. Thread-safe; progress() is of the thread that
/// progresses.
class Far {
 public:
  /// Null: other hosts are not asked for, or `why` not.
  static std::unique_ptr<Far> create(Context& context, NetworkOptions::Mode mode,
                                     const opal_process_name_t& name, std::string* why);

  const FarAddress& own_address() const { return address_; }
  FarPeer* add(Node& node, opal_proc_t* proc);
  void remove(Node& node, FarPeer& peer);
  bool may_wait(const FarPeer& peer);
  int send(Fragment& fragment, FarPeer& peer);
  /// Into the peer's ring at once. False: there is no room.
  bool send_now(FarPeer& peer, opal_convertor_t* convertor, const void* header,
                std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t tag);
  int progress(Node& node);
  /// Sends what waits, for at most a second in all, and says what was sent.
  void end(Node& node);

 private:
  using Lock = std::unique_lock<std::mutex>;
  Far(MessageEndpoint messages, std::vector<Interface> own, FarAddress address);
  std::unique_ptr<FarPeer> meet(Node& node, opal_proc_t* proc, const Modex& modex);
  bool greet(PeerIndex index);
  void share_connection(FarPeer& peer, PeerIndex from);
  std::span<std::byte> room_for(FarPeer& peer, std::uint8_t tag, std::size_t bytes);
  bool write(FarPeer& peer, Fragment& fragment);
  bool take(Node& node, std::vector<std::byte>& bytes);
  int flush(FarPeer& peer, Lock& lock);
  void flush_last(FarPeer& peer, std::uint64_t until_ns, Lock& lock);
  void tell_of_departed(Node& node, Lock& lock);

  std::mutex mutex_;  ///< not held in callbacks into Open MPI
  MessageEndpoint messages_;
  const std::vector<Interface> own_;
  const FarAddress address_;
  std::unordered_map<std::uint64_t, std::unique_ptr<FarPeer>> peers_;  ///< by name
  std::vector<std::unique_ptr<FarPeer>> ended_;
  std::unordered_map<PeerIndex, opal_process_name_t> senders_;  ///< those that have said their name
  std::size_t waiting_ = 0;                                     ///< fragments that are pending
  std::deque<std::vector<std::byte>> buffers_;                  ///< by depth of progress()
};

/// What the parameters and the environment ask for. Not enabled: this host only.
NetworkOptions far_options();
/// Whether that rank is on another host, or in another network namespace, and reachable by `far`.
bool may_be_far(const Node& node, const Modex& peer);

extern mca_btl_base_module_t g_far_module;
/// After g_module's limits are final.
void describe_far_module();

}  // namespace clan::mpi
