// What the files of this component offer to each other: a part for each file.
//
// Open MPI calls from any thread once MPI_THREAD_MULTIPLE is asked for (opal_using_threads()), and
// from one otherwise: SpinLocks are taken only in the first case, the mutexes always; a message
// that passes its channel takes none. Callbacks into Open MPI are made with none of our locks held.
#pragma once

#include <cstddef>

#include "node.h"

extern "C" mca_btl_base_component_3_0_0_t mca_btl_clan_component;

namespace clan::mpi {

extern mca_btl_base_module_t g_module;

// component.cc
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
  char* network_mode = nullptr;  ///< Open MPI's; null or empty: CLAN_NETWORK_MODE
};
extern Parameters g_parameters;

/// A line for people, where btl_clan_verbose is at least `level`.
void log(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));
/// True in one of a host's ranks, for what all of them would say.
inline bool speaks_for_host() { return opal_process_info.my_local_rank == 0; }
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
/// The memory behind a handle, as it is mapped here. An error where it is not, or there is none.
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
/// Checks whether peers have died, and tells Open MPI.
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

// remote_ops.cc
constexpr std::uint32_t kWake = 1;  ///< type of the out-of-band message that wakes the server
/// The thread that answers peers while no thread of the program is in Open MPI; from the first
/// window on. False: there is none to be had.
bool start_server(Node& node);
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
  // relaxed, both: serve_operations() acquires
  return node.segment.header().operations.load(std::memory_order_relaxed) !=
         node.operations_seen.load(std::memory_order_relaxed);
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
