// An exporter and an importer, each with a VMMC of its own, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vmmc.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace clan::vmmc::testing {

inline constexpr std::int64_t kSoon = 20'000;  // ms, which a test never waits for
inline constexpr std::size_t kPage = 4096;

// A child of a process with threads may find a lock of AddressSanitizer's allocator held for ever.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kChildMayAllocate = false;
#else
inline constexpr bool kChildMayAllocate = true;
#endif

inline std::string unique_name() {
  static int number = 0;
  return "t" + std::to_string(::getpid()) + "." + std::to_string(++number);
}

inline std::uint64_t word_at(const void* memory, std::size_t offset) {
  const auto* word = reinterpret_cast<const std::atomic<std::uint64_t>*>(
      static_cast<const std::byte*>(memory) + offset);
  return word->load(std::memory_order_acquire);  // order: what was sent before is seen
}
inline void await_word(const void* memory, std::size_t offset, std::uint64_t value) {
  while (word_at(memory, offset) != value) std::this_thread::yield();
}

/// An open VMMC, closed when nothing of it is left.
struct Open {
  explicit Open(unsigned flags = 0) { EXPECT_EQ(vmmc_open(flags, &v), 0); }
  ~Open() { EXPECT_EQ(vmmc_close(v), 0); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  operator vmmc_t*() const { return v; }
  vmmc_t* v = nullptr;
};

/// What a handler has been called with. Its address is the handler's context.
struct Heard {
  static void note(vmmc_buffer_t* of, const vmmc_notification_t* what, void* self) {
    auto* const heard = static_cast<Heard*>(self);
    std::lock_guard lock(heard->mutex);
    heard->from = of;
    heard->what = *what;
    heard->all_lost += what->lost;
    ++heard->calls;
  }
  int count() {
    std::lock_guard lock(mutex);
    return calls;
  }
  vmmc_buffer_t* buffer() {
    std::lock_guard lock(mutex);
    return from;
  }
  vmmc_notification_t last() {
    std::lock_guard lock(mutex);
    return what;
  }
  std::uint64_t lost() {
    std::lock_guard lock(mutex);
    return all_lost;
  }
  void forget() {
    std::lock_guard lock(mutex);
    calls = 0;
  }
  void await(int n) {
    while (count() < n) std::this_thread::yield();
  }

  std::mutex mutex;
  vmmc_buffer_t* from = nullptr;
  vmmc_notification_t what{};
  std::uint64_t all_lost = 0;
  int calls = 0;
};

/// An exported buffer in memory that importers map, or in memory of the program's own.
enum class Of { kMapped, kOwn };
struct Exported {
  explicit Exported(std::size_t bytes, unsigned flags = 0, Of of = Of::kMapped,
                    vmmc_handler_t handler = nullptr, void* context = nullptr,
                    const vmmc_permissions_t* permissions = nullptr)
      : v(flags), own(of == Of::kOwn ? bytes : 0), name(unique_name()) {
    memory = of == Of::kOwn ? own.data() : static_cast<std::uint8_t*>(vmmc_alloc(v, bytes));
    EXPECT_EQ(vmmc_export(v, name.c_str(), memory, bytes, permissions, handler, context, &buffer),
              0);
  }
  ~Exported() { EXPECT_TRUE(buffer == nullptr || vmmc_unexport(buffer) == 0); }
  Open v;
  std::vector<std::uint8_t> own;
  std::string name;
  std::uint8_t* memory = nullptr;
  vmmc_buffer_t* buffer = nullptr;
};

struct Imported {
  explicit Imported(const std::string& name) {
    EXPECT_EQ(vmmc_import(v, nullptr, name.c_str(), kSoon, &remote), 0);
  }
  explicit Imported(const Exported& exported) : Imported(exported.name) {}
  ~Imported() { EXPECT_TRUE(remote == nullptr || vmmc_unimport(remote) == 0); }
  operator vmmc_remote_t*() const { return remote; }
  Open v;
  vmmc_remote_t* remote = nullptr;
};

}  // namespace clan::vmmc::testing
