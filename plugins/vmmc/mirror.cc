#include "mirror.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "objects.h"

namespace clan::vmmc {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t), kLine = 8;  // words of a line

// By the kernel, which answers EFAULT where a load or store would raise a signal.
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

Mirror::Mirror(RemoteAperture& remote, std::uint64_t offset, std::span<std::byte> memory,
               std::span<const std::byte> landing)
    : remote_(remote),
      offset_(offset),
      memory_(memory),
      landing_(landing),
      dirty_(memory.data(), memory.size()),
      twin_(words_of(memory.size())),
      seen_(words_of(landing.size())),
      piece_(words_of(kPiece)) {}

Result<std::unique_ptr<Mirror>> Mirror::create(RemoteAperture& remote, std::uint64_t offset,
                                               std::span<std::byte> memory,
                                               std::span<const std::byte> landing) {
  std::unique_ptr<Mirror> mirror(new Mirror(remote, offset, memory, landing));
  if (auto s = copy(::process_vm_readv, memory.data(), mirror->twin_.get(), memory.size()); !s) {
    const int err = s.error().err;
    return Error{err == EFAULT ? EFAULT : EOPNOTSUPP, "process_vm_readv of bound memory"};
  }
  if (!landing.empty()) std::memcpy(mirror->seen_.get(), landing.data(), landing.size());
  return mirror;
}

Status Mirror::flush() {
  std::lock_guard lock(mutex_);
  count(page().flushes);
  Status gone;
  Status s = dirty_.scan([&](std::size_t offset, std::size_t bytes) {
    const Status sent = send_changes(offset, bytes);
    if (sent || sent.error().err != EFAULT) return sent;
    gone = sent;
    return Status();
  });
  gone_ = gone_ || !gone || (!s && s.error().err == EFAULT);
  if (s && !landing_.empty()) s = take_over();
  if (!s) return s;
  return gone_ ? Status(Error{EFAULT, "bound memory is there no more"}) : remote_.check();
}

// A piece that cannot be read as a whole is read a page at a time: the program has unmapped some.
Status Mirror::send_changes(std::size_t offset, std::size_t bytes) {
  count(page().compared_bytes, bytes);
  Status gone;
  for (std::size_t most = kPiece; bytes > 0;) {
    const std::size_t n = std::min(bytes, most);
    if (const Status s = copy(::process_vm_readv, memory_.data() + offset, piece_.get(), n); s) {
      if (auto sent = send_words(offset, {piece_.get(), n / kWord}); !sent) return sent;
    } else if (most == kPiece) {
      most = 4096 - reinterpret_cast<std::uintptr_t>(memory_.data() + offset) % 4096;
      continue;
    } else {
      gone = s;
    }
    if (most != kPiece) most = 4096;
    offset += n;
    bytes -= n;
  }
  return gone;
}

Status Mirror::send_words(std::size_t offset, std::span<const std::uint64_t> now) {
  std::uint64_t* const before = twin(offset);
  for (std::size_t i = 0; i < now.size();) {
    if (i % kLine == 0 && i + kLine <= now.size() &&
        std::memcmp(&now[i], before + i, kLine * kWord) == 0) {
      i += kLine;
      continue;
    }
    if (now[i] == before[i]) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < now.size() && now[end] != before[end]) ++end;
    const std::size_t bytes = (end - i) * kWord;
    if (auto s = remote_.write(offset_ + offset + i * kWord, &now[i], bytes); !s) return s;
    std::memcpy(before + i, &now[i], bytes);
    count(page().mirrored_bytes, bytes);
    i = end;
  }
  return {};
}

// A word that both have changed is the program's here, and the peer gets it.
Status Mirror::take_over() {
  for (std::size_t i = 0; i < landing_.size() / kWord; ++i) {
    const auto* landed = reinterpret_cast<const std::atomic<std::uint64_t>*>(landing_.data()) + i;
    std::uint64_t word = words::look(*landed);
    if (word == seen_[i]) continue;
    seen_[i] = word;
    twin_[i] = word;
    if (auto s = copy(::process_vm_writev, memory_.data() + i * kWord, &word, kWord); !s) return s;
  }
  return {};
}

}  // namespace clan::vmmc
