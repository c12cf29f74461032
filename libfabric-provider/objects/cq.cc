#include "objects/cq.h"

#include <clan/detail/clock.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "objects/domain.h"
#include "transport/transport.h"

namespace clan::ofi {
namespace {

/// in a row, about 10 us, before the processor is offered to others
constexpr unsigned kEmptyReads = 256;

}  // namespace

fi_ops Cq::ops_ = object_ops(close_object<Cq>, not_supported, control_wait<Cq>);

fi_ops_cq Cq::cq_ops_ = {
    .size = sizeof(fi_ops_cq),
    .read = Cq::read,
    .readfrom = Cq::read_from,
    .readerr = Cq::read_error,
    .sread = Cq::sread,
    .sreadfrom = Cq::sread_from,
    .signal = Cq::signal,
    .strerror = Cq::error_text,
};

Cq::Cq(Domain& domain, std::size_t size)
    : domain_(domain),
      domain_held_(domain.references()),
      ring_(std::bit_ceil(std::clamp<std::size_t>(size, 64, 65536))),
      waiter_(domain.context().options().wait) {}

int Cq::open(fid_domain* id, fi_cq_attr* attr, fid_cq** cq, void* context) {
  auto& domain = *static_cast<Domain*>(id);
  if (attr == nullptr) return -FI_EINVAL;
  if ((attr->flags & ~FI_AFFINITY) != 0) return -FI_EINVAL;
  if (attr->format > FI_CQ_FORMAT_TAGGED) return -FI_ENOSYS;
  if (attr->wait_cond > FI_CQ_COND_THRESHOLD) return -FI_ENOSYS;
  auto* made = new (std::nothrow) Cq(domain, attr->size);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_CQ, context, &ops_};
  made->ops = &cq_ops_;
  made->format_ = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr->format;
  attr->format = made->format_;
  made->condition_ = attr->wait_cond;
  if (int rc = made->wait_.open(attr->wait_obj, attr->wait_set, *made, &domain); rc != 0) {
    delete made;
    return rc;
  }
  *cq = made;
  return 0;
}

void Cq::lose(const char* what) {
  if (!std::exchange(overrun_, true)) FI_WARN(&g_provider, FI_LOG_CQ, "no memory for %s\n", what);
  wait_.signal();
}

// False: there is no memory.
bool Cq::grow() try {
  std::vector<Completion> larger(ring_.size() * 2);
  for (std::uint64_t i = head_; i != tail_; ++i)
    larger[i & (larger.size() - 1)] = ring_[i & (ring_.size() - 1)];
  ring_.swap(larger);
  return true;
} catch (const std::bad_alloc&) {
  lose("completions");
  return false;
}

void Cq::write_error(const Completion& completion, int err, std::size_t olen, const void* raw,
                     std::size_t raw_bytes) try {
  ErrorEntry error;
  error.position = tail_;
  error.entry.op_context = completion.context;
  error.entry.flags = completion.flags;
  error.entry.len = completion.length;
  error.entry.buf = completion.buffer;
  error.entry.data = completion.data;
  error.entry.tag = completion.tag;
  error.entry.olen = olen;
  error.entry.err = err;
  error.entry.prov_errno = err;
  if (raw != nullptr)
    error.data.assign(static_cast<const char*>(raw), static_cast<const char*>(raw) + raw_bytes);
  errors_.push_back(std::move(error));
  wait_.signal();
} catch (const std::bad_alloc&) {
  lose("errors");
}

void Cq::progress() {
  transports_.progress(this);
  if (domain_.has_deferred()) [[unlikely]]
    domain_.run_due();
}

bool Cq::pending() {
  std::lock_guard lock(domain_.lock());
  // PAIR ofi.wait.armed: a look of a thread that has armed
  return !empty() || overrun_ || signalled_.load(std::memory_order_seq_cst);
}

