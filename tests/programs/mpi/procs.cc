// What Open MPI may do with the ranks that a transport knows: name them one by one and again, in
// any order, with and without a set of bits; let go of them twice; name them once more. Called as
// Open MPI calls it, at the module that mpirun has chosen.
#include "plugins/mpi/open_mpi.h"

extern "C" {
#include "opal/runtime/opal_progress.h"
}

#include <cstring>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

using Endpoint = mca_btl_base_endpoint_t;

constexpr mca_btl_base_tag_t kTag = 0xf3;  ///< of nothing that Open MPI has

int g_received = 0;
std::int64_t g_sum = 0;

mca_btl_base_module_t* module_of(const char* name) {
  mca_btl_base_selected_module_t* selected = nullptr;
  OPAL_LIST_FOREACH(selected, &mca_btl_base_modules_initialized, mca_btl_base_selected_module_t) {
    const mca_base_component_t& version = selected->btl_component->btl_version;
    if (std::strcmp(version.mca_component_name, name) == 0) return selected->btl_module;
  }
  return nullptr;
}

opal_proc_t* proc_of(int rank) {
  opal_process_name_t name = OPAL_PROC_MY_NAME;
  name.vpid = static_cast<opal_vpid_t>(rank);
  return opal_proc_for_name(name);
}

Endpoint* add(mca_btl_base_module_t& module, int rank, opal_bitmap_t* reachable) {
  opal_proc_t* proc = proc_of(rank);
  Endpoint* endpoint = nullptr;
  if (reachable != nullptr) opal_bitmap_clear_all_bits(reachable);
  EXPECT(module.btl_add_procs(&module, 1, &proc, &endpoint, reachable) == OPAL_SUCCESS);
  if (reachable != nullptr) EXPECT(opal_bitmap_is_set_bit(reachable, 0));
  return endpoint;
}

void let_go(mca_btl_base_module_t& module, int rank, Endpoint* endpoint) {
  opal_proc_t* proc = proc_of(rank);
  EXPECT(module.btl_del_procs(&module, 1, &proc, &endpoint) == OPAL_SUCCESS);
}

void send(mca_btl_base_module_t& module, Endpoint* to, std::int64_t value) {
  auto* descriptor = module.btl_alloc(&module, to, MCA_BTL_NO_ORDER, sizeof value,
                                      MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
  EXPECT(descriptor != nullptr);
  std::memcpy(descriptor->des_segments[0].seg_addr.pval, &value, sizeof value);
  EXPECT(module.btl_send(&module, to, descriptor, kTag) >= 0);
}

void receive(mca_btl_base_module_t*, mca_btl_base_tag_t, mca_btl_base_descriptor_t* descriptor,
             void*) {
  std::int64_t value = 0;
  EXPECT(descriptor->des_segments[0].seg_len == sizeof value);
  std::memcpy(&value, descriptor->des_segments[0].seg_addr.pval, sizeof value);
  g_sum += value;
  ++g_received;
}

void await(int messages) {
  while (g_received < messages) opal_progress();
}

void run() {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  mca_btl_base_module_t* const found = module_of("clan");
  EXPECT(found != nullptr);
  mca_btl_base_module_t& module = *found;
  mca_btl_base_active_message_trigger[kTag] = {receive, nullptr};
  opal_bitmap_t bits;
  OBJ_CONSTRUCT(&bits, opal_bitmap_t);
  (void)opal_bitmap_init(&bits, size);
  std::vector<Endpoint*> all(static_cast<std::size_t>(size));
  const auto endpoint = [&](int of) -> Endpoint*& { return all[static_cast<std::size_t>(of)]; };
  const auto send_to_all = [&] {
    for (int other = 0; other < size; ++other) {
      if (other != rank) send(module, endpoint(other), rank + 1);
    }
  };
  MUST(MPI_Barrier(MPI_COMM_WORLD));

  // Named already, by Open MPI: one by one, from the last to the first, and again.
  for (int other = size; other-- > 0;) endpoint(other) = add(module, other, nullptr);
  EXPECT(endpoint(rank) == nullptr);
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    EXPECT(endpoint(other) != nullptr);
    EXPECT(add(module, other, &bits) == endpoint(other));
  }
  send_to_all();
  await(size - 1);
  MUST(MPI_Barrier(MPI_COMM_WORLD));

  // From here on Open MPI's own messages have no way: the others wait for what they are sent here.
  for (int other = 0; other < size; ++other) {
    if (other == rank) continue;
    let_go(module, other, endpoint(other));
    let_go(module, other, endpoint(other));
    Endpoint* const before = endpoint(other);
    endpoint(other) = add(module, other, &bits);
    EXPECT(endpoint(other) != nullptr && endpoint(other) != before);
    let_go(module, other, before);  // one that has been let go of: the new one stays
    EXPECT(add(module, other, nullptr) == endpoint(other));
  }
  send_to_all();
  await(2 * (size - 1));
  EXPECT(g_sum == 2 * (std::int64_t{size} * (size + 1) / 2 - rank - 1));
  OBJ_DESTRUCT(&bits);
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int rank = clan::test::mpi::rank_in(MPI_COMM_WORLD);
  const int size = clan::test::mpi::size_of(MPI_COMM_WORLD);
  clan::test::mpi::run();
  // Without a sum over all ranks, which would be a message: a rank that has failed ends the job.
  const auto checks = static_cast<unsigned long long>(clan::test::mpi::g_checks);
  if (rank == 0) std::printf("procs: PASS, %llu checks on %d ranks\n", checks, size);
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
