// Automatic update in its three modes.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <random>

#include "ends.h"
#include "objects.h"

namespace clan::vmmc::testing {
namespace {

constexpr std::size_t kBytes = 64 * kPage;

struct Bound {
  Bound(vmmc_remote_t* remote, std::size_t offset, void* at, std::size_t bytes, vmmc_mode_t mode,
        unsigned interval_ms = 0) {
    EXPECT_EQ(vmmc_bind(remote, offset, at, bytes, mode, interval_ms, &binding), 0);
    memory = static_cast<std::uint8_t*>(vmmc_bound(binding));
  }
  ~Bound() { EXPECT_TRUE(binding == nullptr || vmmc_unbind(binding) == 0); }
  void end() { EXPECT_EQ(vmmc_unbind(std::exchange(binding, nullptr)), 0); }
  operator vmmc_binding_t*() const { return binding; }
  vmmc_binding_t* binding = nullptr;
  std::uint8_t* memory = nullptr;
};

/// Pages of the test's own.
struct Pages {
  explicit Pages(std::size_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1)
      : n(bytes),
        at(static_cast<std::uint8_t*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0))) {}
  ~Pages() { ::munmap(at, n); }
  std::size_t n;
  std::uint8_t* at;
};

void store(vmmc_binding_t* binding, vmmc_mode_t mode, std::uint64_t* memory, std::size_t i,
           std::uint64_t value) {
  if (mode == VMMC_STORE) {
    ASSERT_EQ(vmmc_store_word(binding, i * 8, value), 0);
  } else {
    std::atomic_ref<std::uint64_t>(memory[i]).store(value, std::memory_order_relaxed);
  }
}

struct Case {
  vmmc_mode_t mode;
  Of of;
  bool given;  ///< the test's own memory is bound
  unsigned interval_ms;
};
void PrintTo(const Case& c, std::ostream* to) { *to << c.mode << " every " << c.interval_ms; }
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* const mode = c.mode == VMMC_ALIAS   ? "Alias"
                           : c.mode == VMMC_STORE ? "Store"
                                                  : "Mirror";
  return std::string(mode) + (c.given ? "Given" : "") + (c.interval_ms != 0 ? "Timed" : "");
}

constexpr Case kAlias{VMMC_ALIAS, Of::kMapped, false, 0}, kStore{VMMC_STORE, Of::kMapped, false, 0},
    kMirror{VMMC_MIRROR, Of::kMapped, false, 0}, kAliasGiven{VMMC_ALIAS, Of::kMapped, true, 0},
    kStoreGiven{VMMC_STORE, Of::kOwn, true, 0}, kMirrorTimed{VMMC_MIRROR, Of::kMapped, true, 1},
    kMirrorGiven{VMMC_MIRROR, Of::kOwn, true, 0};

class VmmcBind : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes, VmmcBind,
                         ::testing::Values(kAlias, kAliasGiven, kStore, kStoreGiven, kMirror,
                                           kMirrorTimed, kMirrorGiven),
                         name_of);
/// Binds memory that the test has given.
class VmmcBindGiven : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes, VmmcBindGiven,
                         ::testing::Values(kAliasGiven, kStoreGiven, kMirrorTimed, kMirrorGiven),
                         name_of);
/// Where stores are no calls.
class VmmcBindStored : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes, VmmcBindStored,
                         ::testing::Values(kAlias, kAliasGiven, kMirror, kMirrorGiven), name_of);

// Threads store at random into words of their own, the receiver into others; at each flush the
// receiver has the binder's stores and its own words, and nothing else.
TEST_P(VmmcBind, GivesTheReceiverExactlyTheStoresOfTheBinder) {
  const Case c = GetParam();
  constexpr std::size_t kWords = kBytes / 8, kThreads = 3;
  Exported to(kBytes + kPage, 0, c.of);
  Imported from(to);
  Pages own(kBytes);
  const std::size_t offset = c.of == Of::kMapped ? kPage : 8;
  Bound bound(from, offset, c.given ? own.at : nullptr, kBytes, c.mode, c.interval_ms);
  auto* const here = reinterpret_cast<std::uint64_t*>(bound.memory);
  auto* const there = reinterpret_cast<std::uint64_t*>(to.memory + offset);
  std::vector<std::uint64_t> expected(kWords, 0);
  for (unsigned round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(round * 16 + t);
        for (unsigned n = 0; n < 1 + 300 * (round % 2); ++n) {
          const std::size_t i = random() % (kWords / 4) * 4 + t;
          store(bound, c.mode, here, i, expected[i] = random() % 3);
        }
      });
    }
    std::mt19937_64 random(round);
    for (unsigned n = 0; n < 100; ++n) {
      const std::size_t i = random() % (kWords / 4) * 4 + kThreads;
      expected[i] = random();
      std::atomic_ref<std::uint64_t>(there[i]).store(expected[i], std::memory_order_relaxed);
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(vmmc_flush(bound), 0);
    ASSERT_EQ(std::memcmp(there, expected.data(), kBytes), 0) << "round " << round;
    ASSERT_EQ(word_at(to.memory, 0), 0u) << "outside of the binding";
  }
}

