// Fragments: Open MPI's descriptors with their buffers behind them. Both modules send them.
//
// Thread-safety: take_fragment(), pack_fragment() and give_back() from any thread; a queue is under
// the lock of its owner.
#pragma once

#include <clan/detail/cpu.h>

#include <cstddef>
#include <cstdint>

#include "open_mpi.h"

namespace clan::mpi {

struct Node;
using Endpoint = mca_btl_base_endpoint_t;

/// A descriptor of Open MPI with its buffer behind it.
struct Fragment {
  mca_btl_base_descriptor_t base;
  mca_btl_base_segment_t segments[2];
  Endpoint* endpoint;
  Fragment* next;
  opal_free_list_t* list;
  std::uint8_t tag;
  alignas(kCacheLine) std::byte data[1];  ///< as many as the list's fragments have
};
constexpr std::size_t fragment_bytes(std::size_t data) { return offsetof(Fragment, data) + data; }

constexpr std::size_t kSmallFragment = 512;
/// At that length Open MPI gets "out of resources"; what it must send goes in
/// still.
constexpr std::size_t kMostPending = 1024;

/// Fragments in a list, first in, first out.
struct FragmentQueue {
  Fragment* first = nullptr;
  Fragment* last = nullptr;
  std::size_t size = 0;
  void push(Fragment* fragment);
  Fragment* pop();
};

bool make_fragment_lists(Node& node);
void drop_fragment_lists(Node& node);
/// Null: there is no memory, or it is more than a fragment has.
Fragment* take_fragment(Endpoint* endpoint, std::size_t bytes, std::uint8_t order,
                        std::uint32_t flags);
void give_back(Fragment* fragment);
/// For `module`: with what the convertor has next, `*size` bytes at most, behind `reserve` bytes of
/// header. Null in the same case.
mca_btl_base_descriptor_t* pack_fragment(const mca_btl_base_module_t& module, Endpoint* endpoint,
                                         opal_convertor_t* convertor, std::uint8_t order,
                                         std::size_t reserve, std::size_t* size,
                                         std::uint32_t flags);
/// It is gone. The callback may give the fragment back, or send again.
void complete(mca_btl_base_module_t& module, Fragment* fragment, bool call);

}  // namespace clan::mpi
