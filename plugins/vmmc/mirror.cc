#include "mirror.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "objects.h"

namespace clan::vmmc {
namespace {

// Words of a line, and of a block: unchanged memory is skipped a block at a time.
constexpr std::size_t kWord = sizeof(std::uint64_t), kLine = 8, kBlock = 64;

// Copies by the kernel, which returns EFAULT where a load or store would raise a signal.
using Copy = decltype(&::process_vm_readv);
Status copy(Copy direction, const std::byte* memory, void* own, std::size_t bytes) {
  const iovec here{own, bytes}, there{const_cast<std::byte*>(memory), bytes};
  const ssize_t n = direction(::getpid(), &here, 1, &there, 1, 0);
  if (n == static_cast<ssize_t>(bytes)) return {};
  return Error{n < 0 ? errno : EFAULT, "bound memory"};
}

std::unique_ptr<std::uint64_t[]> words_of(std::size_t bytes) {
  return std::unique_ptr<std::uint64_t[]>(new std::uint64_t[(bytes + kWord - 1) / kWord]());
}

}  // namespace

Mirror::Mirror(RemoteAperture& remote, std::uint64_t offset, const Place& place)
    : remote_(remote),
      offset_(offset),
      place_(place),
      dirty_(place.memory.data(), place.memory.size()),
      twin_(words_of(place.memory.size())),
      seen_(words_of(place.landing.size())),
      piece_(words_of(kPiece)) {}

Result<std::unique_ptr<Mirror>> Mirror::create(RemoteAperture& remote, std::uint64_t offset,
                                               const Place& place) {
  std::unique_ptr<Mirror> mirror(new Mirror(remote, offset, place));
  const std::span<std::byte> memory = place.memory;
  if (auto s = copy(::process_vm_readv, memory.data(), mirror->twin_.get(), memory.size()); !s) {
    const int err = s.error().err;
    return Error{err == EFAULT ? EFAULT : EOPNOTSUPP, "process_vm_readv of bound memory"};
  }
  const std::span<const std::byte> landing = place.landing;
  if (!landing.empty()) std::memcpy(mirror->seen_.get(), landing.data(), landing.size());
  return mirror;
}

Status Mirror::flush() {
  std::lock_guard lock(mutex_);
  Status gone;
  Status s = dirty_.scan([&](std::size_t offset, std::size_t bytes) {
    const Status sent = send_changes(offset, bytes);
    if (sent || sent.error().err != EFAULT) return sent;
    gone = sent;
    return Status();
  });
  gone_ = gone_ || !gone || (!s && s.error().err == EFAULT);
  if (s && !place_.landing.empty()) s = take_over();
  count(page().flushes);
  count(page().compared_bytes, std::exchange(compared_, 0));
  count(page().mirrored_bytes, std::exchange(mirrored_, 0));
  if (!s) return s;
  return gone_ ? Status(Error{EFAULT, "bound memory is there no more"}) : remote_.check();
}

Status Mirror::send_changes(std::size_t offset, std::size_t bytes) {
  compared_ += bytes;
  Status gone;
  for (std::size_t n = 0; bytes > 0; offset += n, bytes -= n) {
    n = std::min(bytes, kPiece);
    if (place_.view != nullptr) {
      const auto* live = reinterpret_cast<const std::uint64_t*>(place_.view + offset);
      if (auto sent = send_words(offset, n / kWord, live); !sent) return sent;
    } else if (auto sent = read_pages(offset, n); !sent) {
      if (sent.error().err != EFAULT) return sent;
      gone = sent;
    }
  }
  return gone;
}

// Reads all at once, or a page at a time if the program has unmapped some.
Status Mirror::read_pages(std::size_t offset, std::size_t bytes) {
  const std::byte* const from = place_.memory.data();
  if (copy(::process_vm_readv, from + offset, piece_.get(), bytes))
    return send_words(offset, bytes / kWord, piece_.get());
  for (std::size_t n = 0; bytes > 0; offset += n, bytes -= n) {
    n = std::min(bytes, 4096 - reinterpret_cast<std::uintptr_t>(from + offset) % 4096);
    if (!copy(::process_vm_readv, from + offset, piece_.get(), n)) continue;
    if (auto s = send_words(offset, n / kWord, piece_.get()); !s) return s;
  }
  return Error{EFAULT, "bound memory"};
}

// The program may store meanwhile: so one copy is compared word by word, sent and kept in the twin.
Status Mirror::send_words(std::size_t offset, std::size_t count, const std::uint64_t* live) {
  std::uint64_t *const before = twin(offset), *const now = piece_.get();
  std::size_t begin = count;  // of a run of changed words
  for (std::size_t i = 0; i < count; i += kLine) {
    if (i % kBlock == 0 && count - i >= kBlock && begin == count &&
        std::memcmp(live + i, before + i, kBlock * kWord) == 0) {
      i += kBlock - kLine;
      continue;
    }
    const std::size_t end = std::min(i + kLine, count);
    const bool same = std::memcmp(live + i, before + i, (end - i) * kWord) == 0;
    if (same && begin == count) continue;
    if (live != now) std::memcpy(now + i, live + i, (end - i) * kWord);
    for (std::size_t at = i; at < end; ++at) {
      if (now[at] != before[at]) {
        begin = std::min(begin, at);
      } else if (begin != count) {
        if (auto s = send_run(offset, begin, at); !s) return s;
        begin = count;
      }
    }
  }
  return begin != count ? send_run(offset, begin, count) : Status();
}

Status Mirror::send_run(std::size_t offset, std::size_t begin, std::size_t end) {
  const std::size_t bytes = (end - begin) * kWord;
  const std::uint64_t* const changed = piece_.get() + begin;
  if (auto s = remote_.write(offset_ + offset + begin * kWord, changed, bytes); !s) return s;
  std::memcpy(twin(offset) + begin, changed, bytes);
  mirrored_ += bytes;
  return {};
}

// If both ends have changed a word, the program's stays here, and the peer gets it.
Status Mirror::take_over() {
  for (std::size_t i = 0; i < place_.landing.size() / kWord; ++i) {
    const auto* landed =
        reinterpret_cast<const std::atomic<std::uint64_t>*>(place_.landing.data()) + i;
    std::uint64_t word = words::load_acquire(*landed);
    if (word == seen_[i]) continue;
    seen_[i] = word;
    twin_[i] = word;
    if (auto s = copy(::process_vm_writev, place_.memory.data() + i * kWord, &word, kWord); !s)
      return s;
  }
  return {};
}

}  // namespace clan::vmmc
