// fi_read() and fi_write(). A small access goes as a message (transport/accesses.cc). Others are
// done when the call returns: the copy is this processor's work in any case, and so nothing that
// follows can overtake them.
#include <algorithm>
#include <cerrno>
#include <vector>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/deferred.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "wire/overlap.h"
#include "wire/pieces.h"

namespace clan::ofi {
namespace {

struct Access {
  bool write = false;
  const iovec* local = nullptr;
  std::size_t local_count = 0;
  const fi_rma_iov* remote = nullptr;
  std::size_t remote_count = 0;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  void* context = nullptr;
  std::uint64_t flags = 0;
  const std::uint64_t* data = nullptr;
  bool silent = false;  ///< fi_inject_write: no completion
  /// deferred work: `counter` counts it, the queue hears only with FI_COMPLETION
  bool deferred = false;
  Counter* counter = nullptr;
};

int copy(Transport& transport, Peer& peer, const Access& a) {
  return for_each_overlap(
      {a.local, a.local_count}, {a.remote, a.remote_count},
      [&](std::byte* local, std::size_t n, std::uint64_t key, std::uint64_t address) {
        return transport.access(peer, a.write, key, address, local, n);
      });
}

// How an access ends: the counter that counts it, and whether the queue gets a completion.
struct Ending {
  Counter* counter = nullptr;
  bool completion = false;
};

Ending ending_of(const Endpoint& endpoint, const Access& a) {
  if (a.deferred)
    return {a.counter, (a.flags & FI_COMPLETION) != 0 && endpoint.send_cq() != nullptr};
  return {endpoint.counter(a.write ? Endpoint::kWrites : Endpoint::kReads),
          !a.silent && endpoint.sends_complete(a.flags)};
}

std::uint64_t completion_flags(const Access& a) { return FI_RMA | (a.write ? FI_WRITE : FI_READ); }

std::size_t local_length(const Access& a) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < a.local_count; ++i) length += a.local[i].iov_len;
  return length;
}

std::size_t remote_length(const Access& a) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < a.remote_count; ++i) length += a.remote[i].len;
  return length;
}

// As a message, where the access is small and in one place. -FI_EOPNOTSUPP: not so.
int start_small(Endpoint& endpoint, const Endpoint::Target& target, const Access& a,
                std::size_t length, const Ending& ending) {
  if (a.remote_count != 1 || length == 0 || length > kMostSmallAccess || length != local_length(a))
    return -FI_EOPNOTSUPP;
  if (!a.write && a.local_count != 1) return -FI_EOPNOTSUPP;
  if (!target.peer->replies.empty() || endpoint.domain().progresses_alone()) return -FI_EOPNOTSUPP;
  return endpoint.transport().start_small_access(endpoint, *target.peer,
                                                 {.write = a.write,
                                                  .context = target.context,
                                                  .key = a.remote[0].key,
                                                  .address = a.remote[0].addr,
                                                  .local = a.local,
                                                  .local_count = a.local_count,
                                                  .length = length,
                                                  .data = a.data,
                                                  .program_context = a.context,
                                                  .completion = ending.completion,
                                                  .counter = ending.counter});
}

// 0, or -FI_EAGAIN: small accesses and atomic operations on their way come first, and so do notices
// that found no room.
int may_begin(Transport& transport, Peer& peer) {
  if (transport.finish_accesses(peer) != Transport::Left::kNone) {
    if (transport.domain().inherited()) return -ESHUTDOWN;
    transport.progress();
    if (transport.finish_accesses(peer) != Transport::Left::kNone) return -FI_EAGAIN;
  }
  if (peer.atomics == 0 && peer.replies.empty()) return 0;
  transport.progress();
  return peer.atomics == 0 && peer.replies.empty() ? 0 : -FI_EAGAIN;
}

// Bytes that are the caller's again when the call returns must last as long as the copy: `bytes`.
Access lasting_access(const Access& a, std::vector<std::byte>* bytes, iovec* piece) {
  if (!a.write || (!a.silent && (a.flags & FI_INJECT) == 0)) return a;
  Access lasting = a;
  bytes->resize(local_length(a));
  gather(bytes->data(), a.local, a.local_count);
  *piece = {bytes->data(), bytes->size()};
  lasting.local = piece;
  lasting.local_count = 1;
  return lasting;
}

