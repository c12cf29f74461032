// What Open MPI calls for ranks of other hosts.
#include "component.h"

namespace clan::mpi {

mca_btl_base_module_t g_far_module;

namespace {

/// Below btl clan's own for ranks of this host, above btl tcp.
constexpr std::uint32_t kFarExclusivity = MCA_BTL_EXCLUSIVITY_DEFAULT;

int add_far(mca_btl_base_module_t*, std::size_t count, opal_proc_t** procs, Endpoint** endpoints,
            opal_bitmap_t* reachable) {
  Node* node = g_node;
  if (node == nullptr || !node->far) return OPAL_ERR_NOT_AVAILABLE;
  for (std::size_t i = 0; i < count; ++i) {
    endpoints[i] = nullptr;
    if (name_word(procs[i]->proc_name) == node->name) continue;  // btl self's
    FarPeer* peer = node->far->add(*node, procs[i]);
    if (peer == nullptr) continue;
    endpoints[i] = peer->endpoint();
    if (reachable == nullptr) continue;
    const int rc = opal_bitmap_set_bit(reachable, static_cast<int>(i));
    if (rc != OPAL_SUCCESS) return rc;
  }
  return OPAL_SUCCESS;
}

int remove_far(mca_btl_base_module_t*, std::size_t count, opal_proc_t**, Endpoint** endpoints) {
  Node* node = g_node;
  for (std::size_t i = 0; i < count && node != nullptr && node->far; ++i) {
    if (endpoints[i] != nullptr) node->far->remove(*node, FarPeer::of(endpoints[i]));
  }
  return OPAL_SUCCESS;
}

mca_btl_base_descriptor_t* prepare_far(mca_btl_base_module_t*, Endpoint* endpoint,
                                       opal_convertor_t* convertor, std::uint8_t order,
                                       std::size_t reserve, std::size_t* size,
                                       std::uint32_t flags) {
  if (!g_node->far->may_wait(FarPeer::of(endpoint))) return nullptr;
  return pack_fragment(g_far_module, endpoint, convertor, order, reserve, size, flags);
}

int send_far(mca_btl_base_module_t*, Endpoint* endpoint, mca_btl_base_descriptor_t* descriptor,
             mca_btl_base_tag_t tag) {
  auto* fragment = reinterpret_cast<Fragment*>(descriptor);
  fragment->tag = tag;
  fragment->endpoint = endpoint;
  return g_node->far->send(*fragment, FarPeer::of(endpoint));
}

int sendi_far(mca_btl_base_module_t* module, Endpoint* endpoint, opal_convertor_t* convertor,
              void* header, std::size_t header_bytes, std::size_t payload_bytes, std::uint8_t order,
              std::uint32_t flags, mca_btl_base_tag_t tag, mca_btl_base_descriptor_t** descriptor) {
  Far& far = *g_node->far;
  FarPeer& peer = FarPeer::of(endpoint);
  if (far.send_now(peer, convertor, header, header_bytes, payload_bytes, tag)) return OPAL_SUCCESS;
  if (descriptor == nullptr) return OPAL_ERR_OUT_OF_RESOURCE;
  *descriptor = far.may_wait(peer)
                    ? alloc(module, endpoint, order, header_bytes + payload_bytes, flags)
                    : nullptr;
  return OPAL_ERR_OUT_OF_RESOURCE;
}

}  // namespace

void describe_far_module() {
  mca_btl_base_module_t& m = g_far_module;
  m = mca_btl_base_module_t{};
  m.btl_component = &mca_btl_clan_component;
  m.btl_eager_limit = kFarEager;
  m.btl_rndv_eager_limit = kFarEager;
  m.btl_max_send_size = kFarFragment;
  m.btl_rdma_pipeline_send_length = g_module.btl_rdma_pipeline_send_length;
  m.btl_rdma_pipeline_frag_size = g_module.btl_rdma_pipeline_frag_size;
  m.btl_min_rdma_pipeline_size = g_module.btl_min_rdma_pipeline_size;
  m.btl_exclusivity = kFarExclusivity;
  m.btl_latency = 20;
  m.btl_bandwidth = 10000;
  m.btl_flags = MCA_BTL_FLAGS_SEND;
  m.btl_add_procs = add_far;
  m.btl_del_procs = remove_far;
  m.btl_finalize = [](mca_btl_base_module_t*) -> int { return OPAL_SUCCESS; };  // by the other's
  m.btl_alloc = alloc;
  m.btl_free = free_fragment;
  m.btl_prepare_src = prepare_far;
  m.btl_send = send_far;
  m.btl_sendi = sendi_far;
  m.btl_register_error = g_module.btl_register_error;
}

}  // namespace clan::mpi
