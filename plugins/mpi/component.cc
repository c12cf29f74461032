// The component as Open MPI loads it: its parameters, its beginning and its end.
#include "component.h"

#include <clan/detail/words.h>
#include <clan/face/settings.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace clan::mpi {

Parameters g_parameters;
Node* g_node = nullptr;
mca_btl_base_module_t g_module;

namespace {

int component_register();
int component_open();
int component_close();
mca_btl_base_module_t** component_init(int* count, bool progress_threads, bool mpi_threads);

}  // namespace
}  // namespace clan::mpi

extern "C" {
/// The one symbol that Open MPI looks for.
OPAL_MODULE_DECLSPEC mca_btl_base_component_3_0_0_t mca_btl_clan_component = {
    .btl_version =
        {
            MCA_BTL_DEFAULT_VERSION("clan"),
            .mca_open_component = clan::mpi::component_open,
            .mca_close_component = clan::mpi::component_close,
            .mca_query_component = nullptr,
            .mca_register_component_params = clan::mpi::component_register,
            .mca_component_flags = 0,
            .reserved = {},
        },
    .btl_data = {.param_field = MCA_BASE_METADATA_PARAM_NONE, .reserved = {}},
    .btl_init = clan::mpi::component_init,
    .btl_progress = clan::mpi::progress,
};
}