// By system call. `begun`: the peer's driver thread makes it, and has not ended; `bytes` must last
// until it has.
int copy_now(Transport& transport, Peer& peer, const Access& a, std::vector<std::byte>* bytes,
             bool* begun, int* err) {
  iovec piece;
  const int rc = copy(transport, peer, lasting_access(a, bytes, &piece));
  if (!transport.memory().has_begun()) [[likely]]
    return rc;
  const int ended = transport.memory().end();
  *begun = ended == -FI_EINPROGRESS;
  *err = rc == -FI_EAGAIN ? ETIMEDOUT : -rc;
  return rc != 0 ? rc : ended;
}

// What to remember of an access that goes on when the call has returned.
SlowCopies copies_of(const Endpoint::Target& target, const Access& a, std::size_t length) {
  SlowCopies copies;
  copies.write = a.write;
  copies.context = target.context;
  copies.key = a.remote_count > 0 ? a.remote[0].key : 0;
  copies.address = a.remote_count > 0 ? a.remote[0].addr : 0;
  copies.length = length;
  if (a.data != nullptr) copies.data = *a.data;
  return copies;
}

SendRequest request_of(const Access& a, const Ending& ending) {
  SendRequest request;
  request.context = a.context;
  request.flags = completion_flags(a);
  request.completion = ending.completion;
  request.counter = ending.counter;
  return request;
}

// Tells the program how an access has ended.
void report(Endpoint& endpoint, const Access& a, const Ending& ending, int rc) {
  Completion completion;
  completion.context = a.context;
  completion.flags = completion_flags(a);
  if (rc != 0) {
    if (ending.counter != nullptr) ending.counter->count_error();
    if (endpoint.send_cq() != nullptr) endpoint.send_cq()->write_error(completion, -rc);
    return;
  }
  if (ending.counter != nullptr) ending.counter->count();
  if (ending.completion) endpoint.send_cq()->write(completion);
}

// Accesses memory on another host by RDMA, which ends later.
ssize_t access_far(Endpoint& endpoint, const Endpoint::Target& target, const Access& a) {
  Transport& transport = endpoint.transport();
  Peer& peer = *target.peer;
  if (const int rc = transport.ready_for_far(peer, a.write); rc != 0) return rc;
  if ((a.flags & FI_FENCE) != 0) {
    if (const int rc = transport.fence(peer); rc != 0) return rc;
  }
  if (const int rc = may_begin(transport, peer); rc != 0) return rc;
  const std::size_t length = remote_length(a);
  const Ending ending = ending_of(endpoint, a);
  std::vector<std::byte> bytes;
  iovec piece;
  FarPiece pieces[2 * kIovLimit];
  std::size_t count = 0;
  const Access lasting = lasting_access(a, &bytes, &piece);
  (void)for_each_overlap(
      {lasting.local, lasting.local_count}, {a.remote, a.remote_count},
      [&](std::byte* local, std::size_t n, std::uint64_t key, std::uint64_t address) {
        pieces[count++] = {local, n, key, address};
        return 0;
      });
  int rc = 0;
  if (count > 0) {
    rc = transport.start_far_access(endpoint, peer, request_of(a, ending),
                                    copies_of(target, a, length), std::span(pieces).first(count),
                                    std::move(bytes));
    if (rc == 0 || rc == -FI_EAGAIN || rc == -FI_ECONNREFUSED || rc == -FI_EHOSTUNREACH) return rc;
  } else if (peer.barriers > 0) {
    return -FI_EAGAIN;  // what tells the owner must not overtake accesses
  } else if (a.data != nullptr) {
    rc = transport.tell_owner(peer, target.context, a.write,
                              a.remote_count > 0 ? a.remote[0].key : 0,
                              a.remote_count > 0 ? a.remote[0].addr : 0, length, a.data);
    if (rc != 0) return rc;
  }
  report(endpoint, a, ending, rc);
  return 0;
}