TEST_P(VmmcBindStored, TakesWhatTheKernelReadsIntoIt) {
  const Case c = GetParam();
  Exported to(kBytes, 0, c.of);
  Imported from(to);
  Pages own(kBytes);
  Bound bound(from, 0, c.given ? own.at : nullptr, kBytes, c.mode);
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(::write(pipes[1], "hello", 5), 5);
    ASSERT_EQ(::read(pipes[0], bound.memory + kPage - 2 + round, 5), 5);
    ASSERT_EQ(vmmc_flush(bound), 0);
    EXPECT_EQ(std::memcmp(to.memory + kPage - 2 + round, "hello", 5), 0);
  }
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST_P(VmmcBindGiven, LeavesMemoryAsItIsWhenItEnds) {
  const Case c = GetParam();
  Exported to(kBytes, 0, c.of);
  Imported from(to);
  Pages own(kBytes);
  {
    Bound bound(from, 0, own.at, kBytes, c.mode, c.interval_ms);
    store(bound, c.mode, reinterpret_cast<std::uint64_t*>(own.at), 3, 4711);
    ASSERT_EQ(vmmc_flush(bound), 0);
  }
  EXPECT_EQ(word_at(own.at, 24), 4711u);
  std::memset(own.at, 1, kBytes);
  EXPECT_EQ(word_at(to.memory, 24), 4711u);
  EXPECT_EQ(to.memory[0], 0);
}

TEST_P(VmmcBind, OfABufferThatIsUnexportedIsMemoryOfNobody) {
  const Case c = GetParam();
  Exported to(kBytes, 0, c.of);
  Imported from(to);
  Pages own(kBytes);
  Bound bound(from, 0, c.given ? own.at : nullptr, kBytes, c.mode, c.interval_ms);
  ASSERT_EQ(vmmc_unexport(std::exchange(to.buffer, nullptr)), 0);
  std::memset(to.memory, 9, kBytes);
  if (c.mode != VMMC_STORE) std::memset(bound.memory, 1, kBytes);
  if (c.mode == VMMC_STORE) (void)vmmc_store(bound, 0, "x", 1);
  EXPECT_EQ(vmmc_flush(bound), -ESTALE);
  for (std::size_t i = 0; i < kBytes; i += 8) ASSERT_EQ(word_at(to.memory, i), 0x0909090909090909u);
}

