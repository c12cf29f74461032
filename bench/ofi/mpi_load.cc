// What `clan bench ofi` has Open MPI run: two ranks, latency and bandwidth by plain MPI_Send and MPI_Recv,
// for whichever transport mpirun was told to take. Rank 0 prints "KIND BYTES MINIMUM MEDIAN KEPT DROPPED"
// (us) for each size.
//
//   mpirun -np 2 ... clan-mpi-load MS CORE_A CORE_B
//
// latency: ping-pong, one way. window: 64 messages at once, then an answer; per message. Every message
// carries its number (of a window: the window's) at front, middle and back, which its receiver checks; one
// message before and one after each measurement is checked byte by byte.
#include <mpi.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kWindow = 64;
constexpr int kSlices = 27, kMostTimes = 5;
constexpr int kSizes[] = {1, 8, 64, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304};
constexpr int kMostBytes = 4194304;

struct Figure {
  double minimum = 0;
  double median = 0;
  int kept = 0;
  int dropped = 0;
};

long times_preempted() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "clan-mpi-load: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

class Rank {
 public:
  explicit Rank(int rank) : rank_(rank), out_(kMostBytes, 0x5a), in_(kMostBytes) {}

  /// As in load.cc.
  Figure measure(bool window, int bytes, double ms) {
    const int unit = window ? kWindow : 8;
    const int few = bytes <= 65536 ? 2 * kWindow : unit;
    verify(bytes);
    (void)run(window, bytes, few);  // warm
    const double each = std::max(run(window, bytes, few) / few, 1e-9);
    int times = static_cast<int>(std::clamp(ms * 1e-3 / kSlices / each, double(few), 1e6)) / unit * unit;
    MPI_Bcast(&times, 1, MPI_INT, 0, MPI_COMM_WORLD);
    std::vector<double> calm, disturbed;
    const double until = MPI_Wtime() + kMostTimes * ms * 1e-3;
    for (int more = 1; more != 0;) {
      const long before = times_preempted();
      const double us = run(window, bytes, times) / times * 1e6;
      int preempted = times_preempted() != before ? 1 : 0;
      MPI_Allreduce(MPI_IN_PLACE, &preempted, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
      (preempted != 0 ? disturbed : calm).push_back(us);
      more = calm.size() < kSlices && MPI_Wtime() < until ? 1 : 0;
      MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    verify(bytes);
    const auto count = static_cast<int>(calm.size()), dropped = static_cast<int>(disturbed.size());
    auto& kept = calm.empty() ? disturbed : calm;
    std::sort(kept.begin(), kept.end());
    return {kept.front(), kept[kept.size() / 2], count, dropped};
  }

 private:
  void send(int bytes) { MPI_Send(out_.data(), bytes, MPI_BYTE, 1 - rank_, 1, MPI_COMM_WORLD); }
  void receive(int bytes) {
    MPI_Recv(in_.data(), bytes, MPI_BYTE, 1 - rank_, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  static std::uint8_t stamp_of(int number) { return static_cast<std::uint8_t>(number % 251 + 1); }
  void stamp(int bytes, int number) { out_[0] = out_[bytes / 2] = out_[bytes - 1] = stamp_of(number); }
  void check(int bytes, int number) const {
    const std::uint8_t s = stamp_of(number);
    if (in_[0] != s || in_[bytes / 2] != s || in_[bytes - 1] != s) give_up("wrong data");
  }

  double run(bool window, int bytes, int times) {
    return window ? windows(bytes, times) : ping_pong(bytes, times);
  }

  double ping_pong(int bytes, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    for (int i = 0; i < times; ++i) {
      if (rank_ == 0) {
        stamp(bytes, i);
        send(bytes);
      }
      receive(bytes);
      check(bytes, i);
      if (rank_ == 1) {
        stamp(bytes, i);
        send(bytes);
      }
    }
    return (MPI_Wtime() - began) / 2;
  }

  double windows(int bytes, int times) {
    MPI_Request requests[kWindow];
    char answer = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    for (int w = 0; w < times / kWindow; ++w) {
      if (rank_ == 0) {
        stamp(bytes, w);
        for (MPI_Request& r : requests) MPI_Isend(out_.data(), bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &r);
        MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
        MPI_Recv(&answer, 1, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      } else {
        for (MPI_Request& r : requests) MPI_Irecv(in_.data(), bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &r);
        MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
        check(bytes, w);
        MPI_Send(&answer, 1, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
      }
    }
    return MPI_Wtime() - began;
  }

  void verify(int bytes) {
    const int seed = ++seed_;
    for (int i = 0; i < bytes; ++i) out_[i] = static_cast<std::uint8_t>(i * 31 + (i >> 8) * 7 + seed);
    MPI_Sendrecv(out_.data(), bytes, MPI_BYTE, 1 - rank_, 4, in_.data(), bytes, MPI_BYTE, 1 - rank_, 4,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!std::equal(out_.begin(), out_.begin() + bytes, in_.begin())) give_up("wrong data");
  }

  int rank_;
  int seed_ = 0;
  std::vector<std::uint8_t> out_, in_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2 || argc != 4) give_up("two ranks, and MS CORE_A CORE_B: see ofi.py");
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(std::atoi(argv[2 + rank]), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) give_up("sched_setaffinity");
  Rank me(rank);
  for (const bool window : {false, true}) {
    for (const int bytes : kSizes) {
      const Figure f = me.measure(window, bytes, std::atof(argv[1]));
      if (rank != 0) continue;
      std::printf("%s %d %.5f %.5f %d %d\n", window ? "window" : "latency", bytes, f.minimum, f.median,
                  f.kept, f.dropped);
    }
  }
  MPI_Finalize();
  return 0;
}
