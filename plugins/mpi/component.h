// What the files of this component share: the module that Open MPI calls, its peers, and what a
// process has one of.
//
// Open MPI calls from any thread once MPI_THREAD_MULTIPLE is asked for (opal_using_threads()), and
// from one otherwise: SpinLocks are taken only in the first case, the mutexes always; a message
// that passes its channel takes none. Callbacks into Open MPI are made with none of our locks held.
#pragma once

#include <clan/endpoint.h>
#include <clan/mpi_face.h>
#include <clan/rdma.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "far.h"
#include "fetch_cost.h"
#include "fragment.h"
#include "open_mpi.h"
#include "operations.h"
#include "registration.h"
#include "segment.h"

extern "C" mca_btl_base_component_3_0_0_t mca_btl_clan_component;

namespace clan::mpi {

/// The MCA parameters; component.cc registers and explains them.
struct Parameters {
  int verbose = 0;
  unsigned bulk_bytes = 256 * 1024;
  unsigned channels = 0;
  std::size_t get_bytes = 256 * 1024;
  unsigned looks = 0;
  bool crowded = false;  ///< more ranks of the job on this host than processors
  bool direct_copy = true;
  bool share_allocated = true;
  char* key = nullptr;           ///< Open MPI's; null or empty: CLAN_KEY
  char* network_mode = nullptr;  ///< likewise, CLAN_NETWORK_MODE
};
extern Parameters g_parameters;

/// A lock that is one word, for what is held for less than a microsecond; not taken where there is
/// one thread.
class SpinLock {
 public:
  void lock() {
    if (!opal_using_threads()) return;
    // PAIR mpi.spin: sees what it guards
    for (unsigned n = 0; word_.test_and_set(std::memory_order_acquire);) {
      if (++n % 64 == 0) sched_yield();
      cpu_pause();
    }
  }
  void unlock() {
    // PAIR mpi.spin: the next holder sees what it guards
    word_.clear(std::memory_order_release);
  }

 private:
  std::atomic_flag word_ = ATOMIC_FLAG_INIT;
};

}  // namespace clan::mpi

/// A rank that we can reach. Made by add_procs; del_procs only ends it, because Open MPI may name
/// it again.
struct mca_btl_base_endpoint_t {
  mca_btl_base_endpoint_t(clan::mpi::RemoteSegment remote_segment, opal_proc_t* peer)
      : remote(std::move(remote_segment)), proc(peer), name(peer->proc_name) {
    sender.attach(remote.channel());
  }

  clan::mpi::SpinLock lock;  ///< guards sender, pending and the counters
  clan::mpi::ChannelSender sender;
  clan::mpi::FragmentQueue pending;
  clan::mpi::MpiPeer* counters = nullptr;
  clan::mpi::RemoteSegment remote;
  opal_proc_t* proc;
  opal_process_name_t name;
  clan::NodeId node;
  /// What copying into the channel costs, in ps for each byte, by the last long records: how far
  /// the processors of the two ranks are from each other. Under `lock`.
  std::uint32_t copy_ps = 0;
  bool far = false;  ///< as copy_ps says
  clan::mpi::FetchCost fetch_cost;
  std::uint32_t turn = 0;  ///< of messages that are fetched only because the other way is slow
  bool can_copy = false;   ///< process_vm_readv works between us and this peer
  /// it has a channel to us as well: what needs an answer may be asked for
  bool hears_us = false;
  bool ended = false;
  bool lost = false;      ///< its death, or its nonsense, has been told
  clan::Address wakeups;  ///< of the thread that answers where the peer does not poll
  clan::mpi::SpinLock cells_lock;
  std::uint32_t cells_used = 0;
  std::atomic<std::uint32_t> rest{0};  ///< small puts and gets for which the peer is not asked
  std::mutex imports_mutex;
  /// windows of that peer, and all of its memory once a message has been fetched
  std::unordered_map<std::uint64_t, std::shared_ptr<clan::RemoteAperture>> imports;
};

