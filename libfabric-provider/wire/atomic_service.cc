#include "wire/atomic_service.h"

#include <algorithm>
#include <cstring>

#include "wire/pieces.h"

namespace clan::ofi {
namespace {

/// One answer, with room for the results of a step.
struct ReplyMessage {
  WireHeader header{.op = Op::kAtomicReply};
  AtomicReply reply;
  std::byte results[kShortAtomicBytes];

  std::span<const std::byte> with_results(std::size_t bytes) const {
    return {reinterpret_cast<const std::byte*>(this), offsetof(ReplyMessage, results) + bytes};
  }
};

bool is_valid(const AtomicRequest& request) {
  const auto type = static_cast<fi_datatype>(request.type);
  return atomic_size(type) != 0 &&
         request.kind <= static_cast<std::uint8_t>(AtomicKind::kCompare) &&
         atomic_valid(type, static_cast<fi_op>(request.op), static_cast<AtomicKind>(request.kind));
}

// Carries out a short one. `result_bytes`: of results that are to be sent.
int apply_short(AtomicHost& host, const WireHeader& header, const AtomicRequest& request,
                std::span<const std::byte> bytes, std::byte* results, std::size_t* result_bytes) {
  if (!is_valid(request)) return FI_EINVAL;
  const auto type = static_cast<fi_datatype>(request.type);
  const auto op = static_cast<fi_op>(request.op);
  const auto kind = static_cast<AtomicKind>(request.kind);
  const std::size_t size = atomic_size(type);
  if (request.count > kShortAtomicBytes / size ||
      bytes.size() != request.count * size * atomic_operands(op, kind)) {
    return FI_EINVAL;
  }
  const std::size_t length = request.count * size;
  const bool fetches = kind != AtomicKind::kWrite;
  if (int err = host.apply(header.tag, request.address, type, op, kind, bytes.data(),
                           bytes.data() + length, fetches ? results : nullptr, request.count);
      err != 0) {
    return err;
  }
  if (fetches) *result_bytes = length;
  const std::uint64_t what = op == FI_ATOMIC_READ ? FI_REMOTE_READ : FI_REMOTE_WRITE;
  host.note_region(header.tag, what);
  host.note_endpoint(header.context, what);
  return 0;
}

}  // namespace

void serve_atomic(AtomicHost& host, const WireHeader& header, std::span<const std::byte> bytes) {
  AtomicRequest request;
  if (!take_front(bytes, &request)) return;
  ReplyMessage message;
  message.header.id = header.id;
  std::size_t result_bytes = 0;
  message.reply.err = apply_short(host, header, request, bytes, message.results, &result_bytes);
  host.reply(message.with_results(result_bytes));
}

int LongAtomic::read_body(AtomicHost& host, std::uint64_t offset, std::byte* to,
                          std::size_t length) const {
  if (aside_) return host.read(*aside_, offset, {to, length});
  std::memcpy(to, body_.data() + offset, length);
  return 0;
}

void LongAtomic::keep_body() {
  if (aside_) return;
  kept_.assign(body_.begin(), body_.end());
  body_ = kept_;
}

int LongAtomic::read_targets(AtomicHost& host, const AtomicRequest& request) {
  if (request.count > kIovLimit) return FI_EINVAL;
  targets_[0] = {request.address, header_.data, header_.tag};
  if (request.count == 0) return 0;
  target_count_ = request.count;
  head_ = target_count_ * sizeof *targets_;
  if (body_bytes() < head_) return FI_EINVAL;
  return read_body(host, 0, reinterpret_cast<std::byte*>(targets_), head_);
}

int LongAtomic::check(AtomicHost& host, const AtomicRequest& request) {
  if (!is_valid(request)) return FI_EINVAL;
  type_ = static_cast<fi_datatype>(request.type);
  op_ = static_cast<fi_op>(request.op);
  kind_ = static_cast<AtomicKind>(request.kind);
  size_ = atomic_size(type_);
  if (int err = read_targets(host, request); err != 0) return err;
  const std::uint64_t most = kMostAtomicBytes / size_;
  for (std::size_t i = 0; i < target_count_; ++i) {
    if (targets_[i].count > most - count_) return FI_EINVAL;
    count_ += targets_[i].count;
  }
  if (body_bytes() != head_ + count_ * size_ * atomic_operands(op_, kind_)) return FI_EINVAL;
  for (std::size_t i = 0; i < target_count_; ++i) {
    const AtomicTarget& target = targets_[i];
    const int err =
        host.allows(target.key, target.address, target.count * size_, atomic_access(op_, kind_));
    if (err != 0) return err;
  }
  return 0;
}

// The next values of one target, and their results. The region is looked for each time: between two
// steps its owner may have closed it.
int LongAtomic::step(AtomicHost& host) {
  const AtomicTarget& target = targets_[target_];
  if (int err = host.find(target.key); err != 0) return err;
  if (at_ < target.count) {
    if (int err = apply_next(host, target); err != 0) return err;
  }
  if (at_ == target.count) {
    host.note_region(target.key, what());
    ++target_;
    at_ = 0;
  }
  return 0;
}

int LongAtomic::apply_next(AtomicHost& host, const AtomicTarget& target) {
  ReplyMessage message;
  message.header.flags = kMore;
  message.header.id = header_.id;
  std::byte operands[kShortAtomicBytes], comparands[kShortAtomicBytes];
  const std::size_t brought = atomic_operands(op_, kind_);
  const bool fetches = kind_ != AtomicKind::kWrite;
  const auto n = static_cast<std::size_t>(
      std::min<std::uint64_t>(kShortAtomicBytes / size_, target.count - at_));
  const std::size_t bytes = n * size_;
  const std::uint64_t from = head_ + done_ * size_;
  if (brought > 0) {
    if (int err = read_body(host, from, operands, bytes); err != 0) return err;
  }
  if (brought > 1) {
    if (int err = read_body(host, from + count_ * size_, comparands, bytes); err != 0) return err;
  }
  const int err = host.apply(target.key, target.address + at_ * size_, type_, op_, kind_, operands,
                             comparands, fetches ? message.results : nullptr, n);
  if (err != 0) return err;
  if (fetches) {
    message.header.tag = done_ * size_;
    host.reply(message.with_results(bytes));
  }
  at_ += n;
  done_ += n;
  return 0;
}

void LongAtomic::conclude(AtomicHost& host, int err) {
  if (aside_) host.finish(*aside_);
  if (err == 0) host.note_endpoint(header_.context, what());
  ReplyMessage last;
  last.header.id = header_.id;
  last.reply.err = err;
  host.reply(last.with_results(0));
}

}  // namespace clan::ofi
