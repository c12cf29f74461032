// Peers that are other processes: they are killed, they fork.
#include "ends.h"
#include "support/waiting_child.h"

namespace clan::vmmc::testing {
namespace {

using test::WaitingChild;

TEST(VmmcDeath, OfTheExporterIsAnErrorOfEachCall) {
  const std::string name = unique_name();
  WaitingChild child([&](auto ready) {
    Open v;
    vmmc_buffer_t* buffer = nullptr;
    void* memory = vmmc_alloc(v, kPage);
    if (vmmc_export(v, name.c_str(), memory, kPage, nullptr, Heard::note, new Heard, &buffer) != 0)
      ::_exit(1);
    ready();
    for (;;) ::pause();
  });
  child.await();
  Imported from(name);
  vmmc_binding_t *alias = nullptr, *mirror = nullptr;
  ASSERT_EQ(vmmc_bind(from, 0, nullptr, kPage, VMMC_ALIAS, 0, &alias), 0);
  ASSERT_EQ(vmmc_bind(from, 0, nullptr, kPage, VMMC_MIRROR, 1, &mirror), 0);
  ASSERT_EQ(vmmc_send(from, 0, "x", 1, VMMC_NOTIFY), 0);
  child.kill();
  while (vmmc_check(from) == 0) std::this_thread::yield();
  EXPECT_EQ(vmmc_check(from), -ECONNRESET);
  EXPECT_NE(vmmc_notify(from, 0, 1), 0);
  EXPECT_NE(vmmc_send(from, 0, "x", 1, VMMC_NOTIFY), 0);
  std::memset(vmmc_bound(alias), 1, kPage);  // nobody's memory, and no signal
  std::memset(vmmc_bound(mirror), 1, kPage);
  EXPECT_EQ(vmmc_flush(alias), -ECONNRESET);
  EXPECT_EQ(vmmc_flush(mirror), -ECONNRESET);
  EXPECT_EQ(vmmc_unbind(alias), 0);
  EXPECT_EQ(vmmc_unbind(mirror), 0);
}

// Killed after each of many numbers of steps, whatever it is in the middle of.
TEST(VmmcDeath, OfAnImporterAtAnyStepLeavesTheExporterInOrder) {
  Heard heard;
  Exported to(1 << 20, 0, Of::kMapped, Heard::note, &heard);
  std::size_t steps = 0;
  for (int round = 0; round < 24; ++round) {
    auto* const step = static_cast<std::atomic<int>*>(
        ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    WaitingChild child([&](auto ready) {
      Imported from(to);
      std::vector<std::uint8_t> data(1 << 20, 1);
      ready();
      for (;;) {
        step->fetch_add(1, std::memory_order_relaxed);
        vmmc_binding_t* binding = nullptr;
        (void)vmmc_send(from, 0, data.data(), 100, VMMC_NOTIFY);
        (void)vmmc_send(from, 0, data.data(), data.size(), VMMC_NOTIFY);
        const auto mode = static_cast<vmmc_mode_t>(1 + round % 3);
        if (vmmc_bind(from, 0, nullptr, kPage, mode, 0, &binding) != 0) ::_exit(1);
        if (mode == VMMC_STORE) (void)vmmc_store(binding, 0, data.data(), 64);
        if (mode != VMMC_STORE) std::memset(vmmc_bound(binding), 1, kPage);
        (void)vmmc_flush(binding);
        (void)vmmc_unbind(binding);
      }
    });
    child.await();
    while (step->load(std::memory_order_relaxed) <= round) std::this_thread::yield();
    child.kill();
    steps += static_cast<std::size_t>(step->load(std::memory_order_relaxed));
    ::munmap(step, kPage);
  }
  EXPECT_GE(steps, 24u);
  const int before = heard.count();
  Imported from(to);
  ASSERT_EQ(vmmc_send(from, 7, "alive", 5, VMMC_NOTIFY), 0);
  heard.await(before + 1);
  EXPECT_EQ(std::memcmp(to.memory + 7, "alive", 5), 0);
}

TEST(VmmcFork, TheChildHasMemoryOfItsOwnAndNothingElse) {
  if (!kChildMayAllocate) GTEST_SKIP() << "a child of a process with threads may not allocate";
  Exported to(4 * kPage);
  Imported from(to);
  vmmc_binding_t *alias = nullptr, *mirror = nullptr, *store = nullptr;
  ASSERT_EQ(vmmc_bind(from, 0, nullptr, kPage, VMMC_ALIAS, 0, &alias), 0);
  ASSERT_EQ(vmmc_bind(from, kPage, nullptr, kPage, VMMC_MIRROR, 1, &mirror), 0);
  ASSERT_EQ(vmmc_bind(from, 2 * kPage, nullptr, kPage, VMMC_STORE, 0, &store), 0);
  auto* const aliased = static_cast<std::uint8_t*>(vmmc_bound(alias));
  auto* const mirrored = static_cast<std::uint8_t*>(vmmc_bound(mirror));
  aliased[5] = 42;
  const pid_t pid = ::fork();
  if (pid == 0) {
    bool right = aliased[5] == 42;  // as the parent had it
    aliased[5] = 43;
    mirrored[5] = 43;
    right = right && vmmc_send(from, 0, "x", 1, 0) == -ESHUTDOWN &&
            vmmc_flush(mirror) == -ESHUTDOWN && vmmc_store(store, 0, "x", 1) == -ESHUTDOWN &&
            vmmc_unbind(alias) == -ESHUTDOWN && vmmc_unexport(to.buffer) == -ESHUTDOWN &&
            vmmc_close(to.v) == -ESHUTDOWN;
    vmmc_t* own = nullptr;
    vmmc_remote_t* there = nullptr;
    right = right && vmmc_open(0, &own) == 0 &&
            vmmc_import(own, nullptr, to.name.c_str(), kSoon, &there) == 0 &&
            vmmc_send(there, 3 * kPage, "child", 5, 0) == 0;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(vmmc_flush(mirror), 0);
  EXPECT_EQ(to.memory[5], 42);
  EXPECT_EQ(to.memory[kPage + 5], 0);
  EXPECT_EQ(std::memcmp(to.memory + 3 * kPage, "child", 5), 0);
  mirrored[6] = 7;
  aliased[6] = 7;
  EXPECT_EQ(vmmc_flush(mirror), 0);
  EXPECT_EQ(to.memory[6], 7);
  EXPECT_EQ(to.memory[kPage + 6], 7);
  for (vmmc_binding_t* binding : {alias, mirror, store}) EXPECT_EQ(vmmc_unbind(binding), 0);
}

// A child of a process whose threads are in calls of the library: none of its locks is held there.
TEST(VmmcFork, BesideThreadsThatCallLeavesNoLockHeld) {
  if (!kChildMayAllocate) GTEST_SKIP() << "a child of a process with threads may not allocate";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that makes a thread where its parent had one";
#endif
  Exported to(kPage);
  Imported from(to);
  std::atomic<bool> ends{false};
  std::thread thread([&] {
    while (!ends.load(std::memory_order_relaxed)) {
      vmmc_binding_t* binding = nullptr;
      EXPECT_EQ(vmmc_bind(from, 0, nullptr, kPage, VMMC_ALIAS, 0, &binding), 0);
      EXPECT_EQ(vmmc_unbind(binding), 0);
    }
  });
  for (int i = 0; i < 30; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      vmmc_t* own = nullptr;
      ::_exit(vmmc_open(0, &own) == 0 && vmmc_close(own) == 0 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  ends.store(true, std::memory_order_relaxed);
  thread.join();
}

}  // namespace
}  // namespace clan::vmmc::testing
