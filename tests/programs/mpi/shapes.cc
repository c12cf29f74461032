// What an MPI transport must not get wrong about the shape of data: sizes around every limit, up to
// 64 MB, types with gaps, floods that no ring holds, buffered, synchronous and ready sends, shared
// windows, and a target that is not in MPI while it is accessed.
//   shapes [endless]      `endless`: all ranks exchange until they are killed; rank 0 says
//   "exchanging" once
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

std::vector<unsigned char> pattern(std::size_t n, int seed) {
  std::vector<unsigned char> bytes(n);
  for (std::size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<unsigned char>(i * 7 + i / 4099 + static_cast<unsigned>(seed));
  return bytes;
}

class Shapes {
 public:
  void run() {
    messages();
    shared_window();
    signals();
    absent_target();
    allocated();
    compared();
  }

  void messages() {
    sizes();
    gaps();
    columns();
    flood();
    modes();
  }

  [[noreturn]] void endless() {
    std::vector<unsigned char> in(300'000), out(300'000);
    for (std::size_t i = 0;; ++i) {
      const int n = i % 10 == 0 ? 300'000 : static_cast<int>(i % 5000);
      MPI_Sendrecv(out.data(), n, MPI_BYTE, right_, 1, in.data(), n, MPI_BYTE, left_, 1,
                   MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (i == 1000 && rank_ == 0) {
        std::printf("exchanging\n");
        std::fflush(stdout);
      }
    }
  }

 private:
  /// Around each limit there may be, and far beyond.
  void sizes() {
    std::vector<int> all;
    for (const int limit :
         {0,    1,    8,    32,     42,     56,     64,     128,     256,     512,
          1024, 4096, 8192, 12'288, 16'384, 32'768, 65'536, 131'072, 262'144, 1 << 20}) {
      for (int d = -17; d <= 17; d += limit < 300 ? 1 : 8) {
        if (limit + d >= 0) all.push_back(limit + d);
      }
    }
    for (const int n : {5'000'001, 16 << 20, (64 << 20) - 3, 64 << 20}) all.push_back(n);
    std::vector<unsigned char> in(64 << 20);
    for (const int n : all) {
      if (n > 6'000'000 && rank_ > 1) continue;  // two ranks do: the memory
      const bool pair = n > 6'000'000;
      const auto out = pattern(static_cast<std::size_t>(n), rank_);
      const int to = pair ? 1 - rank_ : right_, from = pair ? 1 - rank_ : left_;
      std::fill(in.begin(), in.begin() + n, 0);
      MPI_Status status{};
      MUST(MPI_Sendrecv(out.data(), n, MPI_BYTE, to, 2, in.data(), n, MPI_BYTE, from, 2,
                        MPI_COMM_WORLD, &status));
      int count = -1;
      MUST(MPI_Get_count(&status, MPI_BYTE, &count));
      EXPECT(count == n);
      const auto expected = pattern(static_cast<std::size_t>(n), from);
      EXPECT(std::equal(expected.begin(), expected.end(), in.begin()));
    }
  }

  /// A structure with a gap, sent as such and received as bytes without it, in numbers from one to
  /// many.
  void gaps() {
    struct Gapped {
      double a;
      char b;
      int c;  // behind a gap of 3
      short d;
    };
    MPI_Datatype type{}, resized{};
    const int lengths[] = {1, 1, 1, 1};
    const MPI_Aint places[] = {offsetof(Gapped, a), offsetof(Gapped, b), offsetof(Gapped, c),
                               offsetof(Gapped, d)};
    const MPI_Datatype parts[] = {MPI_DOUBLE, MPI_CHAR, MPI_INT, MPI_SHORT};
    MUST(MPI_Type_create_struct(4, lengths, places, parts, &type));
    MUST(MPI_Type_create_resized(type, 0, sizeof(Gapped), &resized));
    MUST(MPI_Type_commit(&resized));
    for (const int n : {1, 2, 3, 100, 1000, 5000, 70'000}) {
      std::vector<Gapped> out(static_cast<std::size_t>(n)), in(static_cast<std::size_t>(n));
      std::memset(static_cast<void*>(in.data()), 0x55, in.size() * sizeof(Gapped));
      for (int i = 0; i < n; ++i)
        out[static_cast<std::size_t>(i)] = {i * 0.5, static_cast<char>(i), i * 3,
                                            static_cast<short>(i + rank_)};
      MUST(MPI_Sendrecv(out.data(), n, resized, right_, 3, in.data(), n, resized, left_, 3,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      bool same = true;
      for (int i = 0; i < n; ++i) {
        const Gapped& g = in[static_cast<std::size_t>(i)];
        same = same && g.a == i * 0.5 && g.b == static_cast<char>(i) && g.c == i * 3 &&
               g.d == static_cast<short>(i + left_);
        same = same && reinterpret_cast<const unsigned char*>(&g)[offsetof(Gapped, b) + 1] == 0x55;
      }
      EXPECT(same);
    }
    MUST(MPI_Type_free(&type));
    MUST(MPI_Type_free(&resized));
  }

  /// Every second element as sent, contiguous as received, and the other way round.
  void columns() {
    for (const int n : {3, 500, 5000, 60'000, 300'000}) {
      MPI_Datatype column{};
      MUST(MPI_Type_vector(n, 1, 2, MPI_INT, &column));
      MUST(MPI_Type_commit(&column));
      std::vector<int> spread(static_cast<std::size_t>(2 * n)), dense(static_cast<std::size_t>(n)),
          back(static_cast<std::size_t>(2 * n), -1);
      std::iota(spread.begin(), spread.end(), rank_ * 1000);
      MUST(MPI_Sendrecv(spread.data(), 1, column, right_, 4, dense.data(), n, MPI_INT, left_, 4,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      bool same = true;
      for (int i = 0; i < n; ++i)
        same = same && dense[static_cast<std::size_t>(i)] == left_ * 1000 + 2 * i;
      EXPECT(same);
      MUST(MPI_Sendrecv(dense.data(), n, MPI_INT, right_, 4, back.data(), 1, column, left_, 4,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      const int two_left = (rank_ + 2 * size_ - 2) % size_;
      for (int i = 0; i < n; ++i) {
        same = same && back[2 * static_cast<std::size_t>(i)] == two_left * 1000 + 2 * i &&
               back[2 * static_cast<std::size_t>(i) + 1] == -1;
      }
      EXPECT(same);
      MUST(MPI_Type_free(&column));
    }
  }

  /// Everybody sends a great deal to rank 0 before that looks once; it then takes all of it, by any
  /// source.
  void flood() {
    constexpr int kEach = 4000;
    const auto size = [](int i) { return i % 100 == 0 ? 9000 : i % 64; };
    if (rank_ != 0) {
      for (int i = 0; i < kEach; ++i) {
        std::vector<int> message(static_cast<std::size_t>(size(i) + 2), i);
        MUST(MPI_Send(message.data(), size(i) + 2, MPI_INT, 0, 6, MPI_COMM_WORLD));
      }
      return;
    }
    usleep(200'000);
    std::vector<int> next(static_cast<std::size_t>(size_), 0), message(9002);
    for (int k = 0; k < kEach * (size_ - 1); ++k) {
      MPI_Status status{};
      MUST(MPI_Recv(message.data(), 9002, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                    &status));
      int& i = next[static_cast<std::size_t>(status.MPI_SOURCE)];
      int count = 0;
      MUST(MPI_Get_count(&status, MPI_INT, &count));
      EXPECT(count == size(i) + 2 && message[0] == i &&
             message[static_cast<std::size_t>(count - 1)] == i);
      ++i;
    }
  }

  void modes() {
    for (const int n : {0, 20, 5000, 100'000, 1'000'000}) {
      std::vector<char> space(static_cast<std::size_t>(n) + MPI_BSEND_OVERHEAD + 64);
      MUST(MPI_Buffer_attach(space.data(), static_cast<int>(space.size())));
      auto out = pattern(static_cast<std::size_t>(n), rank_);
      std::vector<unsigned char> in[3];
      MPI_Request requests[5];
      for (int i = 0; i < 3; ++i) {
        in[i].resize(out.size());
        MUST(MPI_Irecv(in[i].data(), n, MPI_BYTE, left_, 20 + i, MPI_COMM_WORLD, &requests[i]));
      }
      MUST(MPI_Barrier(MPI_COMM_WORLD));
      auto buffered = out;
      MUST(MPI_Bsend(buffered.data(), n, MPI_BYTE, right_, 20, MPI_COMM_WORLD));
      std::fill(buffered.begin(), buffered.end(), 0);  // is ours again
      MUST(MPI_Irsend(out.data(), n, MPI_BYTE, right_, 21, MPI_COMM_WORLD, &requests[3]));
      MUST(MPI_Issend(out.data(), n, MPI_BYTE, right_, 22, MPI_COMM_WORLD, &requests[4]));
      MUST(MPI_Waitall(5, requests, MPI_STATUSES_IGNORE));
      void* detached = nullptr;
      int bytes = 0;
      MUST(MPI_Buffer_detach(&detached, &bytes));
      for (const auto& got : in) EXPECT(got == pattern(got.size(), left_));
    }
  }

  void shared_window() {
    std::int64_t* mine = nullptr;
    MPI_Win window{};
    MUST(MPI_Win_allocate_shared(1000 * sizeof(std::int64_t), sizeof(std::int64_t), MPI_INFO_NULL,
                                 MPI_COMM_WORLD, &mine, &window));
    MUST(MPI_Win_lock_all(MPI_MODE_NOCHECK, window));
    for (int i = 0; i < 1000; ++i) mine[i] = rank_ * 10'000 + i;
    MUST(MPI_Win_sync(window));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    MUST(MPI_Win_sync(window));
    MPI_Aint bytes = 0;
    int unit = 0;
    std::int64_t* theirs = nullptr;
    MUST(MPI_Win_shared_query(window, right_, &bytes, &unit, &theirs));
    bool same = true;
    for (int i = 0; i < 1000; ++i) same = same && theirs[i] == right_ * 10'000 + i;
    EXPECT(same);
    MUST(MPI_Win_unlock_all(window));
    MUST(MPI_Win_free(&window));
  }

  /// Rank 0 sleeps outside of MPI while the others change its memory: what they do is complete
  /// before it is back.
  void absent_target() {
    std::vector<std::int64_t> memory(16);
    MPI_Win window{};
    MUST(MPI_Win_create(memory.data(), 128, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    MUST(MPI_Win_lock_all(0, window));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (rank_ == 0) {
      const double start = MPI_Wtime();
      while (MPI_Wtime() < start + 1.5) usleep(10'000);
      // What lies there now was put while nobody here was in MPI.
      const auto sum = __atomic_load_n(&memory[0], __ATOMIC_ACQUIRE);
      EXPECT(sum == 20 * (size_ - 1));
      bool put = true;
      for (int r = 1; r < std::min(size_, 8); ++r)
        put = put && __atomic_load_n(&memory[static_cast<std::size_t>(r)], __ATOMIC_ACQUIRE) == r;
      EXPECT(put);
    } else {
      const std::int64_t one = 1, me = rank_;
      std::int64_t got = 0;
      for (int i = 0; i < 20; ++i) {
        MUST(MPI_Fetch_and_op(&one, &got, MPI_INT64_T, 0, 0, MPI_SUM, window));
        MUST(MPI_Win_flush(0, window));
      }
      if (rank_ < 8) MUST(MPI_Put(&me, 1, MPI_INT64_T, 0, rank_, 1, MPI_INT64_T, window));
      MUST(MPI_Win_flush(0, window));
    }
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    MUST(MPI_Win_unlock_all(window));
    MUST(MPI_Win_free(&window));
  }

  /// Windows of MPI_Alloc_mem's memory: two over one piece of it, freed and made again, and again.
  void allocated() {
    constexpr int kWords = 20'000;
    for (int round = 0; round < 40; ++round) {
      std::int64_t* memory = nullptr;
      MUST(MPI_Alloc_mem(kWords * 8, MPI_INFO_NULL, &memory));
      std::memset(memory, 0, kWords * 8);
      MPI_Win all{}, part{};
      MUST(MPI_Win_create(memory, kWords * 8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &all));
      MUST(MPI_Win_create(memory + 100, 800, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &part));
      MUST(MPI_Win_lock_all(0, all));
      MUST(MPI_Win_lock_all(0, part));
      const std::int64_t one = 1;
      std::int64_t before = -1;
      for (int i = 0; i < 50; ++i) {
        MUST(MPI_Fetch_and_op(&one, &before, MPI_INT64_T, right_, 3, MPI_SUM, part));
        MUST(MPI_Win_flush(right_, part));
        EXPECT(before == i);  // nobody else adds there
        MUST(MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 5, MPI_SUM, part));
        MUST(MPI_Win_flush(0, part));
      }
      std::vector<std::int64_t> out(5000), in(5000);
      std::iota(out.begin(), out.end(), rank_ * 1'000'000 + round);
      MUST(MPI_Put(out.data(), 5000, MPI_INT64_T, right_, 1000, 5000, MPI_INT64_T, all));
      MUST(MPI_Win_flush(right_, all));
      MUST(MPI_Get(in.data(), 5000, MPI_INT64_T, right_, 1000, 5000, MPI_INT64_T, all));
      MUST(MPI_Win_flush(right_, all));
      EXPECT(in == out);
      std::int64_t compared = 50, swapped = 7777 + rank_;
      MUST(MPI_Compare_and_swap(&swapped, &compared, &before, MPI_INT64_T, right_, 103, all));
      MUST(MPI_Win_flush(right_, all));
      EXPECT(before == 50);  // the same word, by the other window
      MUST(MPI_Barrier(MPI_COMM_WORLD));
      MUST(MPI_Win_unlock_all(part));
      MUST(MPI_Win_unlock_all(all));
      EXPECT(memory[103] == 7777 + left_);
      EXPECT(rank_ != 0 || memory[105] == 50 * size_);
      EXPECT(memory[1000] == left_ * 1'000'000 + round);
      MUST(MPI_Win_free(&part));
      MUST(MPI_Win_free(&all));
      MUST(MPI_Free_mem(memory));
    }
  }

  /// Each rank has a word in each rank, its own as well, in memory of any kind: the first exchange
  /// finds what it compares, the second does not.
  void compared() {
    for (const bool allocates : {true, false}) {
      std::int64_t* memory = nullptr;
      MPI_Win window{};
      const MPI_Aint bytes = 8 * size_;
      if (allocates) {
        MUST(MPI_Win_allocate(bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window));
      } else {
        MUST(MPI_Alloc_mem(bytes, MPI_INFO_NULL, &memory));
        MUST(MPI_Win_create(memory, bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
      }
      std::fill_n(memory, size_, -1);
      MUST(MPI_Barrier(MPI_COMM_WORLD));
      MUST(MPI_Win_lock_all(0, window));
      for (int peer = 0; peer < size_; ++peer) {
        for (const std::int64_t expected : {std::int64_t{-1}, std::int64_t{100 + rank_}}) {
          std::int64_t swapped = 100 + rank_, nothing = -1, before = 0;
          MUST(MPI_Compare_and_swap(&swapped, &nothing, &before, MPI_INT64_T, peer, rank_, window));
          MUST(MPI_Win_flush(peer, window));
          EXPECT(before == expected);
        }
      }
      MUST(MPI_Win_unlock_all(window));
      MUST(MPI_Barrier(MPI_COMM_WORLD));
      for (int peer = 0; peer < size_; ++peer) EXPECT(memory[peer] == 100 + peer);
      MUST(MPI_Win_free(&window));
      if (!allocates) MUST(MPI_Free_mem(memory));
    }
  }

  /// Threads of this process, by number, and the signals that each has blocked.
  static std::map<std::string, std::uint64_t> threads() {
    std::map<std::string, std::uint64_t> found;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream status(thread.path() / "status");
      for (std::string word; status >> word;) {
        if (word == "SigBlk:") status >> std::hex >> found[thread.path().filename()];
      }
    }
    return found;
  }

  /// The first window gives the transport a thread of its own. The program's signals are not for
  /// it.
  void signals() {
    const auto before = threads();
    std::int64_t word = 0;
    MPI_Win window{};
    MUST(MPI_Win_create(&word, sizeof word, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window));
    int fresh = 0;
    for (const auto& [thread, blocked] : threads()) {
      if (before.contains(thread)) continue;
      ++fresh;
      for (const int signal : {SIGTERM, SIGUSR1, SIGALRM, SIGCHLD})
        EXPECT((blocked >> (signal - 1) & 1) != 0);
    }
    EXPECT(fresh > 0);
    MUST(MPI_Win_free(&window));
  }

  int rank_ = rank_in(MPI_COMM_WORLD);
  int size_ = size_of(MPI_COMM_WORLD);
  int left_ = (rank_ + size_ - 1) % size_;
  int right_ = (rank_ + 1) % size_;
};

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  clan::test::mpi::Shapes shapes;
  if (argc > 1 && std::strcmp(argv[1], "endless") == 0) shapes.endless();
  // Ranks of two hosts have no memory in common.
  if (argc > 1 && std::strcmp(argv[1], "messages") == 0) {
    shapes.messages();
  } else {
    shapes.run();
  }
  return clan::test::mpi::finish("shapes");
}
