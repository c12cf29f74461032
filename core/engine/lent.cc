#include "engine/lent.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace clan::engine {
namespace {

constexpr std::uint64_t kLeastCopyNs = 200'000;  ///< of a lent range and the answer to it; and 1 ns a byte
constexpr std::size_t kMostAwaitedBytes = 20'000'000;
constexpr std::uint64_t kSequences = std::uint64_t{1} << 30;

}  // namespace

// --- Lender ----------------------------------------------------------------------------------------

Status Lender::wait_taken(std::size_t bytes, std::uint64_t deadline_ns) {
  const auto answered = [&] {
    c_.context().help();
    const LentWord seen{word().load(std::memory_order_relaxed)};  // relaxed: lend() acquires
    return seen.taken() >= bytes || seen.refused() || c_.peer_gone();
  };
  const std::uint64_t works_until = monotonic_ns() + kLeastCopyNs + std::min(bytes, kMostAwaitedBytes);
  return c_.wait_control(answered, deadline_ns, works_until);
}

Status Lender::lend(std::span<const std::byte> bytes, std::uint64_t deadline_ns, std::size_t* taken) {
  bytes = bytes.first(std::min<std::size_t>(bytes.size(), kMostLent));
  *taken = 0;
  std::byte* room = nullptr;
  while ((room = c_.reserve(sizeof(LentRecord))) == nullptr) {
    if (c_.peer_gone()) return Error{EPIPE, "the peer is gone"};
    if (auto s = c_.wait_writable(sizeof(LentRecord), deadline_ns); !s) return s;
  }
  auto exported =
      c_.nic().export_aperture({const_cast<std::byte*>(bytes.data()), bytes.size(), Rights::kRead, nullptr});
  if (!exported) return Error{EOPNOTSUPP, "no aperture is free to lend bytes by"};
  sequence_ = (sequence_ + 1) % kSequences;
  word().store(LentWord::make(sequence_, 0).word, std::memory_order_relaxed);  // relaxed: the record publishes it
  const LentRecord record{*exported, sequence_};
  std::memcpy(room, &record, sizeof record);
  c_.commit(sizeof record, RecordType::kLent);
  Status waited = wait_taken(bytes.size(), deadline_ns);
  // PAIR lent.word: the receiver's copies of what it has counted are complete; it counts no more
  const LentWord last{word().fetch_or(LentWord::kWithdrawn, std::memory_order_seq_cst)};
  // A copy that is still under way will not be counted, so nobody has to wait for it.
  if (c_.context().usable()) c_.nic().retire(exported->aperture);
  if (!last.of(sequence_) || last.taken() > bytes.size()) {
    c_.reset_hostile("an impossible answer to lent bytes");
    return Error{EPIPE, "the peer is gone"};
  }
  *taken = last.taken();
  if (*taken == bytes.size()) return {};
  if (last.refused()) return Error{EOPNOTSUPP, "the peer cannot read the bytes"};
  return waited ? Status(Error{EPIPE, "the peer is gone"}) : waited;
}

// --- Borrower --------------------------------------------------------------------------------------

bool Borrower::begin(const shm::RingRecord& record) {
  LentRecord lent;
  if (record.head.length() != sizeof lent || !c_.mapped()) return false;
  std::memcpy(&lent, record.payload, sizeof lent);
  if (lent.cookie.length == 0 || lent.cookie.length > kMostLent || lent.sequence >= kSequences) return false;
  cookie_ = lent.cookie;
  sequence_ = lent.sequence;
  length_ = lent.cookie.length;
  taken_ = 0;
  open_ = true;
  return true;
}

bool Borrower::there() const {
  // relaxed: a glance; take() counts by compare-and-swap
  return taken_ < length_ && c_.lent_word().load(std::memory_order_relaxed) == expected();
}

// 0 or an errno value.
int Borrower::copy(std::span<std::byte> buffer) {
  if (!handle_) {
    auto handle = c_.link().import(cookie_, false);
    if (!handle) return handle.error().err;
    handle_ = *handle;
  }
  const nic::Transfer t{RdmaOp::kRead, &*handle_, taken_, buffer.data(), buffer.size(), 0};
  const auto result = c_.link().transfer(t);
  if (result.kind == nic::TransferResult::Kind::kDone) return 0;
  if (result.kind != nic::TransferResult::Kind::kPending) return result.err != 0 ? result.err : EOPNOTSUPP;
  c_.link().cancel(0);
  return EOPNOTSUPP;
}

Result<std::size_t> Borrower::take(std::span<std::byte> buffer) {
  if (!there()) return std::size_t{0};
  const std::size_t n = std::min(buffer.size(), left());
  const int err = copy(buffer.first(n));
  if (err == ECONNRESET) return Error{ECONNRESET, "the sender died before what it lent was copied"};
  const std::uint64_t counted =
      err == 0 ? LentWord::make(sequence_, taken_ + n).word : expected() | LentWord::kRefused;
  std::uint64_t seen = expected();
  // PAIR lent.word: the copy is complete before it is counted
  if (!c_.lent_word().compare_exchange_strong(seen, counted, std::memory_order_seq_cst)) return std::size_t{0};
  if (err == 0) taken_ += n;
  if (err != 0 || taken_ == length_) c_.nudge();
  return err == 0 ? n : std::size_t{0};
}

void Borrower::end() {
  if (handle_) c_.link().release(*handle_);
  handle_.reset();
  open_ = false;
}

}  // namespace clan::engine