namespace clan::mpi {

using Endpoint = mca_btl_base_endpoint_t;

/// An operation that a peer has been asked for.
struct Outstanding {
  Endpoint* endpoint = nullptr;
  OperationCell* cell = nullptr;
  void* local = nullptr;  ///< where the answer goes, or null
  std::size_t bytes = 0;
  mca_btl_base_registration_handle_t* local_handle = nullptr;
  mca_btl_base_rdma_completion_fn_t callback = nullptr;
  void* context = nullptr;
  void* data = nullptr;
  std::uint64_t since_ns = 0;  ///< posted, or its peer woken for it
  bool woken = false;
};

constexpr std::size_t kTimedBytes = 4096;
/// Two processors that share their caches copy a byte in 20 to 50 ps, others in 60 to 110: there a
/// message is better fetched by its receiver, which moves each cache line once. The one bound makes
/// a peer far, the other near again.
constexpr std::uint32_t kFarPs = 65, kNearPs = 40;

/// What ranks tell each other when they meet, by Open MPI's own exchange.
struct Modex {
  static constexpr std::uint64_t kMagic = 0x32'78'64'6f'6d'6e'6c'63;  // "clnmodx2"
  std::uint64_t magic = kMagic;
  RdmaCookie segment;
  RdmaCookie probe;  ///< eight bytes of ordinary memory
  std::uint64_t probe_value = 0;
  Address wakeups;  ///< OobEndpoint of the thread that answers where nobody polls
  std::uint64_t namespace_of_network = 0;
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  char boot[40] = {};  ///< /proc/sys/kernel/random/boot_id: one for each running kernel
  FarAddress far;
};

/// What a process has one of, from btl_init to btl_finalize.
struct Node {
  Node(Context made, Segment own) : context(std::move(made)), segment(std::move(own)) {}

  Context context;
  Segment segment;
  Modex modex;
  std::uint64_t probe_word = 0;
  std::optional<Aperture> probe;
  std::uint64_t name = 0;  ///< of this rank: job << 32 | rank

  // The receiving side: of the thread that holds `progressing`.
  std::vector<std::unique_ptr<ChannelReceiver>> receivers;
  std::atomic<std::uint64_t> progressing{0};  ///< the thread that runs progress(), 0: none
  int depth = 0;                              ///< of callbacks that have called progress() again
  unsigned idle = 0;                          ///< looks in a row that found nothing
  unsigned calls = 0;                         ///< of progress()
  /// when it last looked for deaths because of the time
  std::uint64_t looked_ns = 0;
  /// a channel is broken, and its sender not told of yet
  bool nonsense = false;

  std::mutex endpoints_mutex;
  std::unordered_map<std::uint64_t, std::unique_ptr<Endpoint>> endpoints;  ///< by name
  std::vector<std::unique_ptr<Endpoint>> ended;
  bool full = false;    ///< it has been said that no channel is left
  std::string failure;  ///< why the job cannot go on, not told yet
  opal_proc_t* failed_proc = nullptr;
  std::atomic<std::uint32_t> with_pending{0};  ///< endpoints that have fragments waiting
  /// memory exported for a message: its receiver may want help
  std::atomic<std::uint32_t> offered{0};
  std::optional<RdmaQueue> rdma;
  std::mutex rdma_mutex;
  std::uint64_t rdma_requests = 0;  ///< posted, ever; under rdma_mutex

  /// For messages that their receivers fetch: all of this process's memory, for reading, registered
  /// once. Processes of one user may read each other's anyway; what they may write is registered
  /// piece by piece.
  std::unique_ptr<Registration> all_memory;
  Handle local_memory;  ///< of nobody's use but ours: local memory needs no registration
  Registrations registrations;
  std::mutex blocks_mutex;
  /// Memory that MPI has allocated and a window has been made of, by address; each whole, until it
  /// is freed.
  std::map<const void*, std::unique_ptr<Registration>> blocks;
  std::uint32_t operations_seen = 0;  ///< of the thread that progresses
  std::mutex outstanding_mutex;
  std::vector<Outstanding> outstanding;
  std::atomic<std::size_t> outstanding_count{0};
  std::optional<OobEndpoint> wakeups;
  std::mutex server_mutex;
  std::thread server;
  std::atomic<bool> server_ends{false};