namespace {

static_assert(offsetof(Completion, flags) == offsetof(fi_cq_tagged_entry, flags) &&
              offsetof(Completion, length) == offsetof(fi_cq_tagged_entry, len) &&
              offsetof(Completion, buffer) == offsetof(fi_cq_tagged_entry, buf) &&
              offsetof(Completion, data) == offsetof(fi_cq_tagged_entry, data) &&
              offsetof(Completion, tag) == offsetof(fi_cq_tagged_entry, tag));

// Copies an entry as the program reads it; each format is the beginning of the next longer one.
// Returns what is behind it. Sizes that the compiler knows: a copy of 8 to 48 bytes is a few
// instructions then.
char* put_entry(char* out, const Completion& completion, fi_cq_format format) {
  auto put = [&](auto bytes) {
    std::memcpy(out, &completion, bytes);
    return out + bytes;
  };
  switch (format) {
    case FI_CQ_FORMAT_MSG:
      return put(std::integral_constant<std::size_t, sizeof(fi_cq_msg_entry)>());
    case FI_CQ_FORMAT_DATA:
      return put(std::integral_constant<std::size_t, sizeof(fi_cq_data_entry)>());
    case FI_CQ_FORMAT_TAGGED:
      return put(std::integral_constant<std::size_t, sizeof(fi_cq_tagged_entry)>());
    default: return put(std::integral_constant<std::size_t, sizeof(fi_cq_entry)>());
  }
}

}  // namespace

// Under the lock.
[[gnu::always_inline]] inline ssize_t Cq::take(void* buffer, std::size_t count, fi_addr_t* source) {
  std::uint64_t end = tail_;
  if (!errors_.empty()) {
    end = errors_.front().position;
    if (end == head_) return -FI_EAVAIL;
  }
  if (end == head_) return overrun_ ? -FI_EOVERRUN : -FI_EAGAIN;
  const std::size_t n = std::min<std::size_t>(count, end - head_);
  auto* out = static_cast<char*>(buffer);
  for (std::size_t i = 0; i < n; ++i) {
    const Completion& c = ring_[head_++ & (ring_.size() - 1)];
    out = put_entry(out, c, format_);
    if (source != nullptr) source[i] = c.source;
  }
  return static_cast<ssize_t>(n);
}

ssize_t Cq::read_from(fid_cq* id, void* buffer, std::size_t count, fi_addr_t* source) {
  auto& cq = *static_cast<Cq*>(id);
  {
    std::lock_guard lock(cq.domain_.lock());
    if (cq.head_ == cq.tail_) cq.progress();
    if (!cq.empty()) {
      cq.empty_reads_ = 0;
      return count == 0 ? 0 : cq.take(buffer, count, source);
    }
    if (cq.overrun_) [[unlikely]]
      return -FI_EOVERRUN;
    if (++cq.empty_reads_ % kEmptyReads != 0 || count == 0) return -FI_EAGAIN;
  }
  // A thread that polls and finds nothing may be keeping the peer from the processor.
  ::sched_yield();
  return -FI_EAGAIN;
}

ssize_t Cq::read(fid_cq* id, void* buffer, std::size_t count) {
  return read_from(id, buffer, count, nullptr);
}

