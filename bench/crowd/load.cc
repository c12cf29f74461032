// clan-crowd-load: pairs of processes that ask and answer each other, beside endless computations,
// in plain socket calls. `clan run` puts it under the interposer as any other program.
//
//   clan-crowd-load tcp|unix HOW PAIRS CORES HOGS SECONDS
//       HOW     block: read; epoll: epoll_wait, then read
//       CORES   any: wherever the scheduler has them; one: all on the first that is allowed
//       HOGS    none; or a nice value, of one computation on each of these cores
//
// Prints trips a second, p50, p99 and max of a trip (us), processor time of both ends for a trip
// (us), the share of trips whose ends were on one core, and that of the cores' time that the
// computations had.
#include "support/load.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <bit>
#include <new>

#include "support/cpu_time.h"

namespace {

using namespace clan::bench;

constexpr std::size_t kBytes = 64;
constexpr std::size_t kMostPairs = 64;
constexpr unsigned kSteps = 16;  ///< of the histogram, for each doubling

// All words below are counts that publish nothing: relaxed.
constexpr auto kRelaxed = std::memory_order_relaxed;

struct alignas(128) Pair {
  std::atomic<std::uint64_t> trips{0}, on_one_core{0}, longest_ns{0};
  alignas(128) std::atomic<int> servers_core{-1};
  std::array<std::atomic<std::uint32_t>, 64 * kSteps> histogram{};

  void add(std::uint64_t ns) {
    const auto top = static_cast<unsigned>(std::bit_width(ns | kSteps)) - 1;
    const auto step = (top - 4) * kSteps + static_cast<unsigned>(ns >> (top - 4)) % kSteps;
    histogram[step].fetch_add(1, kRelaxed);
    if (ns > longest_ns.load(kRelaxed)) longest_ns.store(ns, kRelaxed);
  }
  static double value_ns(unsigned step) {
    return static_cast<double>(kSteps + step % kSteps) * static_cast<double>(1ull << step / kSteps);
  }
};

struct Shared {
  std::atomic<bool> counts{false};
  Pair pairs[kMostPairs];
};

struct Options {
  bool is_tcp, by_epoll;
  std::size_t pairs;
  bool on_one_core;
  bool has_hogs;
  int nice;
  double seconds;
};

class End {
 public:
  End(int fd, bool by_epoll) : fd_(fd) {
    if (!by_epoll) return;
    epoll_ = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll");
  }
  void put() {
    if (write(fd_, bytes_, kBytes) != static_cast<ssize_t>(kBytes)) std::_Exit(0);
  }
  void get() {
    epoll_event event;
    for (std::size_t n = 0; n < kBytes;) {
      while (epoll_ >= 0 && epoll_wait(epoll_, &event, 1, -1) != 1) {
      }
      const ssize_t got = read(fd_, bytes_ + n, kBytes - n);
      if (got <= 0) std::_Exit(0);
      n += static_cast<std::size_t>(got);
    }
  }