TEST_P(VmmcBindGiven, OfMemoryThatIsUnmappedOrMovedEndsWithoutASignal) {
  const Case c = GetParam();
  Exported to(kBytes, 0, c.of);
  Imported from(to);
  for (const bool moves : {false, true}) {
    auto* const at = static_cast<std::uint8_t*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    Bound bound(from, 0, at, kBytes, c.mode, c.interval_ms);
    if (c.mode != VMMC_STORE) std::memset(at, 5, kBytes);
    void* moved = nullptr;
    if (moves) {
      moved = ::mremap(at, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED,
                       ::mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      ASSERT_NE(moved, MAP_FAILED);
    } else {
      ASSERT_EQ(::munmap(at, kPage), 0);
    }
    (void)vmmc_flush(bound);
    // What the program puts there is its own, and stays.
    auto* const other = static_cast<std::uint8_t*>(
        ::mmap(at, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
               -1, 0));
    if (other == MAP_FAILED) continue;  // a sanitizer, say, has mapped memory there
    ASSERT_EQ(other, at);
    std::memset(other, 7, kPage);
    if (c.mode == VMMC_MIRROR) {
      EXPECT_EQ(vmmc_flush(bound), -EFAULT);
      EXPECT_NE(to.memory[0], 7);
      std::memset(at + kPage, 6, kPage);
      EXPECT_EQ(vmmc_flush(bound), -EFAULT) << "from now on";
      EXPECT_EQ(to.memory[kPage], 6) << "the rest is sent";
      EXPECT_NE(to.memory[0], 7);
    }
    bound.end();
    EXPECT_EQ(other[0], 7);
    std::memset(to.memory, 0, kBytes);
    std::memset(other, 8, kBytes);
    EXPECT_EQ(to.memory[0], 0);
    EXPECT_EQ(to.memory[kPage], 0);
    ::munmap(at, kBytes);
    if (moved != nullptr) ::munmap(moved, kPage);
  }
}

// A kernel before 6.7, and one that forbids it.
TEST(VmmcMirror, WithoutHelpOfTheKernelComparesEverythingAndSaysSo) {
  if (!kChildMayAllocate) GTEST_SKIP() << "a child of a process with threads may not allocate";
  Exported to(kBytes);
  const pid_t pid = ::fork();
  if (pid == 0) {
    sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(refuse), refuse};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      ::_exit(77);
    }
    Imported from(to);
    Bound bound(from, 0, nullptr, kBytes, VMMC_MIRROR);
    bool right = vmmc_compares(bound) == 1;
    std::mt19937_64 random(3);
    for (int round = 0; round < 50 && right; ++round) {
      reinterpret_cast<std::uint64_t*>(bound.memory)[random() % (kBytes / 8)] = random();
      right = vmmc_flush(bound) == 0 && std::memcmp(to.memory, bound.memory, kBytes) == 0;
    }
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(status, 0);
}

TEST(VmmcMirror, ComparesOnlyPagesThatWereWritten) {
  Exported to(kBytes);
  Imported from(to);
  Bound bound(from, 0, nullptr, kBytes, VMMC_MIRROR);
  if (vmmc_compares(bound) != 0) GTEST_SKIP() << "this kernel does not tell them";
  const auto compared = [] { return page().compared_bytes.load(std::memory_order_relaxed); };
  std::memset(bound.memory, 1, kBytes);
  ASSERT_EQ(vmmc_flush(bound), 0);
  const std::uint64_t before = compared();
  bound.memory[5 * kPage] = 2;
  bound.memory[9 * kPage - 1] = 2;
  ASSERT_EQ(vmmc_flush(bound), 0);
  EXPECT_EQ(compared(), before + 2 * kPage);
  ASSERT_EQ(vmmc_flush(bound), 0);
  EXPECT_EQ(compared(), before + 2 * kPage);
}

TEST(VmmcMirror, SendsAtIntervalsByItself) {
  Exported to(kBytes);
  Imported from(to);
  Bound bound(from, 0, nullptr, kBytes, VMMC_MIRROR, 1);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(bound.memory + 8 * i))
        .store(i, std::memory_order_relaxed);
    await_word(to.memory, 8 * i, i);
  }
}

TEST(VmmcMirror, OfMemoryThatIsTakenAwayDuringFlushesRaisesNoSignal) {
  Exported to(kBytes);
  Imported from(to);
  for (int round = 0; round < 30; ++round) {
    auto* const at = static_cast<std::uint8_t*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    Bound bound(from, 0, at, kBytes, VMMC_MIRROR);
    std::atomic<bool> ends{false};
    std::thread flusher([&] {
      while (!ends.load(std::memory_order_acquire)) (void)vmmc_flush(bound);
    });
    std::memset(at, round, kBytes);
    ::munmap(at, kBytes);
    ends.store(true, std::memory_order_release);
    flusher.join();
  }
}

TEST(VmmcMirror, OfSharedMemoryOfAFileThatShrinksRaisesNoSignal) {
  Exported to(kBytes);
  Imported from(to);
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, kBytes), 0);
  Pages file(kBytes, MAP_SHARED, fd);
  {
    Bound bound(from, 0, file.at, kBytes, VMMC_MIRROR);
    std::memset(file.at, 3, kBytes);
    EXPECT_EQ(vmmc_flush(bound), 0);
    EXPECT_EQ(std::memcmp(to.memory, file.at, kBytes), 0);
    std::memset(file.at, 4, kBytes);
    ASSERT_EQ(::ftruncate(fd, kPage), 0);
    (void)vmmc_flush(bound);
    EXPECT_EQ(to.memory[0], 4);
  }
  ::close(fd);
}