ssize_t Cq::read_error(fid_cq* id, fi_cq_err_entry* buffer, std::uint64_t) {
  auto& cq = *static_cast<Cq*>(id);
  std::lock_guard lock(cq.domain_.lock());
  if (cq.errors_.empty()) return -FI_EAGAIN;
  ErrorEntry error = std::move(cq.errors_.front());
  cq.errors_.pop_front();
  // Before 1.5 there was no err_data_size, and err_data was a pointer for the provider to set.
  const bool has_size = FI_VERSION_GE(cq.domain_.api_version(), FI_VERSION(1, 5));
  void* const place = has_size ? buffer->err_data : nullptr;
  const std::size_t room = has_size ? buffer->err_data_size : 0;
  cq.last_error_data_ = std::move(error.data);
  if (has_size) {
    *buffer = error.entry;
  } else {
    std::memcpy(buffer, &error.entry, offsetof(fi_cq_err_entry, err_data_size));
  }
  if (room != 0 && place != nullptr) {
    buffer->err_data = place;
    buffer->err_data_size = std::min(room, cq.last_error_data_.size());
    if (buffer->err_data_size > 0)
      std::memcpy(place, cq.last_error_data_.data(), buffer->err_data_size);
  } else {
    buffer->err_data = cq.last_error_data_.empty() ? nullptr : cq.last_error_data_.data();
    if (has_size) buffer->err_data_size = cq.last_error_data_.size();
  }
  return 1;
}

ssize_t Cq::wait_and_take(void* buffer, std::size_t count, fi_addr_t* source, const void* cond,
                          int timeout_ms) {
  WaitObject* object = wait_.object();
  if (object == nullptr) return -FI_EINVAL;
  std::size_t threshold = 1;
  if (condition_ == FI_CQ_COND_THRESHOLD && cond != nullptr) {
    threshold = std::clamp<std::size_t>(reinterpret_cast<std::uintptr_t>(cond), 1,
                                        std::max<std::size_t>(count, 1));
  }
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  ssize_t got = -FI_EAGAIN;
  const auto enough = [&] { return !errors_.empty() || tail_ - head_ >= threshold || overrun_; };
  const auto ready = [&] {
    std::lock_guard lock(domain_.lock());
    progress();
    if (enough()) got = take(buffer, count, source);
    return got != -FI_EAGAIN || signalled_.load(std::memory_order_relaxed);  // relaxed: a glance
  };
  const auto look = [&] {
    std::lock_guard lock(domain_.lock());
    // PAIR ofi.wait.armed: the look of a thread that has armed
    return enough() || signalled_.load(std::memory_order_seq_cst);
  };
  int rc = 0;
  const auto sleep = [&] {
    rc = object->sleep_unless(look, sleep_ms(deadline));
    return rc != -FI_EINTR;
  };
  for (;;) {
    switch (waiter_.wait(ready, PeerHint{}, deadline, sleep)) {
      case WaitResult::kReady:
        if (got != -FI_EAGAIN) return got;
        // relaxed: one of those that sleep takes it
        if (signalled_.exchange(false, std::memory_order_relaxed)) return -FI_ECANCELED;
        break;
      case WaitResult::kTimedOut: {
        std::lock_guard lock(domain_.lock());
        return take(buffer, count, source);  // what there is, though it be less than the threshold
      }
      case WaitResult::kAgain:
        if (rc == -FI_EINTR) return rc;
        break;
    }
  }
}

ssize_t Cq::sread(fid_cq* id, void* buffer, std::size_t count, const void* cond, int timeout) {
  return static_cast<Cq*>(id)->wait_and_take(buffer, count, nullptr, cond, timeout);
}

ssize_t Cq::sread_from(fid_cq* id, void* buffer, std::size_t count, fi_addr_t* source,
                       const void* cond, int timeout) {
  return static_cast<Cq*>(id)->wait_and_take(buffer, count, source, cond, timeout);
}

int Cq::signal(fid_cq* id) {
  auto& cq = *static_cast<Cq*>(id);
  if (cq.wait_.object() == nullptr) return -FI_ENOSYS;
  // PAIR ofi.wait.armed: before the check whether a thread has armed
  cq.signalled_.store(true, std::memory_order_seq_cst);
  cq.wait_.signal();
  return 0;
}

const char* Cq::error_text(fid_cq*, int prov_errno, const void*, char* buffer, std::size_t length) {
  const char* text = fi_strerror(prov_errno);
  if (buffer != nullptr && length > 0) std::snprintf(buffer, length, "%s", text);
  return text;
}

}  // namespace clan::ofi