// Under the lock.
ssize_t access_now(Endpoint& endpoint, const Access& a) {
  if (a.local_count > kIovLimit || a.remote_count > kIovLimit) return -FI_EINVAL;
  if (!endpoint.enabled()) return -FI_EOPBADSTATE;
  Transport& transport = endpoint.transport();
  const Endpoint::Target target = endpoint.target(a.peer);
  Peer* const peer = target.peer;
  if (peer == nullptr) return -target.err;
  if (!peer->name.local()) [[unlikely]]
    return access_far(endpoint, target, a);
  if (const int rc = transport.ready(*peer); rc != 0) return rc;
  if ((a.flags & FI_FENCE) != 0) [[unlikely]] {
    if (const int rc = transport.fence(*peer); rc != 0) return rc;
  }
  const std::size_t length = remote_length(a);
  const Ending ending = ending_of(endpoint, a);
  if (const int rc = start_small(endpoint, target, a, length, ending); rc != -FI_EOPNOTSUPP)
      [[likely]]
    return rc;
  if (const int rc = may_begin(transport, *peer); rc != 0) return rc;

  std::vector<std::byte> bytes;
  bool begun = false;
  int err = 0;
  const int rc = copy_now(transport, *peer, a, &bytes, &begun, &err);
  const std::uint64_t key = a.remote_count > 0 ? a.remote[0].key : 0;
  const auto tells_owner = [&] {
    return a.data != nullptr || (length > 0 && RemoteMemory::owner_listens(*peer, key));
  };
  if (begun) [[unlikely]] {
    SlowCopies copies = copies_of(target, a, length);
    copies.err = err;
    copies.tells_owner = tells_owner();
    transport.go_on_later(endpoint, *peer, request_of(a, ending), std::move(copies),
                          std::move(bytes));
    return 0;
  }
  if (rc == -FI_EAGAIN) return rc;
  // nobody is there: as with messages
  if (rc == -FI_ECONNREFUSED || rc == -FI_EHOSTUNREACH) return rc;
  if (rc == 0 && tells_owner()) {
    const std::uint64_t address = a.remote_count > 0 ? a.remote[0].addr : 0;
    const int told =
        transport.tell_owner(*peer, target.context, a.write, key, address, length, a.data);
    if (told != 0) return told;
  }
  report(endpoint, a, ending, rc);
  return 0;
}

// FI_TRIGGER: when the counter says so.
ssize_t access_later(Endpoint& endpoint, const Access& a) {
  Deferred deferred;
  if (!trigger_of(a.context, &deferred)) return -FI_EINVAL;
  deferred.endpoint = &endpoint;
  deferred.peer = a.peer;
  deferred.counter = endpoint.counter(a.write ? Endpoint::kWrites : Endpoint::kReads);
  deferred.context = a.context;
  deferred.flags = FI_RMA | (a.write ? FI_WRITE : FI_READ);
  const bool inject = a.write && (a.flags & FI_INJECT) != 0;
  deferred.start = [&endpoint, kept = a, body = Kept<iovec>(a.local, a.local_count, inject),
                    remote = std::vector<fi_rma_iov>(a.remote, a.remote + a.remote_count),
                    data = a.data != nullptr ? *a.data : 0]() mutable {
    Access again = kept;
    again.flags &= ~FI_TRIGGER;
    const std::span<const iovec> local = body.get();
    again.local = local.data();
    again.local_count = local.size();
    again.remote = remote.data();
    if (again.data != nullptr) again.data = &data;
    return access_now(endpoint, again);
  };
  endpoint.domain().defer(std::move(deferred));
  endpoint.domain().run_due();
  return 0;
}

ssize_t access(fid_ep* ep, const Access& a) {
  auto& endpoint = *static_cast<Endpoint*>(ep);
  std::lock_guard lock(endpoint.lock());
  if ((a.flags & FI_TRIGGER) != 0 && !a.silent) [[unlikely]]
    return access_later(endpoint, a);
  return access_now(endpoint, a);
}

// --- the table -----------------------------------------------------------------------------------

std::uint64_t default_flags(fid_ep* ep) { return static_cast<Endpoint*>(ep)->send_flags(); }

