// Deliberate update (SHRIMP, 3.2).
#include "send.h"

using namespace clan::vmmc;

namespace clan::vmmc {
namespace {

// Longer sends use RDMA: a peer that polls helps to copy.
constexpr std::size_t kMostWritten = 64 * 1024;

Status send(vmmc_remote& remote, const Stretch& to, const void* source, bool notify) {
  if (to.bytes <= kMostWritten) {
    if (auto s = remote.aperture->write(to.offset, source, to.bytes); !s) return s;
    return notify ? notify_exporter(remote, to) : Status();
  }
  std::uint64_t handle = 0;
  Status s = remote.v->transfers.post(remote, to, source, notify, &handle);
  while (!s && s.error().err == EAGAIN) {
    if (s = remote.v->transfers.drain(remote); !s) return s;
    s = remote.v->transfers.post(remote, to, source, notify, &handle);
  }
  return s ? remote.v->transfers.wait(handle, kNoDeadline) : s;
}

// Adds without a locked instruction, which would take as long as the rest of a short send. If
// several threads send at once, the counts may miss some sends.
void count_send(std::size_t bytes) {
  VmmcPage& p = page();
  const auto add = [](VmmcPage::Count& counter, std::uint64_t n) {
    // relaxed: a statistic
    counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  };
  add(p.sends, 1);
  add(p.sent_bytes, bytes);
}

}  // namespace

bool has(const vmmc_remote& remote, const Stretch& what) {
  const std::uint64_t size = remote.aperture->size();
  return what.offset <= size && what.bytes <= size - what.offset;
}

Status notify_exporter(const vmmc_remote& remote, const Stretch& what) {
  count(page().notified);
  // An exporter that has gone is known here before the connection of its bell has ended.
  if (Status is_there = remote.aperture->check(); !is_there || !remote.bell) return is_there;
  return remote.v->bells.ring(*remote.bell, {remote.key, what.offset, what.bytes});
}

}  // namespace clan::vmmc

extern "C" CLAN_EXPORT int vmmc_send(vmmc_remote_t* remote, size_t offset, const void* source,
                                     size_t bytes, unsigned flags) {
  if (const int rc = check(remote); rc != 0) return rc;
  if ((flags & ~VMMC_NOTIFY) != 0) return -EINVAL;
  const int rc = answer(send(*remote, {offset, bytes}, source, (flags & VMMC_NOTIFY) != 0));
  count_send(bytes);  // after the data, which the peer waits for
  return rc;
}

extern "C" CLAN_EXPORT int vmmc_send_async(vmmc_remote_t* remote, size_t offset, const void* source,
                                           size_t bytes, unsigned flags, uint64_t* handle) {
  if (const int rc = check(remote); rc != 0) return rc;
  if (handle == nullptr || (flags & ~VMMC_NOTIFY) != 0) return -EINVAL;
  count_send(bytes);
  return answer(remote->v->transfers.post(*remote, {offset, bytes}, source,
                                          (flags & VMMC_NOTIFY) != 0, handle));
}

extern "C" CLAN_EXPORT int vmmc_test(vmmc_t* v, uint64_t handle) {
  const int rc = check(v);
  return rc != 0 ? rc : answer(v->transfers.test(handle));
}

extern "C" CLAN_EXPORT int vmmc_wait(vmmc_t* v, uint64_t handle, int64_t timeout_ms) {
  const int rc = check(v);
  return rc != 0 ? rc : answer(v->transfers.wait(handle, clan::deadline_after_ms(timeout_ms)));
}

extern "C" CLAN_EXPORT int vmmc_put_word(vmmc_remote_t* remote, size_t offset, uint64_t word) {
  if (const int rc = check(remote); rc != 0) return rc;
  count_send(sizeof word);
  if (auto s = remote->v->transfers.drain(*remote); !s) return answer(s);
  return answer(remote->aperture->publish(offset, word));
}

extern "C" CLAN_EXPORT int vmmc_notify(vmmc_remote_t* remote, size_t offset, size_t bytes) {
  if (const int rc = check(remote); rc != 0) return rc;
  if (!has(*remote, {offset, bytes})) return -ERANGE;
  return answer(notify_exporter(*remote, {offset, bytes}));
}
