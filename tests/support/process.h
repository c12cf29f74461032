// Child processes of tests, and what two processes of a test need to agree on.
//
// A child runs one function and ends with its result. It cannot outlive its test: it dies with the
// thread that started it, an alarm ends it when it hangs, and the destructor kills and reaps it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "base/fd.h"

namespace clan::test {

/// "t<pid>-<counter>-<word>": unlike any other name on this machine. Call it before the fork.
std::string unique_name(const std::string& word);

/// How a child ended.
struct Exit {
  bool timed_out = false;  ///< it still runs
  int signal = 0;          ///< 0 = it returned
  int code = -1;
  bool clean() const { return !timed_out && signal == 0 && code == 0; }
  bool killed() const { return !timed_out && signal == 9; }
};
/// For GoogleTest's messages.
void PrintTo(const Exit& exit, std::ostream* out);

/// Memory that a child shares with its test, whatever happens to the child. Make it before the
/// fork.
template <typename T>
class Shared {
 public:
  Shared()
      : p_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                       0)) T()) {}
  ~Shared() { ::munmap(p_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() { return p_; }
  T& operator*() { return *p_; }

 private:
  T* p_;
};

class Process {
 public:
  using Body = std::function<int()>;

  /// Forks. The child runs `body` and ends with _exit(what it returned): no destructors, no exit
  /// handlers. After `watchdog_s` seconds it is ended by SIGALRM.
  static Process start(const Body& body, unsigned watchdog_s = 60);

  Process() = default;
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  /// Waits for its end. An Exit that has timed out leaves it running.
  Exit wait(int timeout_ms = 60'000);
  /// SIGKILL, and waits until the kernel has ended it.
  Exit kill();
  void send_signal(int number) const;
  /// SIGSTOP, and waits until it is stopped.
  void stop();
  void resume();

 private:
  pid_t pid_ = -1;
};

/// A starting gate between processes: made before the fork, opened by one, awaited by another.
/// Counts.
class Gate {
 public:
  Gate();
  void open(std::uint64_t times = 1);
  /// Takes one opening. False after `timeout_ms`.
  bool wait(int timeout_ms = 30'000);

 private:
  Fd fd_;
};

/// Kills its process with SIGKILL at the n-th step; 0 = never.
class KillAtStep {
 public:
  explicit KillAtStep(std::uint64_t n) : n_(n) {}
  void step();

 private:
  std::uint64_t n_;
  std::uint64_t taken_ = 0;
};

// What a process holds; leaks show here.
std::size_t open_descriptors(pid_t pid = 0);
std::size_t mapping_count(pid_t pid = 0);  ///< of CLAN's memfds
std::uint64_t mapped_bytes(pid_t pid = 0);
/// Bytes of shared memory (memfds included) that this process has touched and still maps.
std::uint64_t resident_shared_bytes();
std::size_t files_in_dev_shm();

/// A writable shared mapping of this process whose file is a memfd.
struct SharedRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  std::string name;  ///< of the memfd
};
/// All of them whose memfd's name begins with `prefix`.
std::size_t writable_memfd_mappings(const std::string& prefix, std::span<SharedRange> out);

/// True when `condition` holds within `timeout_ms`; looks every millisecond.
bool eventually(const std::function<bool()>& condition, int timeout_ms = 60'000);

/// What ASSERT_OK and EXPECT_OK check.
template <typename R>
::testing::AssertionResult succeeded(const R& result) {
  if (result.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << result.error().message();
}

}  // namespace clan::test

/// In a child: says what failed and ends its body with 1.
#define CHILD_CHECK(condition)                                                                   \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      std::fprintf(stderr, "%s:%d: in the child: not so: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                                                  \
    }                                                                                            \
  } while (0)
/// In a child: as CHILD_CHECK for a Result or Status, with its error.
#define CHILD_OK(result)                                                                 \
  do {                                                                                   \
    const auto& child_ok_result = (result);                                              \
    if (!child_ok_result.ok()) {                                                         \
      std::fprintf(stderr, "%s:%d: in the child: %s: %s\n", __FILE__, __LINE__, #result, \
                   child_ok_result.error().message().c_str());                           \
      return 1;                                                                          \
    }                                                                                    \
  } while (0)
/// In a test: the Result or Status is good, or the test ends with its error.
#define ASSERT_OK(result) ASSERT_TRUE(::clan::test::succeeded(result))
#define EXPECT_OK(result) EXPECT_TRUE(::clan::test::succeeded(result))
/// The Result or Status has failed with this errno value.
#define EXPECT_ERR(result, number)                                                             \
  do {                                                                                         \
    const auto& expect_err_result = (result);                                                  \
    if (expect_err_result.ok()) {                                                              \
      ADD_FAILURE() << #result " succeeded, expected " #number;                                \
    } else {                                                                                   \
      EXPECT_EQ(expect_err_result.error().err, number) << expect_err_result.error().message(); \
    }                                                                                          \
  } while (0)