  opal_free_list_t small;
  opal_free_list_t large;
  std::size_t most_fragment = 0;  ///< bytes that those of `large` have

  std::unique_ptr<Far> far;  ///< null: no ranks of other hosts

  MpiPage* page = nullptr;
  int page_fd = -1;
  MpiPage private_page;
  mca_btl_base_module_error_cb_fn_t error_callback = nullptr;
};

/// Null before btl_init and after btl_finalize.
extern Node* g_node;
extern mca_btl_base_module_t g_module;

inline std::uint64_t name_word(const opal_process_name_t& name) {
  return std::uint64_t{name.jobid} << 32 | static_cast<std::uint32_t>(name.vpid);
}

/// A line for people, where btl_clan_verbose is at least `level`.
void say(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));
/// True in one of a host's ranks, for what all of them would say.
inline bool speaks_for_host() { return opal_process_info.my_local_rank == 0; }

// component.cc
int finalize(mca_btl_base_module_t* module);

// counters.cc: the page that `clan stat` reads.
void open_page(Node& node);
void close_page(Node& node);
MpiPeer* peer_counters(Node& node, std::uint64_t peer);
void count_record(MpiPeer& counters, std::size_t bytes);
void say_sums(const opal_process_name_t& name, const MpiPeer& counters);

// rdma.cc
Status register_all_memory(Node& node);
/// Memory that MPI has allocated is freed: peers reach it no longer when the answer, which may be
/// null, has ended.
std::unique_ptr<Registration> forget_block(Node& node, const void* base);
/// The memory behind a handle, as it is mapped here; null where it is not, or there is no such
/// memory.
Result<std::shared_ptr<RemoteAperture>> import(Node& node, Endpoint& endpoint,
                                               const Handle& handle);

// mpool.cc
/// What MPI_Alloc_mem has given to the program.
class Pool;
Pool& pool();

// peers.cc
Result<Modex> make_modex(Node& node);
/// What the peer has published. False: it has no such component.
bool receive_modex(const opal_process_name_t& name, Modex* modex);
/// Null, or why not by shared memory.
const char* out_of_reach(const Modex& own, const Modex& peer);
/// Ends the job: Open MPI 4.1 can do nothing else. `proc` may be null.
void tell(Node& node, opal_proc_t* proc, const char* text);
int add_procs(mca_btl_base_module_t*, std::size_t count, opal_proc_t** procs, Endpoint** endpoints,
              opal_bitmap_t* reachable);
int del_procs(mca_btl_base_module_t*, std::size_t count, opal_proc_t** procs, Endpoint** endpoints);
/// Sends what waits, for at most a second in all, and leaves the peers' channels. Under no lock.
void end_endpoints(Node& node, const std::vector<Endpoint*>& endpoints);
/// Looks whether peers have died, and tells Open MPI.
void look_after_peers(Node& node);

// send.cc
mca_btl_base_descriptor_t* alloc(mca_btl_base_module_t*, Endpoint*, std::uint8_t order,
                                 std::size_t size, std::uint32_t flags);
int free_fragment(mca_btl_base_module_t*, mca_btl_base_descriptor_t*);
mca_btl_base_descriptor_t* prepare_src(mca_btl_base_module_t*, Endpoint*, opal_convertor_t*,
                                       std::uint8_t order, std::size_t reserve, std::size_t* size,
                                       std::uint32_t flags);
int send(mca_btl_base_module_t*, Endpoint*, mca_btl_base_descriptor_t*, mca_btl_base_tag_t tag);
int sendi(mca_btl_base_module_t*, Endpoint*, opal_convertor_t*, void* header,
          std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t order,
          std::uint32_t flags, mca_btl_base_tag_t tag, mca_btl_base_descriptor_t** descriptor);
/// Sends what waits for that peer while the peer takes it, and forgets the rest.
void flush_last(Node& node, Endpoint& endpoint, std::uint64_t until_ns);
/// Sends what waits. How many fragments have gone.
int flush_pending(Node& node);

