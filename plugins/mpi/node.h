// What a process has one of, and what ranks tell each other of it.
#pragma once

#include <clan/endpoint.h>
#include <clan/face/mpi_face.h>
#include <clan/rdma.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "channel/channel_receiver.h"
#include "endpoint.h"
#include "far.h"

namespace clan::mpi {

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

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

/// What a process has one of, from btl_init to btl_finalize.
struct Node {
  Node(Context made, Segment own) : context(std::move(made)), segment(std::move(own)) {}

  /// Whether there may be something for progress() to do: this rank has met another, one has asked
  /// for a channel here, or ranks of other hosts may come. False where every message goes by
  /// another transport.
  bool is_used() const {
    // relaxed: a hint
    return segment.taken() != 0 || has_met.load(std::memory_order_relaxed) || far;
  }

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
  /// a channel is broken, and its sender not reported yet
  bool nonsense = false;

  std::mutex endpoints_mutex;
  std::unordered_map<std::uint64_t, std::unique_ptr<Endpoint>> endpoints;  ///< by name
  std::vector<std::unique_ptr<Endpoint>> ended;
  std::unique_ptr<std::byte, FreeMemory> nowhere;  ///< for what is sent to ranks that have ended
  std::atomic<bool> has_met{false};                ///< another rank, or been met
  bool full = false;    ///< said: ranks met later go by another transport
  std::string failure;  ///< why the job cannot go on, not reported yet
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
  std::atomic<std::uint32_t> operations_seen{0};
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

inline std::uint64_t name_word(const opal_process_name_t& name) {
  return std::uint64_t{name.jobid} << 32 | static_cast<std::uint32_t>(name.vpid);
}

}  // namespace clan::mpi
