// `clan doctor`: barriers, copies between processes, processors.
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "finding.h"

namespace clan::tool {
namespace {

double average_us(int rounds, const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) call();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / rounds;
}

struct Buffer {
  pid_t pid;
  std::uint64_t address;
  std::uint64_t expected;
};

/// Reads `there.expected` from another process and writes it back. 0, or the errno that came.
int copy_across(const Buffer& there) {
  std::uint64_t value = 0;
  iovec local{&value, sizeof value};
  iovec remote{reinterpret_cast<void*>(there.address), sizeof value};
  if (process_vm_readv(there.pid, &local, 1, &remote, 1, 0) != sizeof value) return errno;
  if (value != there.expected) return EIO;
  if (process_vm_writev(there.pid, &local, 1, &remote, 1, 0) != sizeof value) return errno;
  return 0;
}

/// Cores the cgroup's CPU quota allows, the smallest on the way to the root; none if not limited.
std::optional<double> cgroup_cpus() {
  std::optional<double> least;
  const auto consider = [&least](double quota, double period) {
    if (quota > 0 && period > 0) least = std::min(least.value_or(1e9), quota / period);
  };
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (!line.starts_with("0::")) continue;
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
      double quota = 0;  // stays 0 when the file says "max"
      double period = 0;
      if (file >> quota >> period) consider(quota, period);
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  const auto v1_quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto v1_period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota && v1_period) {
    consider(static_cast<double>(*v1_quota), static_cast<double>(*v1_period));
  }
  return least;
}

}  // namespace

Finding check_membarrier() {
  Finding f{.name = "membarrier",
            .effect =
                "without the asymmetric fence a receiver that goes to sleep is woken through a "
                "full fence in every send: correct, slower"};
  const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (commands < 0) {
    f.seen = "membarrier: " + errno_text();
    return f;
  }
  constexpr long kNeeded =
      MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
  if ((commands & kNeeded) != kNeeded) {
    f.seen = fmt::format("commands {:#x}: no global expedited barrier", commands);
    return f;
  }
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0) {
    f.seen = "registering for the global expedited barrier: " + errno_text();
    return f;
  }
  // With a thread at work on another core, so that there is a core to interrupt.
  std::atomic<bool> stop = false;
  std::thread busy([&stop] {
    while (!stop.load(std::memory_order_relaxed)) std::this_thread::yield();
  });
  const double us =
      average_us(200, [] { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); });
  stop.store(true, std::memory_order_relaxed);  // relaxed: nothing else is handed over
  busy.join();
  f.state = us < 50 ? State::kOk : State::kLimited;
  f.seen = fmt::format("global expedited, {:.1f} us", us);
  f.effect = us < 50 ? "a receiver pays one barrier before it sleeps; senders pay no fence"
                     : "the barrier is slow here: going to sleep costs that much";
  return f;
}

// The two directions differ: under yama's scope 1 a process may reach its own children only, and
// two programs that talk to each other are seldom parent and child.
Finding check_process_vm() {
  Finding f{.name = "process_vm",
            .effect =
                "large transfers from memory outside CLAN's segments go through the ring in "
                "pieces (two copies)"};
  static std::uint64_t target = 0;
  int to_parent[2];
  int to_child[2];
  if (pipe2(to_parent, O_CLOEXEC) != 0) {
    f.seen = "pipe: " + errno_text();
    return f;
  }
  Descriptor parent_reads(to_parent[0]);
  Descriptor parent_end(to_parent[1]);
  if (pipe2(to_child, O_CLOEXEC) != 0) {
    f.seen = "pipe: " + errno_text();
    return f;
  }
  Descriptor child_end(to_child[1]);
  Descriptor child_reads(to_child[0]);

  target = 0x70617265;
  const Buffer parent_buffer{getpid(), reinterpret_cast<std::uint64_t>(&target), target};
  const pid_t child = fork();
  if (child < 0) {
    f.seen = "fork: " + errno_text();
    return f;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    child_end.reset();
    const int error = copy_across(parent_buffer);
    target = 0x6368696c;
    char byte = 0;
    const bool told = write(to_parent[1], &error, sizeof error) == sizeof error;
    // Stay until the parent has tried, or is gone.
    _exit(told && read(to_child[0], &byte, 1) == 0 ? 0 : 1);
  }
  parent_end.reset();
  int upward = EPIPE;
  if (read(parent_reads.get(), &upward, sizeof upward) != sizeof upward) upward = EPIPE;
  const int downward =
      copy_across({child, reinterpret_cast<std::uint64_t>(&target), std::uint64_t{0x6368696c}});
  child_end.reset();
  waitpid(child, nullptr, 0);

  if (upward == 0 && downward == 0) {
    f.state = State::kOk;
    f.seen = "read and write both ways between two processes";
    f.effect = "large transfers are one copy, straight between the two programs' memory";
  } else if (downward == 0) {
    f.state = State::kLimited;
    f.seen = fmt::format("parent to child only; the other way: {}", std::strerror(upward));
  } else {
    f.seen = fmt::format("parent to child: {}; child to parent: {}", std::strerror(downward),
                         upward == 0 ? "allowed" : std::strerror(upward));
  }
  return f;
}

Finding check_cpus() {
  Finding f{.name = "cpus"};
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  const long allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : online;
  const std::optional<double> quota = cgroup_cpus();
  const double usable = std::min(static_cast<double>(allowed), quota.value_or(1e9));
  f.seen = fmt::format("{} online, {} allowed here, cgroup limit {}", online, allowed,
                       quota ? fmt::format("{:.2f} cores", *quota) : "none");
  f.state = usable >= 2 ? State::kOk : State::kLimited;
  f.effect = usable >= 2 ? "both ends can poll: round trips in the order of a cache-line transfer"
                         : "less than two cores: spinning cannot help, waits go to sleep at once";
  return f;
}

Finding check_ptrace_scope() {
  Finding f{.name = "ptrace_scope"};
  const auto scope = read_number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) {
    f.state = State::kOk;
    f.seen = scope ? "yama 0" : "no yama";
    f.effect = "programs of one user may copy from each other; see process_vm for what was tried";
    return f;
  }
  f.state = State::kLimited;
  f.seen = fmt::format("yama {}", *scope);
  f.effect = *scope == 1
                 ? "only a parent may copy from its child, unless the peer allows it by prctl "
                   "or one has CAP_SYS_PTRACE: large transfers else go through the ring"
                 : "only CAP_SYS_PTRACE may copy: large transfers else go through the ring";
  return f;
}

}  // namespace clan::tool
