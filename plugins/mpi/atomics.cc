// The asking side of operations.h, and Open MPI's atomics on top of it; remote_ops.cc is the other.
#include <clan/detail/clock.h>
#include <clan/detail/words.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "component.h"

namespace clan::mpi {
namespace {

constexpr std::uint64_t kForAnswerNs = 2000;  ///< a peer that polls has answered by then
/// polls for the answer, before the rank checks the clock and its own cells
constexpr unsigned kLooksAtOnce = 16;
constexpr std::uint64_t kBeforeWakingNs = 20'000;  ///< without an answer; then its thread is woken
constexpr std::uint64_t kBetweenWakingsNs = 10'000'000;
/// small puts and gets by the kernel after one that nobody took
constexpr unsigned kRest = 64;

/// A cell of that peer that nobody of us uses, or null.
OperationCell* take_cell(Endpoint& endpoint) {
  std::lock_guard lock(endpoint.cells_lock);
  if (endpoint.cells_used == (1u << kCells) - 1) return nullptr;
  const int free = std::countr_one(endpoint.cells_used);
  endpoint.cells_used |= 1u << free;
  return &cells_of(endpoint.remote.channel())[free];
}

void give_back_cell(Endpoint& endpoint, OperationCell* cell) {
  const auto index = static_cast<unsigned>(cell - cells_of(endpoint.remote.channel()));
  // PAIR cell.state: we have read the answer; nobody takes a free cell
  words::store_release(cell->state, CellState::kFree);
  std::lock_guard lock(endpoint.cells_lock);
  endpoint.cells_used &= ~(1u << index);
}

void post(Endpoint& endpoint, OperationCell& cell, Operation operation, std::size_t bytes,
          std::uint64_t address, const RdmaCookie& cookie) {
  cell.operation = operation;
  cell.bytes = static_cast<std::uint16_t>(bytes);
  cell.address = address;
  cell.key = cookie.key;
  cell.aperture = cookie.aperture;
  // PAIR cell.state: publishes the operation to serve_cell()
  words::store_release(cell.state, CellState::kPosted);
  if (&cell == cells_of(endpoint.remote.channel())) return;  // which the receiver checks anyway
  // PAIR segment.operations: the receiver checks all cells when this has changed
  words::add(endpoint.remote.header().operations, 1);
}

bool done(const OperationCell& cell) {
  // PAIR cell.state: sees the answer
  return words::load_acquire(cell.state) == CellState::kDone;
}

/// Two ranks that ask each other at once answer each other here.
bool answered_soon(Node& node, const OperationCell& cell) {
  for (std::uint64_t until = 0;;) {
    for (unsigned i = 0; i < kLooksAtOnce; ++i) {
      if (done(cell)) return true;
      cpu_pause();
    }
    const std::uint64_t now = monotonic_ns();
    if (until == 0) until = now + kForAnswerNs;
    if (now >= until) return false;
    serve_those_that_wait(node);
  }
}

/// Whether it was above 0. Several threads may take from it.
bool take_one(std::atomic<std::uint32_t>& rest) {
  std::uint32_t left = rest.load(std::memory_order_relaxed);  // relaxed, and below: a guess
  while (left != 0) {
    if (rest.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) return true;
  }
  return false;
}

struct Kind {
  Operation operation;
  bool known;
};
Kind kind_of(mca_btl_base_atomic_op_t op) {
  switch (op) {
    case MCA_BTL_ATOMIC_ADD: return {Operation::kAdd, true};
    case MCA_BTL_ATOMIC_AND: return {Operation::kAnd, true};
    case MCA_BTL_ATOMIC_OR: return {Operation::kOr, true};
    case MCA_BTL_ATOMIC_XOR: return {Operation::kXor, true};
    case MCA_BTL_ATOMIC_LAND: return {Operation::kLogicalAnd, true};
    case MCA_BTL_ATOMIC_LOR: return {Operation::kLogicalOr, true};
    case MCA_BTL_ATOMIC_LXOR: return {Operation::kLogicalXor, true};
    case MCA_BTL_ATOMIC_SWAP: return {Operation::kSwap, true};
    case MCA_BTL_ATOMIC_MIN: return {Operation::kMin, true};
    case MCA_BTL_ATOMIC_MAX: return {Operation::kMax, true};
    default: return {Operation::kAdd, false};
  }
}

/// What Open MPI wants to hear when it is done.
void answer(const Outstanding& o) {
  const int status = o.cell->error == 0 ? OPAL_SUCCESS : OPAL_ERROR;
  if (o.local != nullptr && status == OPAL_SUCCESS) std::memcpy(o.local, o.cell->data, o.bytes);
  give_back_cell(*o.endpoint, o.cell);
  if (o.callback != nullptr) {
    o.callback(&g_module, o.endpoint, o.local, o.local_handle, o.context, o.data, status);
  }
}

/// On memory that is mapped here this processor does it; false: it is not.
bool do_here(Node& node, Endpoint& endpoint, AskedOperation& asked, const Handle& handle) {
  auto remote = import(node, endpoint, handle);
  if (!remote || (*remote)->data() == nullptr) return false;
  const std::uint64_t offset = asked.address - handle.base, size = (*remote)->size();
  if (offset > size || asked.bytes > size - offset) return false;
  return carry_out(asked, (*remote)->data() + offset) == 0;
}

/// What has been done by this processor.
int end_here(Endpoint* endpoint, const AskedOperation& asked, const Outstanding& o) {
  if (o.local != nullptr) std::memcpy(o.local, asked.data, asked.bytes);
  if (o.callback != nullptr) {
    o.callback(&g_module, endpoint, o.local, o.local_handle, o.context, o.data, OPAL_SUCCESS);
  }
  return OPAL_SUCCESS;
}

/// `peer` or `given` is null where osc rdma 4.1 has mapped the target's memory itself, this rank's
/// own or a shared window's, and asks a transport for a compare-and-swap all the same; `address` is
/// then one of this process.
int start(Endpoint* peer, Operation operation, std::uint64_t address, const Handle* given,
          std::uint64_t operand, std::uint64_t compared, int flags, Outstanding o) {
  if ((flags & MCA_BTL_ATOMIC_FLAG_FLOAT) != 0) return OPAL_ERR_NOT_SUPPORTED;
  Node& node = *g_node;
  const std::uint16_t bytes = (flags & MCA_BTL_ATOMIC_FLAG_32BIT) != 0 ? 4 : 8;
  AskedOperation asked{operation, bytes, 0, address, 0, {operand, compared, 0}};
  if (peer == nullptr || given == nullptr) {
    if (carry_out(asked, reinterpret_cast<std::byte*>(address)) != 0) return OPAL_ERR_BAD_PARAM;
    return end_here(peer, asked, o);
  }
  Endpoint& endpoint = *peer;
  const Handle handle = handle_for(endpoint, *given, address, bytes);
  if (handle.block != 0 && do_here(node, endpoint, asked, handle)) {
    endpoint.counters->atomics.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
    return end_here(peer, asked, o);
  }
  OperationCell* cell = take_cell(endpoint);
  if (cell == nullptr) return OPAL_ERR_OUT_OF_RESOURCE;
  o.endpoint = &endpoint;
  o.cell = cell;
  o.bytes = bytes;
  cell->data[0] = operand;
  cell->data[1] = compared;
  post(endpoint, *cell, operation, bytes, address, handle.cookie);
  endpoint.counters->atomics.fetch_add(1, std::memory_order_relaxed);  // relaxed: for people
  if (answered_soon(node, *cell)) {
    answer(o);
    return OPAL_SUCCESS;
  }
  o.since_ns = monotonic_ns();
  std::lock_guard lock(node.outstanding_mutex);
  node.outstanding.push_back(o);
  node.outstanding_count.store(node.outstanding.size(),
                               std::memory_order_relaxed);  // relaxed: a hint
  return OPAL_SUCCESS;
}

void wake(Node& node, Endpoint& endpoint) {
  if (auto s = node.wakeups->send(endpoint.wakeups, kWake, {}, 1000); !s) {
    log(2, "rank %u cannot be woken: %s", static_cast<unsigned>(endpoint.name.vpid),
        s.error().message().c_str());
  }
}

}  // namespace

int finish_operations(Node& node) {
  if (node.outstanding_count.load(std::memory_order_relaxed) == 0) return 0;  // relaxed: a hint
  std::vector<Outstanding> finished;
  std::vector<Endpoint*> asleep;
  {
    std::unique_lock lock(node.outstanding_mutex, std::try_to_lock);
    if (!lock) return 0;
    const std::uint64_t now = monotonic_ns();
    std::erase_if(node.outstanding, [&](Outstanding& o) {
      if (done(*o.cell)) {
        finished.push_back(o);
        return true;
      }
      if (now >= o.since_ns + (o.woken ? kBetweenWakingsNs : kBeforeWakingNs)) {
        o.since_ns = now;
        o.woken = true;
        asleep.push_back(o.endpoint);
      }
      return false;
    });
    node.outstanding_count.store(node.outstanding.size(),
                                 std::memory_order_relaxed);  // relaxed: a hint
  }
  for (const Outstanding& o : finished) answer(o);
  for (Endpoint* endpoint : asleep) wake(node, *endpoint);
  return static_cast<int>(finished.size());
}

bool move_by_peer(Endpoint& endpoint, void* local, std::uint64_t address, const RdmaCookie& cookie,
                  std::size_t bytes, bool write) {
  if (take_one(endpoint.rest)) return false;
  OperationCell* cell = take_cell(endpoint);
  if (cell == nullptr) return false;
  if (write) std::memcpy(cell->data, local, bytes);
  post(endpoint, *cell, write ? Operation::kPut : Operation::kGet, bytes, address, cookie);
  if (!answered_soon(*g_node, *cell)) {
    CellState posted = CellState::kPosted;
    // PAIR cell.state: taken back, or a thread over there has it
    if (words::cas(cell->state, posted, CellState::kFree)) {
      give_back_cell(endpoint, cell);
      endpoint.rest.store(kRest, std::memory_order_relaxed);  // relaxed: a guess
      return false;
    }
    while (!done(*cell)) {
      if (!endpoint.remote.check().ok()) return false;  // the cell stays taken
      sched_yield();
    }
  }
  const bool moved = cell->error == 0;
  if (moved && !write) std::memcpy(local, cell->data, bytes);
  give_back_cell(endpoint, cell);
  return moved;
}

bool find_handle(Endpoint& endpoint, std::uint64_t address, std::size_t bytes, Handle* handle) {
  Node& node = *g_node;
  // What a cell cannot say is checked below.
  const auto asked = std::min<std::size_t>(bytes, UINT16_MAX);
  OperationCell* cell = take_cell(endpoint);
  if (cell == nullptr) return false;
  post(endpoint, *cell, Operation::kFind, asked, address, {});
  for (std::uint64_t woken = 0; !answered_soon(node, *cell);) {
    if (!endpoint.remote.check().ok()) return false;  // the cell stays taken
    const std::uint64_t now = monotonic_ns();
    if (now >= woken + kBetweenWakingsNs) {
      wake(node, endpoint);
      woken = now;
    }
    (void)serve_operations(node);
    sched_yield();
  }
  FoundWindow found;
  std::memcpy(&found, cell->data, sizeof found);
  const bool is_there = cell->error == 0;
  if (is_there) {
    *handle = {};
    handle->cookie = {.node = endpoint.node,
                      .key = cell->key,
                      .length = found.length,
                      .aperture = cell->aperture,
                      .generation = found.generation,
                      .rights = static_cast<Rights>(found.rights)};
    handle->base = found.base;
    handle->lasting = 1;
    handle->block = found.block;
  }
  give_back_cell(endpoint, cell);
  return is_there && covers(*handle, address, bytes);
}

Handle handle_for(Endpoint& endpoint, const Handle& given, std::uint64_t address,
                  std::size_t bytes) {
  Handle handle;
  if (read_handle(given, &handle) && covers(handle, address, bytes)) [[likely]]
    return handle;
  log(2, "rank %u is asked which window has %zu bytes at %llx",
      static_cast<unsigned>(endpoint.name.vpid), bytes, static_cast<unsigned long long>(address));
  if (!find_handle(endpoint, address, bytes, &handle)) handle = {};  // which nobody takes
  return handle;
}

int atomic_op(mca_btl_base_module_t*, Endpoint* endpoint, std::uint64_t address, Handle* handle,
              mca_btl_base_atomic_op_t op, std::uint64_t operand, int flags, int,
              mca_btl_base_rdma_completion_fn_t callback, void* context, void* data) {
  const Kind kind = kind_of(op);
  if (!kind.known) return OPAL_ERR_NOT_SUPPORTED;
  return start(endpoint, kind.operation, address, handle, operand, 0, flags,
               {.callback = callback, .context = context, .data = data});
}

int atomic_fop(mca_btl_base_module_t*, Endpoint* endpoint, void* local, std::uint64_t address,
               Handle* local_handle, Handle* handle, mca_btl_base_atomic_op_t op,
               std::uint64_t operand, int flags, int, mca_btl_base_rdma_completion_fn_t callback,
               void* context, void* data) {
  const Kind kind = kind_of(op);
  if (!kind.known) return OPAL_ERR_NOT_SUPPORTED;
  return start(endpoint, kind.operation, address, handle, operand, 0, flags,
               {.local = local,
                .local_handle = local_handle,
                .callback = callback,
                .context = context,
                .data = data});
}

int atomic_cswap(mca_btl_base_module_t*, Endpoint* endpoint, void* local, std::uint64_t address,
                 Handle* local_handle, Handle* handle, std::uint64_t compared, std::uint64_t value,
                 int flags, int, mca_btl_base_rdma_completion_fn_t callback, void* context,
                 void* data) {
  return start(endpoint, Operation::kCompareAndSwap, address, handle, value, compared, flags,
               {.local = local,
                .local_handle = local_handle,
                .callback = callback,
                .context = context,
                .data = data});
}

int flush(mca_btl_base_module_t*, Endpoint* endpoint) {
  Node& node = *g_node;
  const auto any = [&] {
    std::lock_guard lock(node.outstanding_mutex);
    return std::any_of(node.outstanding.begin(), node.outstanding.end(), [&](const Outstanding& o) {
      return endpoint == nullptr || o.endpoint == endpoint;
    });
  };
  while (any()) (void)progress();
  return OPAL_SUCCESS;
}

}  // namespace clan::mpi