namespace clan::mpi {

void log(int level, const char* format, ...) {
  if (g_parameters.verbose < level) return;
  char text[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  opal_output(0, "btl clan: %s", text);
}

namespace {

constexpr std::uint32_t kNearExclusivity =
    MCA_BTL_EXCLUSIVITY_HIGH + 1;  ///< before vader, for the peers that we serve
static_assert(kMaxChannels == 4096, "as what is said of a parameter has it");
constexpr unsigned kSpareChannels = 256;  ///< for ranks of jobs that are spawned or connect later

/// The headers this was compiled with describe one version's structures, and nothing else checks
/// that. A component that refuses to be registered ends a job that names it; one that has no module
/// lets the others have the work.
bool right_version() { return std::strcmp(opal_version_string, OPAL_VERSION) == 0; }

template <typename T>
void parameter(const char* name, const char* help, mca_base_var_type_t type,
               mca_base_var_info_lvl_t level, T* value) {
  (void)mca_base_component_var_register(&mca_btl_clan_component.btl_version, name, help, type,
                                        nullptr, 0, static_cast<mca_base_var_flag_t>(0), level,
                                        MCA_BASE_VAR_SCOPE_LOCAL, value);
}

void describe_module() {
  mca_btl_base_module_t& m = g_module;
  m = mca_btl_base_module_t{};
  m.btl_component = &mca_btl_clan_component;
  m.btl_eager_limit = 12 * 1024;
  m.btl_rndv_eager_limit = 12 * 1024;
  m.btl_max_send_size = 32 * 1024;
  m.btl_rdma_pipeline_send_length = 16 * 1024;
  m.btl_rdma_pipeline_frag_size = INT_MAX;
  m.btl_min_rdma_pipeline_size = SIZE_MAX;  // what is long is fetched by its receiver
  m.btl_exclusivity = kNearExclusivity;
  m.btl_latency = 1;
  m.btl_bandwidth = 50000;
  m.btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS |
                MCA_BTL_FLAGS_ATOMIC_FOPS;
  m.btl_atomic_flags =
      MCA_BTL_ATOMIC_SUPPORTS_ADD | MCA_BTL_ATOMIC_SUPPORTS_AND | MCA_BTL_ATOMIC_SUPPORTS_OR |
      MCA_BTL_ATOMIC_SUPPORTS_XOR | MCA_BTL_ATOMIC_SUPPORTS_LAND | MCA_BTL_ATOMIC_SUPPORTS_LOR |
      MCA_BTL_ATOMIC_SUPPORTS_LXOR | MCA_BTL_ATOMIC_SUPPORTS_SWAP | MCA_BTL_ATOMIC_SUPPORTS_MIN |
      MCA_BTL_ATOMIC_SUPPORTS_MAX | MCA_BTL_ATOMIC_SUPPORTS_32BIT | MCA_BTL_ATOMIC_SUPPORTS_CSWAP |
      MCA_BTL_ATOMIC_SUPPORTS_GLOB;  // the owner's processor does them
  m.btl_registration_handle_size = 64;
  m.btl_get_limit = SIZE_MAX;
  m.btl_put_limit = SIZE_MAX;
  m.btl_get_local_registration_threshold = SIZE_MAX;  // local memory needs none
  m.btl_put_local_registration_threshold = SIZE_MAX;
  m.btl_add_procs = add_procs;
  m.btl_del_procs = del_procs;
  m.btl_finalize = finalize;
  m.btl_alloc = alloc;
  m.btl_free = free_fragment;
  m.btl_prepare_src = prepare_src;
  m.btl_send = send;
  m.btl_sendi = sendi;
  m.btl_put = put;
  m.btl_get = get;
  m.btl_atomic_op = atomic_op;
  m.btl_atomic_fop = atomic_fop;
  m.btl_atomic_cswap = atomic_cswap;
  m.btl_flush = flush;
  m.btl_register_mem = register_memory;
  m.btl_deregister_mem = deregister_memory;
  m.btl_register_error = [](mca_btl_base_module_t*,
                            mca_btl_base_module_error_cb_fn_t callback) -> int {
    if (g_node != nullptr) g_node->error_callback = callback;
    return OPAL_SUCCESS;
  };
}

int component_register() {
  if (!right_version()) return OPAL_SUCCESS;
  (void)mca_base_var_group_component_register(
      &mca_btl_clan_component.btl_version,
      "CLAN: between the processes of one host, without the kernel");
  Parameters& p = g_parameters;
  p = Parameters{};
  parameter("verbose",
            "What is said of ranks met, refused and lost: 0 nothing, 1 a line for each rank and "
            "the sums at "
            "the end, 2 more",
            MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p.verbose);
  parameter(
      "channel_bytes",
      "Room for messages longer than a cache line that are on their way to one rank, a power of "
      "two from 65536 to 16777216; memory is used as it is touched",
      MCA_BASE_VAR_TYPE_UNSIGNED_INT, OPAL_INFO_LVL_5, &p.bulk_bytes);
  parameter(
      "channels",
      "How many ranks may send to this one, those of jobs that are spawned or connect as well, at "
      "least twice as many as other ranks of the job are on this host, at most 4096; 0: 256 more "
      "than "
      "that",
      MCA_BASE_VAR_TYPE_UNSIGNED_INT, OPAL_INFO_LVL_5, &p.channels);
  parameter(
      "get_bytes",
      "Messages at least that long are copied once, by their receiver out of the sender's memory; "
      "shorter ones pass through the channel",
      MCA_BASE_VAR_TYPE_SIZE_T, OPAL_INFO_LVL_4, &p.get_bytes);
  parameter(
      "looks",
      "How often one call of progress polls the channels before it gives up, 0: once where this "
      "host has more ranks of the job than processors, else 4 times",
      MCA_BASE_VAR_TYPE_UNSIGNED_INT, OPAL_INFO_LVL_5, &p.looks);
  parameter(
      "direct_copy",
      "False: never use process_vm_readv and process_vm_writev, as where a sandbox forbids them",
      MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_4, &p.direct_copy);
  parameter(
      "key",
      "The file with the key of all hosts whose ranks talk by UDP, as CLAN_KEY; empty: ranks of "
      "other hosts go by another transport",
      MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p.key);
  parameter("network_mode", "encrypt, integrity or off, between hosts, as CLAN_NETWORK_MODE",
            MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_4, &p.network_mode);
  parameter("share_allocated",
            "Memory of MPI_Alloc_mem is such that peers map windows which lie there",
            MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_4, &p.share_allocated);
  describe_module();
  (void)mca_btl_base_param_register(&mca_btl_clan_component.btl_version, &g_module);
  return OPAL_SUCCESS;
}

int component_open() { return OPAL_SUCCESS; }
int component_close() { return OPAL_SUCCESS; }

/// Replaces what a parameter may not be; one rank of the host says so.
template <typename T>
void replace(const char* name, T* value, std::size_t by, const char* rule) {
  if (*value == by) return;
  if (speaks_for_host()) {
    log(0, "btl_clan_%s is %zu%s, and must be %s: %zu is used", name,
        static_cast<std::size_t>(*value), *value == 0 ? " or no number" : "", rule, by);
  }
  *value = static_cast<T>(by);
}

/// Makes parameters what they may be. What is no number Open MPI has taken for 0.
void make_sane(Parameters& p) {
  replace("channel_bytes", &p.bulk_bytes,
          std::bit_ceil(std::clamp(p.bulk_bytes, 64u << 10, 16u << 20)),
          "a power of two from 65536 to 16777216");
  if (p.get_bytes == 0) replace("get_bytes", &p.get_bytes, Parameters{}.get_bytes, "at least 1");
  // Two for each rank of this job: both sides of a pair may ask for one at the same moment.
  const auto own = 2 * static_cast<unsigned>(std::max(opal_process_info.num_local_peers, 1));
  if (p.channels == 0) p.channels = own + kSpareChannels;
  replace("channels", &p.channels, std::max(p.channels, own),
          "at least twice as many as other ranks of the job are on this host");
  replace("channels", &p.channels, std::min(p.channels, kMaxChannels), "at most 4096");
  // Where ranks take turns on a processor, further looks keep the one from it that has something to
  // say.
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  p.crowded = processors > 0 && opal_process_info.num_local_peers >= processors;
  if (p.looks == 0) p.looks = p.crowded ? 1 : 4;
  replace("looks", &p.looks, std::min(p.looks, 1000u), "at most 1000");
  mca_btl_base_module_t& m = g_module;
  // A record must fit twice: one is read while the next is written.
  const std::size_t most = p.bulk_bytes / 2;
  const char* const fits = "from 1024 to half of btl_clan_channel_bytes";
  replace("max_send_size", &m.btl_max_send_size,
          std::clamp<std::size_t>(m.btl_max_send_size, 1024, most), fits);
  replace("eager_limit", &m.btl_eager_limit, std::clamp<std::size_t>(m.btl_eager_limit, 1024, most),
          fits);
  replace("rndv_eager_limit", &m.btl_rndv_eager_limit,
          std::min(m.btl_rndv_eager_limit, m.btl_max_send_size - 256),
          "256 less than btl_clan_max_send_size, or less");
}

/// Whether CLAN_DISABLE asks for it, or has an invalid value.
bool disabled() {
  Settings settings;
  const auto given = [](const char* name) -> const char* {
    return std::strcmp(name, "CLAN_DISABLE") == 0 ? std::getenv(name) : nullptr;
  };
  const auto say_wrong = [](const WrongSetting& wrong) {
    complain(wrong, "", "btl clan is not used");
  };
  (void)take_settings(nullptr, given, &settings, say_wrong);
  return settings.disable;
}

Result<Node*> make_node() {
  const NetworkOptions network = far_options();
  ContextOptions options;
  options.direct_copy = g_parameters.direct_copy;
  options.network = network;
  auto context = create_context(std::move(options), "messages");
  if (!context) return context.error();
  const std::size_t longest = std::max(g_module.btl_max_send_size, g_module.btl_eager_limit);
  auto segment = Segment::create(*context, g_parameters.channels, g_parameters.bulk_bytes,
                                 static_cast<std::uint32_t>(longest));
  if (!segment) return segment.error();
  auto node = std::make_unique<Node>(std::move(*context), std::move(*segment));
  node->name = name_word(OPAL_PROC_MY_NAME);
  if (node->context.network_port() != 0) {
    std::string why;
    node->far = Far::create(node->context, network.mode, OPAL_PROC_MY_NAME, &why);
    if (!node->far) log(0, "ranks of other hosts go without CLAN: %s", why.c_str());
  }
  auto modex = make_modex(*node);
  if (!modex) return modex.error();
  node->modex = *modex;
  if (auto s = register_all_memory(*node); !s) return s.error();
  if (!make_fragment_lists(*node)) return Error{ENOMEM, "no memory for fragments"};
  open_page(*node);
  return node.release();
}

void destroy(Node* node) {
  end_server(*node);
  drop_fragment_lists(*node);
  close_page(*node);
  delete node;
}

mca_btl_base_module_t** component_init(int* count, bool, bool) {
  *count = 0;
  if (!right_version()) {
    opal_output(0,
                "btl clan: this is Open MPI %s and mca_btl_clan.so was built for %s: not used; "
                "build CLAN again with "
                "this one's headers",
                opal_version_string, OPAL_VERSION);
    return nullptr;
  }
  if (disabled()) {
    log(1, "not used, as CLAN_DISABLE says");
    return nullptr;
  }
  make_sane(g_parameters);
  auto node = make_node();
  if (!node) {
    log(0, "%s: not used", node.error().message().c_str());
    return nullptr;
  }
  int rc = OPAL_SUCCESS;
  OPAL_MODEX_SEND(rc, OPAL_PMIX_GLOBAL, &mca_btl_clan_component.btl_version, &(*node)->modex,
                  sizeof(Modex));
  auto** modules =
      static_cast<mca_btl_base_module_t**>(std::malloc(2 * sizeof(mca_btl_base_module_t*)));
  if (rc != OPAL_SUCCESS || modules == nullptr) {
    std::free(modules);
    destroy(*node);
    return nullptr;
  }
  g_node = *node;
  // Open MPI has progress() called where this rank sends by us; others may where it does not.
  (void)opal_progress_register(progress);
  modules[0] = &g_module;
  *count = 1;
  if (g_node->far) {
    describe_far_module();
    modules[(*count)++] = &g_far_module;
  }
  log(2, "process %d, %u channels of %u KiB", static_cast<int>(getpid()), g_parameters.channels,
      g_parameters.bulk_bytes / 1024);
  return modules;
}

}  // namespace

int finalize(mca_btl_base_module_t*) {
  Node* node = g_node;
  if (node == nullptr) return OPAL_SUCCESS;
  (void)opal_progress_unregister(progress);
  std::vector<Endpoint*> all;
  {
    std::lock_guard lock(node->endpoints_mutex);
    for (auto& [name, endpoint] : node->endpoints) all.push_back(endpoint.get());
  }
  end_endpoints(*node, all);
  if (node->far) node->far->end(*node);
  // PAIR segment.leaving: all that we sent is there
  words::store_release(node->segment.header().leaving, 1);
  g_node = nullptr;
  destroy(node);
  return OPAL_SUCCESS;
}

}  // namespace clan::mpi
