// What MPI_Alloc_mem calls: a component of another of Open MPI's frameworks, mpool, in the same
// file. It is loaded by the name mca_mpool_clan.so, a link to mca_btl_clan.so. Where btl clan is
// not in use it has nothing to offer.
#include <cstring>

#include "component.h"
#include "pool.h"

extern "C" {
#include "opal/mca/mpool/mpool.h"
}

namespace clan::mpi {

Pool& pool() {
  static Pool* const pool = new Pool;  // MPI may free memory when static objects have gone
  return *pool;
}

namespace {

constexpr int kPriority = 60;  ///< above malloc, which has 50

void free_block(mca_mpool_base_module_t*, void* base) {
  std::unique_ptr<Registration> registered;
  if (g_node != nullptr) registered = forget_block(*g_node, base);
  (void)pool().free(base);  // first: the aperture keeps no copy of what nobody has any more
}

mca_mpool_base_module_t g_pool_module;

int query(const char* hints, int* priority, mca_mpool_base_module_t** module) {
  // Hints name another kind of memory than any.
  if (g_node == nullptr || !g_parameters.share_allocated || (hints != nullptr && *hints != '\0')) {
    return OPAL_ERR_NOT_AVAILABLE;
  }
  *priority = kPriority;
  *module = &g_pool_module;
  return OPAL_SUCCESS;
}

int pool_open();

}  // namespace
}  // namespace clan::mpi

extern "C" {
OPAL_MODULE_DECLSPEC mca_mpool_base_component_2_0_0_t mca_mpool_clan_component = {
    .mpool_version =
        {
            MCA_MPOOL_BASE_VERSION_3_0_0,
            .mca_component_name = "clan",
            MCA_BASE_MAKE_VERSION(component, OPAL_MAJOR_VERSION, OPAL_MINOR_VERSION,
                                  OPAL_RELEASE_VERSION),
            .mca_open_component = clan::mpi::pool_open,
            .mca_close_component = nullptr,
            .mca_query_component = nullptr,
            .mca_register_component_params = nullptr,
            .mca_component_flags = 0,
            .reserved = {},
        },
    .mpool_data = {.param_field = MCA_BASE_METADATA_PARAM_NONE, .reserved = {}},
    .mpool_query = clan::mpi::query,
};
}

namespace clan::mpi {
namespace {

int pool_open() {
  mca_mpool_base_module_t& m = g_pool_module;
  m = mca_mpool_base_module_t{};
  m.mpool_component = &mca_mpool_clan_component;
  m.mpool_alloc = [](mca_mpool_base_module_t*, std::size_t bytes, std::size_t,
                     std::uint32_t) -> void* { return pool().allocate(bytes); };
  m.mpool_realloc = [](mca_mpool_base_module_t*, void* old, std::size_t bytes) -> void* {
    const auto block = pool().find(old, 1);
    std::byte* fresh = block ? pool().allocate(bytes) : nullptr;
    if (fresh == nullptr) return nullptr;
    std::memcpy(fresh, old, std::min(bytes, block->size()));
    free_block(nullptr, old);
    return fresh;
  };
  m.mpool_free = free_block;
  m.flags = MCA_MPOOL_FLAGS_MPI_ALLOC_MEM;
  m.mpool_allocation_unit = 4096;
  static char name[] = "clan";
  m.mpool_name = name;
  return OPAL_SUCCESS;
}

}  // namespace
}  // namespace clan::mpi
