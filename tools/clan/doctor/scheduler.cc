// What waiting costs on this machine: system calls, yields, and rings of a pipe between threads.
#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "finding.h"

namespace clan::tool {
namespace {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::thread on_core(int core, std::function<void()> work) {
  return std::thread([core, work = std::move(work)] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    work();
  });
}

/// How long a call takes, on average of 10 ms: on a crowded machine some take a tick.
template <typename Call>
double average_us(Call&& call) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto now = start;
  int calls = 0;
  for (; now < start + std::chrono::milliseconds(10); now = Clock::now(), ++calls) call();
  return std::chrono::duration<double, std::micro>(now - start).count() / calls;
}

/// What a yield takes on `core`: one that finds nobody, or one that switches to another thread.
double yield_us(int core, bool switches) {
  std::atomic<bool> stop = false;
  std::thread other;
  if (switches) {
    other = on_core(core, [&stop] {
      while (!stop.load(std::memory_order_relaxed)) sched_yield();  // relaxed: a flag alone
    });
  }
  double us = 0;
  on_core(core, [&us] { us = average_us([] { sched_yield(); }); }).join();
  stop.store(true, std::memory_order_relaxed);  // relaxed: a flag alone
  if (switches) other.join();
  return us;
}

/// From a write to a pipe on core `from` until the thread that reads it runs on core `to`: half a
/// round trip, 0 where there is no pipe.
double ring_us(int from, int to) {
  int there[2], back[2];
  if (pipe2(there, O_CLOEXEC) != 0) return 0;
  Descriptor asked(there[0]), asking(there[1]);
  if (pipe2(back, O_CLOEXEC) != 0) return 0;
  Descriptor answered(back[0]), answering(back[1]);
  const auto pass_on = [](const Descriptor& in, const Descriptor& out) {
    char byte;
    return read(in.get(), &byte, 1) == 1 && write(out.get(), &byte, 1) == 1;
  };
  std::thread answers = on_core(to, [&] {
    while (pass_on(asked, answering)) continue;
  });
  double us = 0;
  on_core(from, [&] {
    (void)!write(asking.get(), "", 1);
    us = average_us([&] { (void)pass_on(answered, asking); });
  }).join();
  asking.reset();
  answers.join();
  return us / 2;
}

/// The same beside a computation on `to`.
double ring_busy_us(int from, int to) {
  std::atomic<bool> stop = false;
  std::thread computes = on_core(to, [&stop] {
    while (!stop.load(std::memory_order_relaxed)) continue;  // relaxed: a flag alone
  });
  const double us = ring_us(from, to);
  stop.store(true, std::memory_order_relaxed);  // relaxed: a flag alone
  computes.join();
  return us;
}

/// By debugfs, which only root reads, else by the kernel's version.
std::string preemption() {
  const std::string models = read_line("/sys/kernel/debug/sched/preempt");  // none (full) lazy
  const auto begin = models.find('('), end = models.find(')');
  if (begin != std::string::npos && end != std::string::npos)
    return models.substr(begin + 1, end - begin - 1);
  utsname name{};
  uname(&name);
  const std::string version = name.version;
  for (const char* model : {"PREEMPT_RT", "PREEMPT_DYNAMIC", "PREEMPT"}) {
    if (version.find(model) != std::string::npos) return model;
  }
  return "none or voluntary";
}

}  // namespace

Finding check_scheduler() {
  Finding f{.name = "scheduler"};
  const std::vector<int> cores = allowed_cores();
  if (cores.empty()) {
    f.seen = "sched_getaffinity: " + errno_text();
    f.effect = "what waiting costs is not known";
    return f;
  }
  const double call = average_us([] { syscall(SYS_getppid); });
  const int here = cores.front();
  f.seen = fmt::format(
      "system call {:.2f} us, yield {:.1f}, one that switches {:.1f}, ring on one "
      "core {:.0f}",
      call, yield_us(here, false), yield_us(here, true), ring_us(here, here));
  if (cores.size() > 1) {
    f.seen += fmt::format(", to an idle core {:.0f}, to a busy one {:.0f}", ring_us(here, cores[1]),
                          ring_busy_us(here, cores[1]));
  }
  timespec tick{};
  clock_getres(CLOCK_REALTIME_COARSE, &tick);  // the scheduler's tick
  const long hz = tick.tv_nsec > 0 ? 1'000'000'000 / tick.tv_nsec : 0;
  f.seen +=
      fmt::format("; HZ {}, preemption {}, autogroup {}", hz, preemption(),
                  read_line("/proc/sys/kernel/sched_autogroup_enabled") == "1" ? "on" : "off");
  constexpr double kDearCallUs = 0.6;
  f.state = call < kDearCallUs ? State::kOk : State::kLimited;
  f.effect = call < kDearCallUs
                 ? "an end that sleeps costs its peer a ring; ends that both poll cost none"
                 : "system calls are slow, as in a guest without hardware paging: ends that sleep "
                   "gain less";
  return f;
}

}  // namespace clan::tool
