// fi_atomic() and its like: a message that the owner of the memory carries out, and its answer.
//
// Short ones (Op::kAtomic) have one target and travel in one record of the ring, as does the
// answer. The others (Op::kLongAtomic) are posted like any long message: they keep their place
// among the others, and their operands stay where they are until the owner copies them. The owner
// works on them, and answers, in steps.
#include <algorithm>
#include <cstring>
#include <vector>

#include "objects/counter.h"
#include "objects/deferred.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "objects/memory_region.h"
#include "system/atomic_types.h"
#include "wire/pieces.h"

namespace clan::ofi {
namespace {

struct Vector {
  const fi_ioc* ioc = nullptr;
  std::size_t count = 0;
};

struct Atomic {
  AtomicKind kind = AtomicKind::kWrite;
  fi_datatype type = FI_UINT64;
  fi_op op = FI_SUM;
  Vector operands, comparands, results;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  const fi_rma_ioc* targets = nullptr;
  std::size_t target_count = 1;
  void* context = nullptr;
  std::uint64_t flags = 0;
  bool silent = false;  ///< fi_inject_atomic: no completion
  /// deferred work: `counter` counts it, the queue hears only with FI_COMPLETION
  bool deferred = false;
  Counter* counter = nullptr;
};

// Appends the pieces of a vector. The number of values in it; kWrong: too many pieces.
constexpr std::size_t kWrong = ~std::size_t{0};
std::size_t append(const Vector& vector, std::size_t size, iovec* iov, std::size_t* count) {
  if (vector.count > kIovLimit) return kWrong;
  std::size_t values = 0;
  for (std::size_t i = 0; i < vector.count; ++i) {
    iov[(*count)++] = {vector.ioc[i].addr, vector.ioc[i].count * size};
    values += vector.ioc[i].count;
  }
  return values;
}

// Values that all targets have together; kWrong: more than there can be.
std::size_t count_targets(const Atomic& a, std::size_t most) {
  if (a.target_count > kIovLimit) return kWrong;
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.target_count; ++i) {
    if (a.targets[i].count > most - count) return kWrong;
    count += a.targets[i].count;
  }
  return count;
}

// Where its completion goes.
void report_to(Endpoint& endpoint, const Atomic& a, SendRequest& message) {
  if (a.deferred) {
    message.completion = (a.flags & FI_COMPLETION) != 0 && endpoint.send_cq() != nullptr;
    message.counter = a.counter;
  } else {
    message.completion = !a.silent && endpoint.sends_complete(a.flags);
    message.counter =
        endpoint.counter(a.kind != AtomicKind::kWrite ? Endpoint::kReads : Endpoint::kWrites);
  }
}

// Under the lock.
ssize_t start_now(Endpoint& endpoint, const Atomic& a) {
  const std::size_t size = atomic_size(a.type);
  if (size == 0 || !atomic_valid(a.type, a.op, a.kind)) return -FI_EOPNOTSUPP;
  const std::size_t count = count_targets(a, kMostAtomicBytes / size);
  if (count == 0 || count == kWrong) return -FI_EINVAL;
  const bool is_short = a.target_count == 1 && count <= kShortAtomicBytes / size;

  AtomicRequest request;
  request.address = a.targets[0].addr;
  request.count = static_cast<std::uint32_t>(is_short              ? count
                                             : a.target_count == 1 ? 0
                                                                   : a.target_count);
  request.type = static_cast<std::uint8_t>(a.type);
  request.op = static_cast<std::uint8_t>(a.op);
  request.kind = static_cast<std::uint8_t>(a.kind);
  AtomicTarget table[kIovLimit];
  iovec pieces[2 + 2 * kIovLimit];
  std::size_t pieces_count = 0;
  pieces[pieces_count++] = {&request, sizeof request};
  std::size_t head = sizeof request;
  if (a.target_count > 1) {
    for (std::size_t i = 0; i < a.target_count; ++i)
      table[i] = {a.targets[i].addr, a.targets[i].count, a.targets[i].key};
    pieces[pieces_count++] = {table, a.target_count * sizeof *table};
    head += a.target_count * sizeof *table;
  }
  const std::size_t operands = atomic_operands(a.op, a.kind);
  if (operands > 0 && append(a.operands, size, pieces, &pieces_count) != count) return -FI_EINVAL;
  if (operands > 1 && append(a.comparands, size, pieces, &pieces_count) != count) return -FI_EINVAL;
  iovec results[kIovLimit];
  std::size_t results_count = 0;
  if (a.kind != AtomicKind::kWrite && append(a.results, size, results, &results_count) != count)
    return -FI_EINVAL;

  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  const Endpoint::Target target = endpoint.target(a.peer);
  if (target.peer == nullptr) return -target.err;
  const bool reads = a.kind != AtomicKind::kWrite;
  SendRequest message;
  message.header.op = is_short ? Op::kAtomic : Op::kLongAtomic;
  message.header.context = target.context;
  message.header.tag = a.targets[0].key;
  message.iov = pieces;
  message.count = pieces_count;
  message.length = head + operands * count * size;
  message.context = a.context;
  message.flags = FI_ATOMIC | (reads ? FI_READ : FI_WRITE);
  report_to(endpoint, a, message);
  if ((a.flags & FI_FENCE) != 0) [[unlikely]] {
    if (const int rc = endpoint.transport().fence(*target.peer); rc != 0) return rc;
  }
  const std::span<const iovec> found(results, results_count);
  if (is_short) [[likely]]
    return endpoint.transport().start_atomic(endpoint, *target.peer, message, found);
  message.inject = a.silent || (a.flags & FI_INJECT) != 0;
  if (message.inject && message.length - head > kInjectBytes) return -FI_EMSGSIZE;
  message.header.data = count;
  return endpoint.transport().start_atomic(endpoint, *target.peer, message, found);
}

std::size_t values_in(const fi_ioc* ioc, std::size_t count) {
  std::size_t values = 0;
  for (std::size_t i = 0; i < count; ++i) values += ioc[i].count;
  return values;
}

// FI_TRIGGER: when the counter says so.
ssize_t start_later(Endpoint& endpoint, const Atomic& a) {
  Deferred deferred;
  if (!trigger_of(a.context, &deferred)) return -FI_EINVAL;
  const std::size_t size = atomic_size(a.type);
  if (size == 0) return -FI_EOPNOTSUPP;
  // With FI_INJECT: the vectors that have bytes.
  const std::size_t with_bytes = (a.flags & FI_INJECT) != 0 ? atomic_operands(a.op, a.kind) : 0;
  const auto too_long = [most = kInjectBytes / size / std::max<std::size_t>(with_bytes, 1)](
                            const Vector& v) { return values_in(v.ioc, v.count) > most; };
  if ((with_bytes > 0 && too_long(a.operands)) || (with_bytes > 1 && too_long(a.comparands)))
    return -FI_EMSGSIZE;
  deferred.endpoint = &endpoint;
  deferred.peer = a.peer;
  const bool reads = a.kind != AtomicKind::kWrite;
  deferred.counter = endpoint.counter(reads ? Endpoint::kReads : Endpoint::kWrites);
  deferred.context = a.context;
  deferred.flags = FI_ATOMIC | (reads ? FI_READ : FI_WRITE);
  deferred.start =
      [&endpoint, kept = a, operands = Kept(a.operands.ioc, a.operands.count, with_bytes > 0, size),
       comparands = Kept(a.comparands.ioc, a.comparands.count, with_bytes > 1, size),
       results = std::vector<fi_ioc>(a.results.ioc, a.results.ioc + a.results.count),
       targets = std::vector<fi_rma_ioc>(a.targets, a.targets + a.target_count)]() mutable {
        Atomic again = kept;
        again.flags &= ~FI_TRIGGER;
        again.targets = targets.data();
        const auto vector_of = [](std::span<const fi_ioc> v) { return Vector{v.data(), v.size()}; };
        again.operands = vector_of(operands.get());
        again.comparands = vector_of(comparands.get());
        again.results.ioc = results.data();
        return start_now(endpoint, again);
      };
  endpoint.domain().defer(std::move(deferred));
  endpoint.domain().run_due();
  return 0;
}

ssize_t start(fid_ep* ep, const Atomic& a) {
  auto& endpoint = *static_cast<Endpoint*>(ep);
  std::lock_guard lock(endpoint.lock());
  if ((a.flags & FI_TRIGGER) != 0 && !a.silent) [[unlikely]]
    return start_later(endpoint, a);
  return start_now(endpoint, a);
}

// --- the table -----------------------------------------------------------------------------------

std::uint64_t default_flags(fid_ep* ep) { return static_cast<Endpoint*>(ep)->send_flags(); }

// Describes a call that has one target.
Atomic simple(fid_ep* ep, AtomicKind kind, fi_addr_t peer, const fi_rma_ioc& target,
              fi_datatype type, fi_op op, void* context) {
  Atomic a;
  a.kind = kind;
  a.type = type;
  a.op = op;
  a.peer = peer;
  a.targets = &target;
  a.context = context;
  a.flags = default_flags(ep);
  return a;
}

// Describes a call with a fi_msg_atomic.
Atomic from_message(AtomicKind kind, const fi_msg_atomic& msg, std::uint64_t flags) {
  Atomic a;
  a.kind = kind;
  a.type = msg.datatype;
  a.op = msg.op;
  a.operands = {msg.msg_iov, msg.iov_count};
  a.peer = msg.addr;
  a.targets = msg.rma_iov;
  a.target_count = msg.rma_iov_count;
  a.context = msg.context;
  a.flags = flags;
  return a;
}

ssize_t atomic_write(fid_ep* ep, const void* buffer, std::size_t count, void*, fi_addr_t to,
                     std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                     void* context) {
  const fi_rma_ioc target{address, count, key};
  Atomic a = simple(ep, AtomicKind::kWrite, to, target, type, op, context);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  a.operands = {&operand, 1};
  return start(ep, a);
}

ssize_t atomic_writev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count, fi_addr_t to,
                      std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                      void* context) {
  const fi_rma_ioc target{address, values_in(iov, count), key};
  Atomic a = simple(ep, AtomicKind::kWrite, to, target, type, op, context);
  a.operands = {iov, count};
  return start(ep, a);
}

