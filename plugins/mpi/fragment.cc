// Fragments: Open MPI's descriptors with their buffers, for both modules.
#include "fragment.h"

#include <algorithm>

#include "component.h"

namespace clan::mpi {

void FragmentQueue::push(Fragment* fragment) {
  fragment->next = nullptr;
  (last != nullptr ? last->next : first) = fragment;
  last = fragment;
  ++size;
}

Fragment* FragmentQueue::pop() {
  Fragment* fragment = first;
  first = fragment->next;
  if (first == nullptr) last = nullptr;
  --size;
  return fragment;
}

namespace {

OBJ_CLASS_INSTANCE(Fragment, mca_btl_base_descriptor_t, nullptr, nullptr);

int init_fragment(opal_free_list_item_t* item, void* list) {
  auto* fragment = reinterpret_cast<Fragment*>(item);
  fragment->list = static_cast<opal_free_list_t*>(list);
  fragment->base.des_segments = fragment->segments;
  return OPAL_SUCCESS;
}

bool make_list(opal_free_list_t* list, std::size_t data) {
  OBJ_CONSTRUCT(list, opal_free_list_t);
  return opal_free_list_init(list, fragment_bytes(data), kCacheLine, OBJ_CLASS(Fragment), 0, 0, 8,
                             -1, 64, nullptr, 0, nullptr, init_fragment, list) == OPAL_SUCCESS;
}

}  // namespace

Fragment* take_fragment(Endpoint* endpoint, std::size_t bytes, std::uint8_t order,
                        std::uint32_t flags) {
  Node* node = g_node;
  opal_free_list_t* list = bytes <= kSmallFragment ? &node->small : &node->large;
  if (bytes > node->most_fragment) return nullptr;
  auto* fragment = reinterpret_cast<Fragment*>(opal_free_list_get(list));
  if (fragment == nullptr) return nullptr;
  fragment->endpoint = endpoint;
  fragment->base.des_segment_count = 1;
  fragment->base.des_flags = flags;
  fragment->base.order = order;
  fragment->base.des_cbfunc = nullptr;
  fragment->segments[0].seg_addr.pval = fragment->data;
  fragment->segments[0].seg_len = bytes;
  return fragment;
}

void give_back(Fragment* fragment) {
  opal_free_list_return(fragment->list, reinterpret_cast<opal_free_list_item_t*>(fragment));
}

bool make_fragment_lists(Node& node) {
  node.most_fragment = std::max(g_module.btl_max_send_size, g_module.btl_eager_limit);
  if (node.far) node.most_fragment = std::max(node.most_fragment, kFarFragment);
  return make_list(&node.small, kSmallFragment) && make_list(&node.large, node.most_fragment);
}

void drop_fragment_lists(Node& node) {
  OBJ_DESTRUCT(&node.small);
  OBJ_DESTRUCT(&node.large);
}

// Contiguous memory is copied when it is sent, straight to where the receiver finds it; the rest is
// packed now.
mca_btl_base_descriptor_t* pack_fragment(const mca_btl_base_module_t& module, Endpoint* endpoint,
                                         opal_convertor_t* convertor, std::uint8_t order,
                                         std::size_t reserve, std::size_t* size,
                                         std::uint32_t flags) {
  if (reserve > kSmallFragment) return nullptr;
  *size = std::min(*size, module.btl_max_send_size - reserve);
  const bool packs = opal_convertor_need_buffers(convertor) != 0;
  Fragment* fragment = take_fragment(endpoint, packs ? reserve + *size : reserve, order, flags);
  if (fragment == nullptr) return nullptr;
  if (!packs) {
    void* data = nullptr;
    opal_convertor_get_current_pointer(convertor, &data);
    fragment->segments[1].seg_addr.pval = data;
    fragment->segments[1].seg_len = *size;
    fragment->base.des_segment_count = 2;
    return &fragment->base;
  }
  iovec vector{fragment->data + reserve, *size};
  std::uint32_t vectors = 1;
  if (opal_convertor_pack(convertor, &vector, &vectors, size) < 0) {
    give_back(fragment);
    return nullptr;
  }
  fragment->segments[0].seg_len = reserve + *size;
  return &fragment->base;
}

void complete(mca_btl_base_module_t& module, Fragment* fragment, bool call) {
  const bool ours = (fragment->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP) != 0;
  if (call && fragment->base.des_cbfunc != nullptr) {
    fragment->base.des_cbfunc(&module, fragment->endpoint, &fragment->base, OPAL_SUCCESS);
  }
  if (ours) give_back(fragment);
}

}  // namespace clan::mpi