TEST(VmmcMirror, SendsZeroesOfPagesThatAreGivenBack) {
  Exported to(kBytes);
  Imported from(to);
  Pages own(kBytes);
  Bound bound(from, 0, own.at, kBytes, VMMC_MIRROR);
  std::memset(own.at, 3, kBytes);
  ASSERT_EQ(vmmc_flush(bound), 0);
  ASSERT_EQ(::madvise(own.at + kPage, kPage, MADV_DONTNEED), 0);
  ASSERT_EQ(vmmc_flush(bound), 0);
  EXPECT_EQ(to.memory[kPage - 1], 3);
  EXPECT_EQ(to.memory[kPage], 0);
  EXPECT_EQ(to.memory[2 * kPage], 3);
}

TEST(VmmcMirror, BeginsAndEndsInsideOfPages) {
  Exported to(kBytes);
  Imported from(to);
  Pages own(kBytes);
  Bound bound(from, 16, own.at + 40, 3 * kPage, VMMC_MIRROR);
  std::memset(own.at, 3, kBytes);
  ASSERT_EQ(vmmc_flush(bound), 0);
  EXPECT_EQ(to.memory[15], 0);
  EXPECT_EQ(to.memory[16], 3);
  EXPECT_EQ(to.memory[16 + 3 * kPage - 1], 3);
  EXPECT_EQ(to.memory[16 + 3 * kPage], 0);
}

TEST(VmmcMirror, BothWaysKeepsTheStoresOfBoth) {
  constexpr std::size_t kWords = 2 * kPage / 8;
  struct Side {
    Open v;
    std::vector<std::uint64_t> landing = std::vector<std::uint64_t>(kWords),
                               memory = std::vector<std::uint64_t>(kWords);
    vmmc_buffer_t* buffer = nullptr;
    vmmc_remote_t* remote = nullptr;
    vmmc_binding_t* binding = nullptr;
    std::string name = unique_name();
    Side() {
      EXPECT_EQ(vmmc_export(v, name.c_str(), landing.data(), kWords * 8, nullptr, nullptr, nullptr,
                            &buffer),
                0);
    }
    void bind(const Side& other) {
      ASSERT_EQ(vmmc_import(v, nullptr, other.name.c_str(), kSoon, &remote), 0);
      ASSERT_EQ(vmmc_bind_both(remote, 0, buffer, memory.data(), kWords * 8, 0, &binding), 0);
    }
    ~Side() {
      EXPECT_EQ(vmmc_unbind(binding), 0);
      EXPECT_EQ(vmmc_unimport(remote), 0);
      EXPECT_EQ(vmmc_unexport(buffer), 0);
    }
  } sides[2];
  sides[0].bind(sides[1]);
  sides[1].bind(sides[0]);
  std::vector<std::uint64_t> expected(kWords);
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    for (unsigned side = 0; side < 2; ++side) {
      for (int n = 0; n < 20; ++n) {
        const std::size_t i = random() % (kWords / 2) * 2 + side;
        expected[i] = sides[side].memory[i] = random() % 3;
      }
    }
    const std::size_t first = random() % 2;
    ASSERT_EQ(vmmc_flush(sides[first].binding), 0);
    if (round % 10 != 9) continue;
    ASSERT_EQ(vmmc_flush(sides[1 - first].binding), 0);
    ASSERT_EQ(vmmc_flush(sides[first].binding), 0);
    ASSERT_EQ(sides[0].memory, expected) << round;
    ASSERT_EQ(sides[1].memory, expected) << round;
  }
}

TEST(VmmcBindBoth, KeepsTheBufferThatItTakesOver) {
  Exported to(kPage), landing(kPage);
  Imported from(to);
  vmmc_binding_t* both = nullptr;
  ASSERT_EQ(vmmc_bind_both(from, 0, landing.buffer, nullptr, kPage, 0, &both), 0);
  EXPECT_EQ(vmmc_unexport(landing.buffer), -EBUSY);
  landing.memory[8] = 5;
  EXPECT_EQ(vmmc_flush(both), 0);
  EXPECT_EQ(static_cast<std::uint8_t*>(vmmc_bound(both))[8], 5);
  EXPECT_EQ(vmmc_unbind(both), 0);
  EXPECT_EQ(vmmc_unexport(landing.buffer), 0);
  landing.buffer = nullptr;
}

