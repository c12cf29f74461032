// fi_atomic() and its like: a message that the owner of the memory carries out, and its answer.
#include <cstring>
#include <vector>

#include "atomic_types.h"
#include "counter.h"
#include "deferred.h"
#include "domain.h"
#include "endpoint.h"

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
  fi_rma_ioc remote{};
  void* context = nullptr;
  std::uint64_t flags = 0;
  bool silent = false;    ///< fi_inject_atomic: no completion
  bool deferred = false;  ///< deferred work: `counter` counts it, the queue hears only with FI_COMPLETION
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

// Under the lock.
ssize_t start_now(Endpoint& endpoint, const Atomic& a) {
  const std::size_t size = atomic_size(a.type);
  if (size == 0 || !atomic_valid(a.type, a.op, a.kind)) return -FI_EOPNOTSUPP;
  const std::size_t count = a.remote.count;
  if (count == 0 || count > kMostAtomicBytes / size) return -FI_EINVAL;

  AtomicRequest request;
  request.address = a.remote.addr;
  request.count = static_cast<std::uint32_t>(count);
  request.type = static_cast<std::uint8_t>(a.type);
  request.op = static_cast<std::uint8_t>(a.op);
  request.kind = static_cast<std::uint8_t>(a.kind);
  iovec pieces[1 + 2 * kIovLimit];
  std::size_t pieces_count = 0;
  pieces[pieces_count++] = {&request, sizeof request};
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
  Sending sending;
  sending.header.op = Op::kAtomic;
  sending.header.context = target.context;
  sending.header.tag = a.remote.key;
  sending.iov = pieces;
  sending.count = pieces_count;
  sending.length = sizeof request + operands * count * size;
  sending.context = a.context;
  sending.flags = FI_ATOMIC | (reads ? FI_READ : FI_WRITE);
  if (a.deferred) {
    sending.completion = (a.flags & FI_COMPLETION) != 0 && endpoint.send_cq() != nullptr;
    sending.counter = a.counter;
  } else {
    sending.completion = !a.silent && endpoint.sends_complete(a.flags);
    sending.counter = endpoint.counter(reads ? Endpoint::kReads : Endpoint::kWrites);
  }
  return endpoint.port().start_atomic(endpoint, *target.peer, sending, results, results_count);
}

