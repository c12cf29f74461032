// What `clan bench mpi` and `clan bench ofi` have Open MPI run, for whichever transport mpirun
// selects. Rank 0 prints "KIND BYTES" and a figure (us), as in transports/slices.h, for each.
//
//   mpirun -np RANKS ... clan-mpi-load MS CORE,CORE,... KIND:BYTES,BYTES,... ...
//
// latency: ping-pong, one way. window: 64 messages at once, then an answer; per message. both: the
// same in both directions at once. put, get, fetch-add: one at a time with a flush, rank 1 waits in
// a barrier; "allocated-" before them: on memory of MPI_Alloc_mem. allreduce, alltoall, bcast: all
// ranks. All data are checked.
#include "support/load.h"

#include <mpi.h>

#include <map>
#include <string>

#include "transports/slices.h"

namespace {

using namespace clan::bench;

constexpr int kWindow = 64;
constexpr int kSlices = 27, kMostTimes = 5;
constexpr int kMostBytes = 4 << 20;

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "clan-mpi-load: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

class Rank {
 public:
  Rank() : out_(2 * kMostBytes, 0x5a), in_(2 * kMostBytes) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }

  void report(const std::string& kind, int bytes, double ms) {
    const int unit = kind == "window" || kind == "both" ? kWindow : 8;
    const int few = bytes <= 65536 ? 2 * kWindow : unit;
    verify(bytes);
    (void)run(kind, bytes, few);  // warm
    double each = std::max(run(kind, bytes, few) / few, 1e-9);
    int times =
        static_cast<int>(std::clamp(ms * 1e-3 / kSlices / each, double(few), 1e6)) / unit * unit;
    MPI_Bcast(&times, 1, MPI_INT, 0, MPI_COMM_WORLD);
    Slices slices;
    const double until = MPI_Wtime() + kMostTimes * ms * 1e-3;
    for (int more = 1; more != 0;) {
      const Slice slice;
      const double us = run(kind, bytes, times) / times * 1e6;
      slices.add(us, of_all(slice.spent()), kind == "both" ? 2.0 * times : times);
      more = slices.calm() < kSlices && MPI_Wtime() < until ? 1 : 0;
      MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    verify(bytes);
    if (rank_ != 0) return;
    std::printf("%s %d ", kind.c_str(), bytes);
    print(slices.figure());
  }

 private:
  using Way = double (Rank::*)(int bytes, int times);

  static Spent of_all(const Spent& mine) {
    auto lost = static_cast<int>(mine.lost);
    double cpu_us = mine.cpu_us;
    MPI_Allreduce(MPI_IN_PLACE, &lost, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, &cpu_us, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return {static_cast<Lost>(lost), cpu_us};
  }

  double run(const std::string& kind, int bytes, int times) {
    static const std::map<std::string, Way> ways{{"latency", &Rank::ping_pong},
                                                 {"window", &Rank::windows},
                                                 {"both", &Rank::both_ways},
                                                 {"put", &Rank::put},
                                                 {"get", &Rank::get},
                                                 {"fetch-add", &Rank::fetch_add},
                                                 {"allocated-put", &Rank::put},
                                                 {"allocated-get", &Rank::get},
                                                 {"allocated-fetch-add", &Rank::fetch_add},
                                                 {"allreduce", &Rank::allreduce},
                                                 {"alltoall", &Rank::alltoall},
                                                 {"bcast", &Rank::bcast}};
    const auto way = ways.find(kind);
    if (way == ways.end()) give_up("no such kind");
    ++run_;
    if (kind.starts_with("allocated-")) {
      if (allocated_ == nullptr) MPI_Alloc_mem(kMostBytes, MPI_INFO_NULL, &allocated_);
      exposed_ = {static_cast<std::uint8_t*>(allocated_), &allocated_window_};
    } else {
      exposed_ = {in_.data(), &window_};
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return (this->*way->second)(bytes, times);
  }

  void stamp(int bytes, int number) {
    mark(out_.data(), static_cast<std::size_t>(bytes), static_cast<std::uint64_t>(number));
  }
  void check(int bytes, int number) const { check(in_.data(), bytes, number); }
  static void check(const std::uint8_t* in, int bytes, int number) {
    if (!marked(in, static_cast<std::size_t>(bytes), static_cast<std::uint64_t>(number)))
      give_up("wrong data");
  }

  double ping_pong(int bytes, int times) {
    const double began = MPI_Wtime();
    for (int i = 0; i < times; ++i) {
      if (rank_ == 0) {
        stamp(bytes, i);
        MPI_Send(out_.data(), bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
      }
      MPI_Recv(in_.data(), bytes, MPI_BYTE, 1 - rank_, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(bytes, i);
      if (rank_ == 1) {
        stamp(bytes, i);
        MPI_Send(out_.data(), bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
      }
    }
    return (MPI_Wtime() - began) / 2;
  }

  void post_receives(int bytes, MPI_Request* requests) {
    for (int i = 0; i < kWindow; ++i)
      MPI_Irecv(in_.data(), bytes, MPI_BYTE, 1 - rank_, 2, MPI_COMM_WORLD, &requests[i]);
  }
  void post_sends(int bytes, MPI_Request* requests) {
    for (int i = 0; i < kWindow; ++i)
      MPI_Isend(out_.data(), bytes, MPI_BYTE, 1 - rank_, 2, MPI_COMM_WORLD, &requests[i]);
  }

  double windows(int bytes, int times) {
    MPI_Request requests[kWindow];
    char answer = 0;
    const double began = MPI_Wtime();
    for (int w = 0; w < times / kWindow; ++w) {
      if (rank_ == 0) {
        stamp(bytes, w);
        post_sends(bytes, requests);
        MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
        MPI_Recv(&answer, 1, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      } else {
        post_receives(bytes, requests);
        MPI_Waitall(kWindow, requests, MPI_STATUSES_IGNORE);
        check(bytes, w);
        MPI_Send(&answer, 1, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
      }
    }
    return MPI_Wtime() - began;
  }

  double both_ways(int bytes, int times) {
    MPI_Request requests[2 * kWindow];
    const double began = MPI_Wtime();
    for (int w = 0; w < times / kWindow; ++w) {
      stamp(bytes, w);
      post_receives(bytes, requests);
      post_sends(bytes, requests + kWindow);
      MPI_Waitall(2 * kWindow, requests, MPI_STATUSES_IGNORE);
      check(bytes, w);
    }
    return (MPI_Wtime() - began) / 2;
  }

  /// Over memory of the program's own, or of MPI_Alloc_mem. (What MPI_Win_allocate allocates, ranks
  /// of one host share without any transport.)
  template <typename Access>
  double one_sided(int times, Access access) {
    if (*exposed_.window == MPI_WIN_NULL) {
      MPI_Win_create(exposed_.memory, kMostBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                     exposed_.window);
    }
    MPI_Win window = *exposed_.window;
    double took = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) {
      MPI_Win_lock(MPI_LOCK_SHARED, 1, 0, window);
      const double began = MPI_Wtime();
      for (int i = 0; i < times; ++i) {
        access(i);
        MPI_Win_flush(1, window);
      }
      took = MPI_Wtime() - began;
      MPI_Win_unlock(1, window);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return took;
  }
  double put(int bytes, int times) {
    const int first = 7 * run_;
    const double took = one_sided(times, [&](int i) {
      stamp(bytes, first + i);
      MPI_Put(out_.data(), bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, *exposed_.window);
    });
    if (rank_ == 1) check(exposed_.memory, bytes, first + times - 1);
    return took;
  }
  double get(int bytes, int times) {
    const std::uint8_t wanted = number_mark(7 * static_cast<std::uint64_t>(run_));
    if (rank_ == 1) std::fill_n(exposed_.memory, bytes, wanted);
    std::vector<std::uint8_t> got(static_cast<std::size_t>(bytes));
    const double took = one_sided(times, [&](int) {
      MPI_Get(got.data(), bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, *exposed_.window);
    });
    const bool wrong =
        std::any_of(got.begin(), got.end(), [=](std::uint8_t b) { return b != wanted; });
    if (rank_ == 0 && wrong) give_up("wrong data got");
    return took;
  }
  double fetch_add(int, int times) {
    if (rank_ == 1) std::memset(exposed_.memory, 0, 8);
    const std::int64_t one = 1;
    std::int64_t before = 0;
    const double took = one_sided(times, [&](int) {
      MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 1, 0, MPI_SUM, *exposed_.window);
    });
    if (rank_ == 0 && before != times - 1) give_up("wrong sum");
    return took;
  }

  double allreduce(int bytes, int times) {
    const int n = bytes / 8;
    auto* mine = reinterpret_cast<std::int64_t*>(out_.data());
    auto* sums = reinterpret_cast<std::int64_t*>(in_.data());
    std::fill_n(mine, n, std::int64_t{run_} * (rank_ + 1));
    const double began = MPI_Wtime();
    for (int i = 0; i < times; ++i)
      MPI_Allreduce(mine, sums, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    const double took = MPI_Wtime() - began;
    const std::int64_t wanted = std::int64_t{run_} * ranks_ * (ranks_ + 1) / 2;
    if (std::any_of(sums, sums + n, [=](std::int64_t sum) { return sum != wanted; }))
      give_up("wrong sum");
    return took;
  }
  double alltoall(int bytes, int times) {
    const auto wanted = [&](int from, int to) {
      return static_cast<std::uint8_t>(10 * from + to + 7 * run_);
    };
    for (int r = 0; r < ranks_; ++r) std::fill_n(out_.begin() + r * bytes, bytes, wanted(rank_, r));
    const double began = MPI_Wtime();
    for (int i = 0; i < times; ++i) {
      MPI_Alltoall(out_.data(), bytes, MPI_BYTE, in_.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
    }
    const double took = MPI_Wtime() - began;
    for (int r = 0; r < ranks_; ++r) {
      const auto from = in_.begin() + r * bytes;
      if (std::any_of(from, from + bytes, [&](std::uint8_t b) { return b != wanted(r, rank_); }))
        give_up("wrong data");
    }
    return took;
  }
  double bcast(int bytes, int times) {
    auto& buffer = rank_ == 0 ? out_ : in_;
    if (rank_ == 0) stamp(bytes, times + 7 * run_);
    const double began = MPI_Wtime();
    for (int i = 0; i < times; ++i) MPI_Bcast(buffer.data(), bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    const double took = MPI_Wtime() - began;
    if (rank_ != 0) check(bytes, times + 7 * run_);
    return took;
  }

  void verify(int bytes) {
    const int seed = ++seed_, peer = rank_ ^ 1;
    if (peer >= ranks_) return;
    fill(out_.data(), static_cast<std::size_t>(bytes), static_cast<unsigned>(seed));
    MPI_Sendrecv(out_.data(), bytes, MPI_BYTE, peer, 4, in_.data(), bytes, MPI_BYTE, peer, 4,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!std::equal(out_.begin(), out_.begin() + bytes, in_.begin())) give_up("wrong data");
  }

  int rank_ = 0, ranks_ = 0;
  int seed_ = 0;
  /// the same in all ranks; data differ from run to run, so that old ones are not taken for new
  int run_ = 0;
  std::vector<std::uint8_t> out_, in_;
  MPI_Win window_ = MPI_WIN_NULL, allocated_window_ = MPI_WIN_NULL;
  void* allocated_ = nullptr;
  /// What the one-sided kinds go to.
  struct {
    std::uint8_t* memory = nullptr;
    MPI_Win* window = nullptr;
  } exposed_;

 public:
  void end() {
    if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
    if (allocated_window_ != MPI_WIN_NULL) MPI_Win_free(&allocated_window_);
    if (allocated_ != nullptr) MPI_Free_mem(allocated_);
  }
};

std::vector<int> numbers_in(const char* list) {
  std::vector<int> numbers;
  for (const char* at = list; at != nullptr && *at != '\0'; at = std::strchr(at, ',')) {
    if (*at == ',') ++at;
    numbers.push_back(std::atoi(at));
  }
  return numbers;
}

void take_core(const char* list, int rank) {
  const std::vector<int> cores = numbers_in(list);
  if (!cores.empty()) pin(cores[static_cast<std::size_t>(rank) % cores.size()]);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 4) give_up("MS CORES KIND:BYTES,...: see mpi.py");
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  take_core(argv[2], rank);
  Rank me;
  for (int i = 3; i < argc; ++i) {
    const std::string words = argv[i], kind = words.substr(0, words.find(':'));
    if (kind == words) give_up("a kind without sizes");
    for (const int bytes : numbers_in(argv[i] + kind.size() + 1)) {
      if (bytes < 0 || bytes > kMostBytes) give_up("no such size");
      me.report(kind, bytes, std::atof(argv[1]));
    }
  }
  me.end();
  MPI_Finalize();
  return 0;
}