ssize_t simple(fid_ep* ep, bool write, const iovec* iov, std::size_t count, fi_addr_t peer,
               std::uint64_t address, std::uint64_t key, void* context, const std::uint64_t* data,
               bool silent = false) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < count; ++i) length += iov[i].iov_len;
  const fi_rma_iov remote{address, length, key};
  return access(ep, {.write = write,
                     .local = iov,
                     .local_count = count,
                     .remote = &remote,
                     .remote_count = 1,
                     .peer = peer,
                     .context = context,
                     .flags = default_flags(ep),
                     .data = data,
                     .silent = silent});
}

ssize_t rma_read(fid_ep* ep, void* buffer, std::size_t length, void*, fi_addr_t from,
                 std::uint64_t address, std::uint64_t key, void* context) {
  const iovec iov{buffer, length};
  return simple(ep, false, &iov, 1, from, address, key, context, nullptr);
}

ssize_t rma_readv(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t from,
                  std::uint64_t address, std::uint64_t key, void* context) {
  return simple(ep, false, iov, count, from, address, key, context, nullptr);
}

Access from_message(bool write, const fi_msg_rma& msg, std::uint64_t flags) {
  return {.write = write,
          .local = msg.msg_iov,
          .local_count = msg.iov_count,
          .remote = msg.rma_iov,
          .remote_count = msg.rma_iov_count,
          .peer = msg.addr,
          .context = msg.context,
          .flags = flags,
          .data = (flags & FI_REMOTE_CQ_DATA) != 0 ? &msg.data : nullptr};
}

ssize_t rma_readmsg(fid_ep* ep, const fi_msg_rma* msg, std::uint64_t flags) {
  return access(ep, from_message(false, *msg, flags));
}

ssize_t rma_write(fid_ep* ep, const void* buffer, std::size_t length, void*, fi_addr_t to,
                  std::uint64_t address, std::uint64_t key, void* context) {
  const iovec iov{const_cast<void*>(buffer), length};
  return simple(ep, true, &iov, 1, to, address, key, context, nullptr);
}

ssize_t rma_writev(fid_ep* ep, const iovec* iov, void**, std::size_t count, fi_addr_t to,
                   std::uint64_t address, std::uint64_t key, void* context) {
  return simple(ep, true, iov, count, to, address, key, context, nullptr);
}

ssize_t rma_writemsg(fid_ep* ep, const fi_msg_rma* msg, std::uint64_t flags) {
  return access(ep, from_message(true, *msg, flags));
}

ssize_t rma_inject(fid_ep* ep, const void* buffer, std::size_t length, fi_addr_t to,
                   std::uint64_t address, std::uint64_t key) {
  if (length > kInjectBytes) return -FI_EMSGSIZE;
  const iovec iov{const_cast<void*>(buffer), length};
  return simple(ep, true, &iov, 1, to, address, key, nullptr, nullptr, true);
}

ssize_t rma_writedata(fid_ep* ep, const void* buffer, std::size_t length, void*, std::uint64_t data,
                      fi_addr_t to, std::uint64_t address, std::uint64_t key, void* context) {
  const iovec iov{const_cast<void*>(buffer), length};
  return simple(ep, true, &iov, 1, to, address, key, context, &data);
}

ssize_t rma_injectdata(fid_ep* ep, const void* buffer, std::size_t length, std::uint64_t data,
                       fi_addr_t to, std::uint64_t address, std::uint64_t key) {
  if (length > kInjectBytes) return -FI_EMSGSIZE;
  const iovec iov{const_cast<void*>(buffer), length};
  return simple(ep, true, &iov, 1, to, address, key, nullptr, &data, true);
}

}  // namespace

ssize_t start_access(Endpoint& endpoint, bool write, const fi_msg_rma& msg, std::uint64_t flags,
                     Counter* counter) {
  Access a = from_message(write, msg, flags);
  a.deferred = true;
  a.counter = counter;
  return access_now(endpoint, a);
}

fi_ops_rma g_rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = guarded<rma_read>,
    .readv = guarded<rma_readv>,
    .readmsg = guarded<rma_readmsg>,
    .write = guarded<rma_write>,
    .writev = guarded<rma_writev>,
    .writemsg = guarded<rma_writemsg>,
    .inject = guarded<rma_inject>,
    .writedata = guarded<rma_writedata>,
    .injectdata = guarded<rma_injectdata>,
};

}  // namespace clan::ofi