TEST(VmmcBindBoth, ByAnAliasAndByStoresIsOneMemory) {
  Exported to(kPage);
  Imported from(to);
  Bound alias(from, 0, nullptr, kPage, VMMC_ALIAS);
  alias.memory[0] = 1;
  to.memory[1] = 2;
  EXPECT_EQ(to.memory[0], 1);
  EXPECT_EQ(alias.memory[1], 2);
  // A client's buffer and a server's, each bound to the other (4.3).
  Exported client(kPage), server(kPage);
  vmmc_remote_t *of_server = nullptr, *of_client = nullptr;
  ASSERT_EQ(vmmc_import(client.v, nullptr, server.name.c_str(), kSoon, &of_server), 0);
  ASSERT_EQ(vmmc_import(server.v, nullptr, client.name.c_str(), kSoon, &of_client), 0);
  {
    Bound call(of_server, 0, client.memory, kPage, VMMC_STORE);
    Bound reply(of_client, 0, server.memory, kPage, VMMC_STORE);
    for (std::uint64_t i = 1; i < 100; ++i) {
      ASSERT_EQ(vmmc_store(call, 8, &i, 8), 0);
      ASSERT_EQ(vmmc_store_word(call, 0, i), 0);
      ASSERT_EQ(word_at(server.memory, 0), i);
      ASSERT_EQ(vmmc_store_word(reply, 8, word_at(server.memory, 8) + 1), 0);
      EXPECT_EQ(word_at(client.memory, 8), i + 1);
    }
  }
  EXPECT_EQ(vmmc_unimport(of_server), 0);
  EXPECT_EQ(vmmc_unimport(of_client), 0);
}

TEST(VmmcBinding, OfWrongStretchesIsAnError) {
  Exported to(2 * kPage), own(2 * kPage, 0, Of::kOwn);
  Imported from(to), unmapped(own);
  Pages pages(4 * kPage);
  vmmc_binding_t* b = nullptr;
  EXPECT_EQ(vmmc_bind(from, 0, nullptr, 3 * kPage, VMMC_STORE, 0, &b), -ERANGE);
  EXPECT_EQ(vmmc_bind(from, ~std::size_t{7}, nullptr, 64, VMMC_STORE, 0, &b), -ERANGE);
  EXPECT_EQ(vmmc_bind(from, 0, nullptr, 0, VMMC_STORE, 0, &b), -ERANGE);
  EXPECT_EQ(vmmc_bind(from, 0, pages.at + 8, kPage, VMMC_ALIAS, 0, &b), -EINVAL);
  EXPECT_EQ(vmmc_bind(from, 8, pages.at, kPage, VMMC_ALIAS, 0, &b), -EINVAL);
  EXPECT_EQ(vmmc_bind(from, 0, pages.at, 100, VMMC_ALIAS, 0, &b), -EINVAL);
  EXPECT_EQ(vmmc_bind(unmapped, 0, nullptr, kPage, VMMC_ALIAS, 0, &b), -EOPNOTSUPP);
  EXPECT_EQ(vmmc_bind(from, 0, pages.at + 4, kPage, VMMC_MIRROR, 0, &b), -EINVAL);
  EXPECT_EQ(vmmc_bind(from, 0, nullptr, 8, 9, 0, &b), -EINVAL);
  Bound bound(from, 0, pages.at, kPage, VMMC_MIRROR);
  EXPECT_EQ(vmmc_bind(from, 0, pages.at + kPage / 2, kPage, VMMC_STORE, 0, &b), -EBUSY);
  EXPECT_EQ(vmmc_store(bound, 0, "x", 1), -EINVAL) << "a mirror is stored into";
  EXPECT_EQ(vmmc_unimport(from), -EBUSY);
  Bound store(from, 0, pages.at + kPage, 64, VMMC_STORE);
  EXPECT_EQ(vmmc_store(store, 60, "12345678", 8), -EINVAL);
  EXPECT_EQ(vmmc_store_word(store, 4, 1), -EINVAL);
}

TEST(VmmcBinding, OfReadOnlyMemoryShowsItByAnAlias) {
  const vmmc_permissions_t reading{-1, VMMC_READ};
  Exported to(kPage, 0, Of::kMapped, nullptr, nullptr, &reading);
  Imported from(to);
  Bound alias(from, 0, nullptr, kPage, VMMC_ALIAS);
  to.memory[9] = 42;
  EXPECT_EQ(alias.memory[9], 42);
}

}  // namespace
}  // namespace clan::vmmc::testing