 private:
  const int fd_;
  int epoll_ = -1;
  char bytes_[kBytes] = {};
};

void ask(End end, Shared& shared, Pair& pair) {
  for (std::uint64_t last = now_ns();;) {
    end.put();
    end.get();
    const std::uint64_t now = now_ns();
    if (shared.counts.load(kRelaxed)) {
      pair.add(now - last);
      pair.trips.fetch_add(1, kRelaxed);
      if (pair.servers_core.load(kRelaxed) == sched_getcpu())
        pair.on_one_core.fetch_add(1, kRelaxed);
    }
    last = now;
  }
}

void answer(End end, Pair& pair) {
  for (;;) {
    end.get();
    pair.servers_core.store(sched_getcpu(), kRelaxed);
    end.put();
  }
}

// The two processes of a pair.
void start(const Options& options, Shared& shared, Pair& pair, std::vector<pid_t>& ends) {
  int both[2] = {-1, -1}, listener = -1;
  sockaddr_in address = address_of("127.0.0.1", 0);
  if (options.is_tcp) {
    socklen_t size = sizeof address;
    listener = listen_at(address, 1);
    if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail("listen");
  } else if (socketpair(AF_UNIX, SOCK_STREAM, 0, both) != 0) {
    fail("socketpair");
  }
  for (const bool asks : {false, true}) {
    const pid_t pid = start_child();
    if (pid != 0) {
      ends.push_back(pid);
      continue;
    }
    int fd = both[asks];
    if (options.is_tcp)
      fd = asks ? connect_to(address) : no_delay(accept(listener, nullptr, nullptr));
    close(options.is_tcp ? listener : both[!asks]);
    const End end(fd, options.by_epoll);
    asks ? ask(end, shared, pair) : answer(end, pair);
  }
  for (const int fd : {both[0], both[1], listener}) close(fd);
}

void compute(int core, int nice_value) {
  pin(core);
  if (setpriority(PRIO_PROCESS, 0, nice_value) != 0) fail("setpriority");
  for (volatile std::uint64_t n = 0;;) n = n + 1;
}

/// Seconds of processor time that these processes have had.
double spent(const std::vector<pid_t>& processes) {
  double ns = 0;
  for (const pid_t pid : processes) ns += cpu_ns_of(pid);
  return ns / 1e9;
}

double percentile(const Shared& shared, const Options& options, std::uint64_t trips, double part) {
  std::uint64_t below = 0;
  for (unsigned step = 0; step < 64 * kSteps; ++step) {
    for (std::size_t k = 0; k < options.pairs; ++k) {
      below += shared.pairs[k].histogram[step].load(kRelaxed);
    }
    if (static_cast<double>(below) >= part * static_cast<double>(trips))
      return Pair::value_ns(step) / 1e3;
  }
  return 0;
}

void run(const Options& options) {
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  Shared& shared = *new (memory) Shared;
  std::vector<int> cores = allowed_cores();
  if (options.on_one_core) {
    cores.resize(1);
    pin(cores[0]);
  }
  std::vector<pid_t> ends, hogs;
  for (const int core : cores) {
    const pid_t pid = options.has_hogs ? start_child() : -1;
    if (pid == 0) compute(core, options.nice);
    if (pid > 0) hogs.push_back(pid);
  }
  for (std::size_t k = 0; k < options.pairs; ++k) start(options, shared, shared.pairs[k], ends);
  sleep_for(0.2);
  const double ends_before = spent(ends), hogs_before = spent(hogs);
  const std::uint64_t begin = now_ns();
  shared.counts.store(true, kRelaxed);
  sleep_for(options.seconds);
  shared.counts.store(false, kRelaxed);
  const double seconds = seconds_since(begin);
  const double of_ends = spent(ends) - ends_before, of_hogs = spent(hogs) - hogs_before;
  std::uint64_t trips = 0, near = 0, longest = 0;
  for (std::size_t k = 0; k < options.pairs; ++k) {
    trips += shared.pairs[k].trips.load(kRelaxed);
    near += shared.pairs[k].on_one_core.load(kRelaxed);
    longest = std::max(longest, shared.pairs[k].longest_ns.load(kRelaxed));
  }
  const auto count = static_cast<double>(std::max<std::uint64_t>(trips, 1));
  std::printf("rate %.1f p50 %.2f p99 %.2f max %.1f cpu %.2f near %.3f hogs %.3f\n",
              static_cast<double>(trips) / seconds, percentile(shared, options, trips, 0.5),
              percentile(shared, options, trips, 0.99), static_cast<double>(longest) / 1e3,
              of_ends * 1e6 / count, static_cast<double>(near) / count,
              of_hogs / (seconds * static_cast<double>(cores.size())));
  std::fflush(stdout);
  for (const auto& processes : {ends, hogs}) {
    for (const pid_t pid : processes) kill(pid, SIGKILL);
    for (const pid_t pid : processes) waitpid(pid, nullptr, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr,
                 "usage: clan-crowd-load tcp|unix block|epoll PAIRS any|one none|NICE SECONDS\n");
    return 2;
  }
  const std::string_view hogs = argv[5];
  const Options options{std::string_view(argv[1]) == "tcp",
                        std::string_view(argv[2]) == "epoll",
                        static_cast<std::size_t>(std::atoi(argv[3])),
                        std::string_view(argv[4]) == "one",
                        hogs != "none",
                        std::atoi(argv[5]),
                        std::atof(argv[6])};
  if (options.pairs == 0 || options.pairs > kMostPairs) return 2;
  run(options);
  return 0;
}
