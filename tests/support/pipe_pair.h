// Both ends of a pipe, and short ways to send and receive, for the tests of pipes.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "clan/face/pipe.h"
#include "engine/pipe/pipe_lock.h"

namespace clan {

constexpr std::uint32_t kRing = 64 * 1024;
constexpr std::uint32_t kLargeRing = 8 << 20;

struct PipePair {
  explicit PipePair(std::uint32_t ring = kRing) {
    auto made = Pipe::create("test-pipe", ring, 0);
    EXPECT_TRUE(made.ok());
    a = std::move(*made);
    auto opened = Pipe::open(::fcntl(a.memfd(), F_DUPFD_CLOEXEC, 3), 1);
    EXPECT_TRUE(opened.ok());
    b = std::move(*opened);
    // Where a child of fork() has them, too.
    void* memory = ::mmap(nullptr, 2 * sizeof(PipeLocks), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    locks = static_cast<PipeLocks*>(memory);
    a.use_locks(locks[0]);
    b.use_locks(locks[1]);
  }
  PipePair(PipePair&& o) noexcept
      : a(std::move(o.a)), b(std::move(o.b)), locks(std::exchange(o.locks, nullptr)) {}
  PipePair& operator=(PipePair&&) = delete;
  ~PipePair() {
    if (locks != nullptr) ::munmap(locks, 2 * sizeof(PipeLocks));
  }
  Pipe a, b;
  PipeLocks* locks = nullptr;  ///< of a and of b
};

inline std::vector<char> bytes_from(std::size_t n, std::uint64_t from) {
  std::vector<char> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<char>((from + i) * 131 >> 3);
  return v;
}

inline Pipe::Done put(Pipe& p, const std::vector<char>& v, std::size_t from = 0) {
  const iovec io{const_cast<char*>(v.data()) + from, v.size() - from};
  return p.send(&io, 1);
}

inline std::vector<char> get(Pipe& p, std::size_t n, bool peek = false) {
  std::vector<char> v(n);
  const iovec io{v.data(), n};
  v.resize(p.receive(&io, 1, peek).bytes);
  return v;
}

inline int error_of_receiving(Pipe& p) {
  char byte;
  const iovec io{&byte, 1};
  return p.receive(&io, 1, false).err;
}

}  // namespace clan