// progress.cc
int progress();
/// Hands a record to the part of Open MPI that its tag names. False: Open MPI has no such tag.
bool deliver(Node& node, mca_btl_base_module_t& module, const Record& record);

// serve.cc
constexpr std::uint32_t kWake = 1;  ///< type of the out-of-band message that wakes the server
/// The thread that answers peers while no thread of the program is in Open MPI; from the first
/// window on.
void start_server(Node& node);
void end_server(Node& node);
/// The first is the one in use where a peer waits for each of its operations: its receiver polls
/// it.
inline OperationCell* cells_of(const ChannelView& channel) {
  return reinterpret_cast<OperationCell*>(reinterpret_cast<std::byte*>(channel.control) +
                                          kCellsOffset);
}
/// Carries it out, if it is posted and no other thread has it.
void serve_cell(Node& node, OperationCell& cell);
/// The first cells of all channels: a peer that waits for its answer uses no other.
void serve_those_that_wait(Node& node);
/// Whether serve_operations() has something to do.
inline bool operations_posted(const Node& node) {
  // relaxed: serve_operations() acquires
  return node.segment.header().operations.load(std::memory_order_relaxed) != node.operations_seen;
}
/// Does what peers have posted in other cells than the first. Whether there was something.
int serve_operations(Node& node);

// atomics.cc
/// Takes answers of peers, and wakes those that do not answer.
int finish_operations(Node& node);
/// Up to kCellData bytes, by a peer that polls; false: it does not, and nothing has been moved.
bool move_by_peer(Endpoint& endpoint, void* local, std::uint64_t address, const RdmaCookie& cookie,
                  std::size_t bytes, bool write);
/// Asks the peer which of its windows has those bytes; false: none, or it has died.
bool find_handle(Endpoint& endpoint, std::uint64_t address, std::size_t bytes, Handle* handle);
/// What Open MPI has given us for those bytes or, where that is of another region, what the peer
/// says.
Handle handle_for(Endpoint& endpoint, const Handle& given, std::uint64_t address,
                  std::size_t bytes);
int atomic_op(mca_btl_base_module_t*, Endpoint*, std::uint64_t address,
              mca_btl_base_registration_handle_t* handle, mca_btl_base_atomic_op_t op,
              std::uint64_t operand, int flags, int order,
              mca_btl_base_rdma_completion_fn_t callback, void* context, void* data);
int atomic_fop(mca_btl_base_module_t*, Endpoint*, void* local, std::uint64_t address,
               mca_btl_base_registration_handle_t* local_handle,
               mca_btl_base_registration_handle_t* handle, mca_btl_base_atomic_op_t op,
               std::uint64_t operand, int flags, int order,
               mca_btl_base_rdma_completion_fn_t callback, void* context, void* data);
int atomic_cswap(mca_btl_base_module_t*, Endpoint*, void* local, std::uint64_t address,
                 mca_btl_base_registration_handle_t* local_handle,
                 mca_btl_base_registration_handle_t* handle, std::uint64_t compared,
                 std::uint64_t value, int flags, int order,
                 mca_btl_base_rdma_completion_fn_t callback, void* context, void* data);
int flush(mca_btl_base_module_t*, Endpoint* endpoint);

// rdma.cc
mca_btl_base_registration_handle_t* register_memory(mca_btl_base_module_t*, Endpoint*, void* base,
                                                    std::size_t size, std::uint32_t flags);
int deregister_memory(mca_btl_base_module_t*, mca_btl_base_registration_handle_t* handle);
int put(mca_btl_base_module_t*, Endpoint*, void* local, std::uint64_t remote,
        mca_btl_base_registration_handle_t* local_handle,
        mca_btl_base_registration_handle_t* remote_handle, std::size_t size, int flags, int order,
        mca_btl_base_rdma_completion_fn_t callback, void* context, void* data);
int get(mca_btl_base_module_t*, Endpoint*, void* local, std::uint64_t remote,
        mca_btl_base_registration_handle_t* local_handle,
        mca_btl_base_registration_handle_t* remote_handle, std::size_t size, int flags, int order,
        mca_btl_base_rdma_completion_fn_t callback, void* context, void* data);

}  // namespace clan::mpi