ssize_t atomic_writemsg(fid_ep* ep, const fi_msg_atomic* msg, std::uint64_t flags) {
  Atomic a = from_message(AtomicKind::kWrite, *msg, flags);
  return start(ep, a);
}

ssize_t atomic_inject(fid_ep* ep, const void* buffer, std::size_t count, fi_addr_t to,
                      std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op) {
  const std::size_t size = atomic_size(type);
  if (size != 0 && count > kInjectBytes / size) return -FI_EMSGSIZE;
  const fi_rma_ioc target{address, count, key};
  Atomic a = simple(ep, AtomicKind::kWrite, to, target, type, op, nullptr);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  a.operands = {&operand, 1};
  a.silent = true;
  return start(ep, a);
}

ssize_t atomic_readwrite(fid_ep* ep, const void* buffer, std::size_t count, void*, void* result,
                         void*, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                         fi_datatype type, fi_op op, void* context) {
  const fi_rma_ioc target{address, count, key};
  Atomic a = simple(ep, AtomicKind::kFetch, to, target, type, op, context);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  const fi_ioc found{result, count};
  a.operands = {&operand, 1};
  a.results = {&found, 1};
  return start(ep, a);
}

ssize_t atomic_readwritev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count, fi_ioc* resultv,
                          void**, std::size_t result_count, fi_addr_t to, std::uint64_t address,
                          std::uint64_t key, fi_datatype type, fi_op op, void* context) {
  // Without operands (FI_ATOMIC_READ) the results say how many.
  const std::size_t values =
      op == FI_ATOMIC_READ ? values_in(resultv, result_count) : values_in(iov, count);
  const fi_rma_ioc target{address, values, key};
  Atomic a = simple(ep, AtomicKind::kFetch, to, target, type, op, context);
  a.operands = {iov, count};
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_readwritemsg(fid_ep* ep, const fi_msg_atomic* msg, fi_ioc* resultv, void**,
                            std::size_t result_count, std::uint64_t flags) {
  Atomic a = from_message(AtomicKind::kFetch, *msg, flags);
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_compwrite(fid_ep* ep, const void* buffer, std::size_t count, void*,
                         const void* compare, void*, void* result, void*, fi_addr_t to,
                         std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                         void* context) {
  const fi_rma_ioc target{address, count, key};
  Atomic a = simple(ep, AtomicKind::kCompare, to, target, type, op, context);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  const fi_ioc comparand{const_cast<void*>(compare), count};
  const fi_ioc found{result, count};
  a.operands = {&operand, 1};
  a.comparands = {&comparand, 1};
  a.results = {&found, 1};
  return start(ep, a);
}

ssize_t atomic_compwritev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count,
                          const fi_ioc* comparev, void**, std::size_t compare_count,
                          fi_ioc* resultv, void**, std::size_t result_count, fi_addr_t to,
                          std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                          void* context) {
  const fi_rma_ioc target{address, values_in(iov, count), key};
  Atomic a = simple(ep, AtomicKind::kCompare, to, target, type, op, context);
  a.operands = {iov, count};
  a.comparands = {comparev, compare_count};
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_compwritemsg(fid_ep* ep, const fi_msg_atomic* msg, const fi_ioc* comparev, void**,
                            std::size_t compare_count, fi_ioc* resultv, void**,
                            std::size_t result_count, std::uint64_t flags) {
  Atomic a = from_message(AtomicKind::kCompare, *msg, flags);
  a.comparands = {comparev, compare_count};
  a.results = {resultv, result_count};
  return start(ep, a);
}

template <AtomicKind kKind>
int valid(fid_ep*, fi_datatype type, fi_op op, std::size_t* count) {
  const std::size_t size = atomic_size(type);
  if (size == 0 || !atomic_valid(type, op, kKind)) return -FI_EOPNOTSUPP;
  *count = kMostAtomicBytes / size;
  return 0;
}

}  // namespace

ssize_t start_atomic(Endpoint& endpoint, AtomicKind kind, const fi_msg_atomic& msg,
                     const fi_msg_fetch* fetch, const fi_msg_compare* compare, std::uint64_t flags,
                     Counter* counter) {
  Atomic a = from_message(kind, msg, flags);
  if (kind != AtomicKind::kWrite) a.results = {fetch->msg_iov, fetch->iov_count};
  if (kind == AtomicKind::kCompare) a.comparands = {compare->msg_iov, compare->iov_count};
  a.deferred = true;
  a.counter = counter;
  return start_now(endpoint, a);
}

// --- carrying out --------------------------------------------------------------------------------

int apply_atomic(const MemoryRegion& region, std::uint64_t address, fi_datatype type, fi_op op,
                 AtomicKind kind, const std::byte* operands, const std::byte* comparands,
                 std::byte* found, std::size_t count) {
  const std::size_t size = atomic_size(type);
  const std::uint64_t access = atomic_access(op, kind);
  if (std::byte* target = region.locate(address, count * size, access); target != nullptr)
      [[likely]] {
    apply_atomic(type, op, target, operands, comparands, found, count);
    return 0;
  }
  if (!region.allows(address, count * size, access)) return FI_EACCES;
  // It lies in several pieces: value by value. One across a border is put together, and not atomic.
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = address + i * size;
    std::byte* const result = found != nullptr ? found + i * size : nullptr;
    if (std::byte* target = region.locate(at, size, access); target != nullptr) {
      apply_atomic(type, op, target, operands + i * size, comparands + i * size, result, 1);
      continue;
    }
    std::byte value[sizeof(long double) * 2];
    for (std::size_t b = 0; b < size; ++b) value[b] = *region.locate(at + b, 1, access);
    apply_atomic(type, op, value, operands + i * size, comparands + i * size, result, 1);
    if (op == FI_ATOMIC_READ) continue;
    for (std::size_t b = 0; b < size; ++b) *region.locate(at + b, 1, access) = value[b];
  }
  return 0;
}

fi_ops_atomic g_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = guarded<atomic_write>,
    .writev = guarded<atomic_writev>,
    .writemsg = guarded<atomic_writemsg>,
    .inject = guarded<atomic_inject>,
    .readwrite = guarded<atomic_readwrite>,
    .readwritev = guarded<atomic_readwritev>,
    .readwritemsg = guarded<atomic_readwritemsg>,
    .compwrite = guarded<atomic_compwrite>,
    .compwritev = guarded<atomic_compwritev>,
    .compwritemsg = guarded<atomic_compwritemsg>,
    .writevalid = guarded<valid<AtomicKind::kWrite>>,
    .readwritevalid = guarded<valid<AtomicKind::kFetch>>,
    .compwritevalid = guarded<valid<AtomicKind::kCompare>>,
};

}  // namespace clan::ofi