// FI_TRIGGER: when the counter says so.
ssize_t start_later(Endpoint& endpoint, const Atomic& a) {
  Deferred deferred;
  if (!trigger_of(a.context, &deferred)) return -FI_EINVAL;
  const auto copy = [](const Vector& v) { return std::vector<fi_ioc>(v.ioc, v.ioc + v.count); };
  deferred.endpoint = &endpoint;
  deferred.start = [&endpoint, kept = a, operands = copy(a.operands), comparands = copy(a.comparands),
                    results = copy(a.results)]() {
    Atomic again = kept;
    again.flags &= ~FI_TRIGGER;
    again.operands.ioc = operands.data();
    again.comparands.ioc = comparands.data();
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

// --- the table -------------------------------------------------------------------------------------

std::uint64_t default_flags(fid_ep* ep) { return static_cast<Endpoint*>(ep)->send_flags(); }

// Of a call that has one buffer for each: the target takes as many values as the operands have.
Atomic simple(fid_ep* ep, AtomicKind kind, fi_addr_t peer, std::uint64_t address, std::uint64_t key,
              fi_datatype type, fi_op op, void* context, std::size_t count) {
  Atomic a;
  a.kind = kind;
  a.type = type;
  a.op = op;
  a.peer = peer;
  a.remote = {address, count, key};
  a.context = context;
  a.flags = default_flags(ep);
  return a;
}

std::size_t values_in(const fi_ioc* ioc, std::size_t count) {
  std::size_t values = 0;
  for (std::size_t i = 0; i < count; ++i) values += ioc[i].count;
  return values;
}

// Of a call with a fi_msg_atomic. False: it has several targets.
bool from_message(AtomicKind kind, const fi_msg_atomic* msg, std::uint64_t flags, Atomic* a) {
  if (msg->rma_iov_count != 1) return false;
  a->kind = kind;
  a->type = msg->datatype;
  a->op = msg->op;
  a->operands = {msg->msg_iov, msg->iov_count};
  a->peer = msg->addr;
  a->remote = msg->rma_iov[0];
  a->context = msg->context;
  a->flags = flags;
  return true;
}

ssize_t atomic_write(fid_ep* ep, const void* buffer, std::size_t count, void*, fi_addr_t to,
                     std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op, void* context) {
  Atomic a = simple(ep, AtomicKind::kWrite, to, address, key, type, op, context, count);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  a.operands = {&operand, 1};
  return start(ep, a);
}

ssize_t atomic_writev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count, fi_addr_t to,
                      std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op, void* context) {
  Atomic a = simple(ep, AtomicKind::kWrite, to, address, key, type, op, context, values_in(iov, count));
  a.operands = {iov, count};
  return start(ep, a);
}

ssize_t atomic_writemsg(fid_ep* ep, const fi_msg_atomic* msg, std::uint64_t flags) {
  Atomic a;
  if (!from_message(AtomicKind::kWrite, msg, flags, &a)) return -FI_EINVAL;
  return start(ep, a);
}

ssize_t atomic_inject(fid_ep* ep, const void* buffer, std::size_t count, fi_addr_t to, std::uint64_t address,
                      std::uint64_t key, fi_datatype type, fi_op op) {
  if (count * atomic_size(type) > kInjectBytes) return -FI_EMSGSIZE;
  Atomic a = simple(ep, AtomicKind::kWrite, to, address, key, type, op, nullptr, count);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  a.operands = {&operand, 1};
  a.silent = true;
  return start(ep, a);
}

ssize_t atomic_readwrite(fid_ep* ep, const void* buffer, std::size_t count, void*, void* result, void*,
                         fi_addr_t to, std::uint64_t address, std::uint64_t key, fi_datatype type, fi_op op,
                         void* context) {
  Atomic a = simple(ep, AtomicKind::kFetch, to, address, key, type, op, context, count);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  const fi_ioc found{result, count};
  a.operands = {&operand, 1};
  a.results = {&found, 1};
  return start(ep, a);
}

ssize_t atomic_readwritev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count, fi_ioc* resultv, void**,
                          std::size_t result_count, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                          fi_datatype type, fi_op op, void* context) {
  // Without operands (FI_ATOMIC_READ) the results say how many.
  const std::size_t values = op == FI_ATOMIC_READ ? values_in(resultv, result_count) : values_in(iov, count);
  Atomic a = simple(ep, AtomicKind::kFetch, to, address, key, type, op, context, values);
  a.operands = {iov, count};
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_readwritemsg(fid_ep* ep, const fi_msg_atomic* msg, fi_ioc* resultv, void**,
                            std::size_t result_count, std::uint64_t flags) {
  Atomic a;
  if (!from_message(AtomicKind::kFetch, msg, flags, &a)) return -FI_EINVAL;
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_compwrite(fid_ep* ep, const void* buffer, std::size_t count, void*, const void* compare, void*,
                         void* result, void*, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                         fi_datatype type, fi_op op, void* context) {
  Atomic a = simple(ep, AtomicKind::kCompare, to, address, key, type, op, context, count);
  const fi_ioc operand{const_cast<void*>(buffer), count};
  const fi_ioc comparand{const_cast<void*>(compare), count};
  const fi_ioc found{result, count};
  a.operands = {&operand, 1};
  a.comparands = {&comparand, 1};
  a.results = {&found, 1};
  return start(ep, a);
}

ssize_t atomic_compwritev(fid_ep* ep, const fi_ioc* iov, void**, std::size_t count, const fi_ioc* comparev,
                          void**, std::size_t compare_count, fi_ioc* resultv, void**,
                          std::size_t result_count, fi_addr_t to, std::uint64_t address, std::uint64_t key,
                          fi_datatype type, fi_op op, void* context) {
  Atomic a = simple(ep, AtomicKind::kCompare, to, address, key, type, op, context, values_in(iov, count));
  a.operands = {iov, count};
  a.comparands = {comparev, compare_count};
  a.results = {resultv, result_count};
  return start(ep, a);
}

ssize_t atomic_compwritemsg(fid_ep* ep, const fi_msg_atomic* msg, const fi_ioc* comparev, void**,
                            std::size_t compare_count, fi_ioc* resultv, void**, std::size_t result_count,
                            std::uint64_t flags) {
  Atomic a;
  if (!from_message(AtomicKind::kCompare, msg, flags, &a)) return -FI_EINVAL;
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

ssize_t start_atomic(Endpoint& endpoint, AtomicKind kind, const fi_msg_atomic& msg, const fi_msg_fetch* fetch,
                     const fi_msg_compare* compare, std::uint64_t flags, Counter* counter) {
  Atomic a;
  if (!from_message(kind, &msg, flags, &a)) return -FI_EINVAL;
  if (kind != AtomicKind::kWrite) a.results = {fetch->msg_iov, fetch->iov_count};
  if (kind == AtomicKind::kCompare) a.comparands = {compare->msg_iov, compare->iov_count};
  a.deferred = true;
  a.counter = counter;
  return start_now(endpoint, a);
}

fi_ops_atomic g_atomic_ops = {
    .size = sizeof(fi_ops_atomic),
    .write = atomic_write,
    .writev = atomic_writev,
    .writemsg = atomic_writemsg,
    .inject = atomic_inject,
    .readwrite = atomic_readwrite,
    .readwritev = atomic_readwritev,
    .readwritemsg = atomic_readwritemsg,
    .compwrite = atomic_compwrite,
    .compwritev = atomic_compwritev,
    .compwritemsg = atomic_compwritemsg,
    .writevalid = valid<AtomicKind::kWrite>,
    .readwritevalid = valid<AtomicKind::kFetch>,
    .compwritevalid = valid<AtomicKind::kCompare>,
};

}  // namespace clan::ofi
