// Windows of MPI: put, get and atomic operations under every kind of synchronization, on windows
// over the program's own memory, over MPI's, and attached later.
#include <sched.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

/// osc rdma of Open MPI 4.1.4 gives wrong results where more is fetched and changed at once, over
/// shared memory as over a network.
constexpr std::size_t kMostFetched = 32'000;

enum class Kind { kCreated, kAllocated, kDynamic };

/// A window of `n` elements of T in each rank; a store of one's own is seen by others after
/// `sync()`.
template <typename T>
class Window {
 public:
  Window(Kind kind, std::size_t n) : kind_(kind), n_(n) {
    const auto bytes = static_cast<MPI_Aint>(n * sizeof(T));
    if (kind == Kind::kAllocated) {
      MUST(MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory_, &window_));
    } else {
      own_.resize(n + 1);
      memory_ = own_.data();
      if (kind == Kind::kCreated) {
        MUST(MPI_Win_create(memory_, bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window_));
      } else {
        MUST(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window_));
        MUST(MPI_Win_attach(window_, memory_, bytes));
      }
    }
    bases_.resize(static_cast<std::size_t>(size_));
    if (kind == Kind::kDynamic) {
      MPI_Aint base = 0;
      MUST(MPI_Get_address(memory_, &base));
      MUST(MPI_Allgather(&base, 1, MPI_AINT, bases_.data(), 1, MPI_AINT, MPI_COMM_WORLD));
    }
    fill([](std::size_t) { return T{}; });
  }
  ~Window() {
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    if (kind_ == Kind::kDynamic) MUST(MPI_Win_detach(window_, memory_));
    MUST(MPI_Win_free(&window_));
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// Sets every element of one's own part; all ranks together, and all parts are set when it
  /// returns.
  template <typename F>
  void fill(F f) {
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    MUST(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank_, 0, window_));
    for (std::size_t i = 0; i < n_; ++i) memory_[i] = f(i);
    MUST(MPI_Win_unlock(rank_, window_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
  }

  /// One's own part, when accesses to it are over; all ranks together, nobody goes on before all
  /// have looked.
  std::vector<T> mine() {
    MUST(MPI_Win_lock(MPI_LOCK_SHARED, rank_, 0, window_));
    std::vector<T> copy(memory_, memory_ + n_);
    MUST(MPI_Win_unlock(rank_, window_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    return copy;
  }

  /// Where element `i` of `rank` is.
  MPI_Aint at(int rank, std::size_t i) const {
    return bases_[static_cast<std::size_t>(rank)] + static_cast<MPI_Aint>(i * sizeof(T));
  }
  MPI_Win window() const { return window_; }
  std::size_t size() const { return n_; }

 private:
  Kind kind_;
  std::size_t n_;
  int rank_ = rank_in(MPI_COMM_WORLD);
  int size_ = size_of(MPI_COMM_WORLD);
  std::vector<T> own_;
  std::vector<MPI_Aint> bases_;
  T* memory_ = nullptr;
  MPI_Win window_{};
};

/// How an epoch begins and ends at the origin, for accesses to `target`.
class Fence {
 public:
  Fence(MPI_Win window, int) : window_(window) { MUST(MPI_Win_fence(MPI_MODE_NOPRECEDE, window_)); }
  void complete() {}
  ~Fence() { MUST(MPI_Win_fence(MPI_MODE_NOSUCCEED, window_)); }

 private:
  MPI_Win window_;
};

class Lock {
 public:
  Lock(MPI_Win window, int target) : window_(window), target_(target) {
    MUST(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window));
  }
  void complete() { MUST(MPI_Win_flush(target_, window_)); }
  ~Lock() {
    MUST(MPI_Win_unlock(target_, window_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
  }

 private:
  MPI_Win window_;
  int target_;
};

class LockAll {
 public:
  LockAll(MPI_Win window, int) : window_(window) { MUST(MPI_Win_lock_all(0, window)); }
  void complete() { MUST(MPI_Win_flush_all(window_)); }
  ~LockAll() {
    MUST(MPI_Win_unlock_all(window_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
  }

 private:
  MPI_Win window_;
};

/// Post, start, complete, wait: with the neighbours on both sides.
class Pscw {
 public:
  Pscw(MPI_Win window, int target) : window_(window) {
    const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
    const int origin = (2 * rank - target + 2 * size) % size;  // the rank as far on the other side
    MPI_Group world{};
    MUST(MPI_Comm_group(MPI_COMM_WORLD, &world));
    MUST(MPI_Group_incl(world, 1, &origin, &origins_));
    MUST(MPI_Group_incl(world, 1, &target, &targets_));
    MUST(MPI_Group_free(&world));
    MUST(MPI_Win_post(origins_, 0, window_));
    MUST(MPI_Win_start(targets_, 0, window_));
  }
  void complete() {}
  ~Pscw() {
    MUST(MPI_Win_complete(window_));
    MUST(MPI_Win_wait(window_));
    MUST(MPI_Group_free(&origins_));
    MUST(MPI_Group_free(&targets_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
  }

 private:
  MPI_Win window_;
  MPI_Group origins_{}, targets_{};
};

template <typename T>
class OneSided {
 public:
  OneSided(Kind kind, std::size_t n) : n_(n), count_(static_cast<int>(n)), window_(kind, n) {}

  void run() {
    under<Fence>();
    under<Lock>();
    under<LockAll>();
    under<Pscw>();
    strided();
    with_requests();
  }

 private:
  template <typename Epoch>
  void under() {
    std::vector<T> out(n_), in(n_), before(n_);
    for (std::size_t i = 0; i < n_; ++i) out[i] = value<T>(rank_, i);
    window_.fill([&](std::size_t i) { return value<T>(rank_ + 100, i); });
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Get(in.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                   window_.window()));
      epoch.complete();
    }
    EXPECT(is(in, [&](std::size_t i) { return value<T>(right_ + 100, i); }));
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Put(out.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                   window_.window()));
      epoch.complete();
    }
    EXPECT(is(window_.mine(), [&](std::size_t i) { return value<T>(left_, i); }));
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Accumulate(out.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                          MPI_SUM, window_.window()));
      epoch.complete();
    }
    EXPECT(
        is(window_.mine(), [&](std::size_t i) { return static_cast<T>(2 * value<T>(left_, i)); }));
    if (n_ * sizeof(T) > kMostFetched) return;
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Get_accumulate(out.data(), count_, type_, before.data(), count_, type_, right_,
                              window_.at(right_, 0), count_, type_, MPI_REPLACE, window_.window()));
      epoch.complete();
    }
    EXPECT(is(before, [&](std::size_t i) { return static_cast<T>(2 * value<T>(rank_, i)); }));
    EXPECT(is(window_.mine(), [&](std::size_t i) { return value<T>(left_, i); }));
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Get_accumulate(nullptr, 0, type_, before.data(), count_, type_, right_,
                              window_.at(right_, 0), count_, type_, MPI_NO_OP, window_.window()));
      epoch.complete();
    }
    EXPECT(is(before, [&](std::size_t i) { return value<T>(rank_, i); }));
    {
      Epoch epoch(window_.window(), right_);
      MUST(MPI_Accumulate(before.data(), count_, type_, right_, window_.at(right_, 0), count_,
                          type_, MPI_MAX, window_.window()));
      epoch.complete();
    }
    EXPECT(is(window_.mine(), [&](std::size_t i) { return value<T>(left_, i); }));
  }

  /// Every second element of the target's, from and into a row.
  void strided() {
    const int half = count_ / 2;
    MPI_Datatype every_second{};
    MUST(MPI_Type_vector(half, 1, 2, type_, &every_second));
    MUST(MPI_Type_commit(&every_second));
    std::vector<T> out(n_ + 1, T{7}), in(n_ + 1);
    window_.fill([](std::size_t) { return T{1}; });
    {
      Lock lock(window_.window(), right_);
      MUST(MPI_Put(out.data(), half, type_, right_, window_.at(right_, 0), 1, every_second,
                   window_.window()));
      lock.complete();
      MUST(MPI_Get(in.data(), 1, every_second, right_, window_.at(right_, 0), 1, every_second,
                   window_.window()));
      lock.complete();
    }
    const auto half_set = [&](std::size_t i) { return i % 2 == 0 && i / 2 < n_ / 2 ? T{7} : T{1}; };
    EXPECT(is(window_.mine(), half_set));
    in.resize(n_);
    EXPECT(is(in, [&](std::size_t i) { return half_set(i) == T{7} ? T{7} : T{}; }));
    MUST(MPI_Type_free(&every_second));
  }

  void with_requests() {
    std::vector<T> out(n_, static_cast<T>(rank_ + 1)), in(n_);
    window_.fill([](std::size_t) { return T{1}; });
    {
      LockAll epoch(window_.window(), right_);
      MPI_Request request{};
      MUST(MPI_Rput(out.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                    window_.window(), &request));
      MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
      epoch.complete();
      MUST(MPI_Raccumulate(out.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                           MPI_SUM, window_.window(), &request));
      MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
      epoch.complete();
      MUST(MPI_Rget(in.data(), count_, type_, right_, window_.at(right_, 0), count_, type_,
                    window_.window(), &request));
      MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    EXPECT(is(in, [&](std::size_t) { return static_cast<T>(2 * (rank_ + 1)); }));
  }

  template <typename F>
  static bool is(const std::vector<T>& got, F expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] != expected(i)) return false;
    }
    return true;
  }

  std::size_t n_;
  int count_;
  int rank_ = rank_in(MPI_COMM_WORLD);
  int size_ = size_of(MPI_COMM_WORLD);
  int left_ = (rank_ + size_ - 1) % size_;
  int right_ = (rank_ + 1) % size_;
  MPI_Datatype type_ = type_of<T>();
  Window<T> window_;
};

/// What all ranks do to one place at once is atomic.
template <typename T>
void contended(Kind kind) {
  constexpr int kRounds = 100;
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  MPI_Datatype type = type_of<T>();
  Window<T> window(kind, 600);

  // Numbers drawn from one counter: each is drawn once, and everybody's grow.
  std::vector<std::int64_t> drawn;
  MUST(MPI_Win_lock_all(0, window.window()));
  const T one{1};
  for (int i = 0; i < kRounds; ++i) {
    T got{};
    MUST(MPI_Fetch_and_op(&one, &got, type, 0, window.at(0, 0), MPI_SUM, window.window()));
    MUST(MPI_Win_flush(0, window.window()));
    EXPECT(drawn.empty() || drawn.back() < static_cast<std::int64_t>(got));
    drawn.push_back(static_cast<std::int64_t>(got));
  }
  MUST(MPI_Win_unlock_all(window.window()));
  std::vector<std::int64_t> all(static_cast<std::size_t>(kRounds * size));
  MUST(MPI_Allgather(drawn.data(), kRounds, MPI_INT64_T, all.data(), kRounds, MPI_INT64_T,
                     MPI_COMM_WORLD));
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT(all[i] == static_cast<std::int64_t>(i));

  // A lock made of compare-and-swap, and under it a sum by get and put. (Of 64 bits osc rdma of
  // Open MPI 4.1.4 can only swap another process's, in windows that the program has memory for;
  // over anything.)
  window.fill([](std::size_t) { return T{}; });
  const int owner = size - 1;
  const int number = rank + 1;
  const T free{}, taken = static_cast<T>(number);
  constexpr int kTurns = 10;
  const bool takes_part = sizeof(T) == 4 || (kind != Kind::kAllocated && rank != owner);
  const int takers = sizeof(T) == 4 ? size : kind != Kind::kAllocated ? size - 1 : 0;
  MUST(MPI_Win_lock_all(0, window.window()));
  for (int i = 0; takes_part && i < kTurns; ++i) {
    T was = taken;
    while (was != free) {
      MUST(MPI_Compare_and_swap(&taken, &free, &was, type, owner, window.at(owner, 0),
                                window.window()));
      MUST(MPI_Win_flush(owner, window.window()));
      if (was != free) sched_yield();  // the lock's owner may need this processor
    }
    T sum{};
    MUST(MPI_Get(&sum, 1, type, owner, window.at(owner, 1), 1, type, window.window()));
    MUST(MPI_Win_flush(owner, window.window()));
    sum = static_cast<T>(sum + 1);
    MUST(MPI_Put(&sum, 1, type, owner, window.at(owner, 1), 1, type, window.window()));
    MUST(MPI_Win_flush(owner, window.window()));
    MUST(MPI_Fetch_and_op(&free, &was, type, owner, window.at(owner, 0), MPI_REPLACE,
                          window.window()));
    MUST(MPI_Win_flush(owner, window.window()));
    EXPECT(was == taken);
  }
  MUST(MPI_Win_unlock_all(window.window()));
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  const auto counted = window.mine();
  if (rank == owner) EXPECT(counted[1] == static_cast<T>(kTurns * takers));

  // Everybody adds to everybody.
  window.fill([](std::size_t) { return T{}; });
  std::vector<T> ones(600, T{1});
  for (int i = 0; i < 5; ++i) {
    MUST(MPI_Win_lock_all(0, window.window()));
    for (int target = 0; target < size; ++target) {
      MUST(MPI_Accumulate(ones.data(), 600, type, target, window.at(target, 0), 600, type, MPI_SUM,
                          window.window()));
    }
    MUST(MPI_Win_unlock_all(window.window()));
  }
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  const auto mine = window.mine();
  EXPECT(std::count(mine.begin(), mine.end(), static_cast<T>(5 * size)) == 600);

  // Under an exclusive lock two elements change together.
  window.fill([](std::size_t) { return T{}; });
  for (int i = 0; i < kTurns; ++i) {
    std::vector<T> pair(2);
    MUST(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window.window()));
    MUST(MPI_Get(pair.data(), 2, type, 0, window.at(0, 0), 2, type, window.window()));
    MUST(MPI_Win_flush(0, window.window()));
    EXPECT(pair[0] == pair[1]);
    pair[0] = pair[1] = static_cast<T>(pair[0] + 1);
    MUST(MPI_Put(pair.data(), 1, type, 0, window.at(0, 0), 1, type, window.window()));
    MUST(MPI_Put(pair.data() + 1, 1, type, 0, window.at(0, 1), 1, type, window.window()));
    MUST(MPI_Win_unlock(0, window.window()));
  }
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  const auto pair = window.mine();
  if (rank == 0) EXPECT(pair[0] == static_cast<T>(kTurns * size) && pair[1] == pair[0]);
}

/// Every operation on unsigned words, where a result tells which it was.
void operations(Kind kind) {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD),
            right = (rank + 1) % size;
  Window<std::uint64_t> window(kind, 8);
  struct Case {
    MPI_Op op;
    std::uint64_t result;
  };
  constexpr std::uint64_t kHas = 0b1100, kGets = 0b1010;
  for (const Case& c :
       {Case{MPI_SUM, kHas + kGets}, Case{MPI_PROD, kHas * kGets}, Case{MPI_MIN, kGets},
        Case{MPI_MAX, kHas}, Case{MPI_BAND, kHas & kGets}, Case{MPI_BOR, kHas | kGets},
        Case{MPI_BXOR, kHas ^ kGets}, Case{MPI_LAND, 1}, Case{MPI_LOR, 1}, Case{MPI_LXOR, 0},
        Case{MPI_REPLACE, kGets}, Case{MPI_NO_OP, kHas}}) {
    window.fill([](std::size_t) { return kHas; });
    std::uint64_t was = 0;
    MUST(MPI_Win_lock_all(0, window.window()));
    MUST(MPI_Fetch_and_op(&kGets, &was, MPI_UINT64_T, right, window.at(right, 3), c.op,
                          window.window()));
    MUST(MPI_Win_flush(right, window.window()));
    if (c.op != MPI_NO_OP) {  // which is only for those that fetch
      MUST(MPI_Accumulate(&kGets, 1, MPI_UINT64_T, right, window.at(right, 5), 1, MPI_UINT64_T,
                          c.op, window.window()));
    }
    MUST(MPI_Win_unlock_all(window.window()));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    const auto mine = window.mine();
    EXPECT(was == kHas && mine[3] == c.result && mine[2] == kHas && mine[4] == kHas);
    EXPECT(mine[5] == (c.op == MPI_NO_OP ? kHas : c.result) && mine[6] == kHas);
  }
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  using namespace clan::test::mpi;
  MPI_Init(&argc, &argv);
  for (const Kind kind : {Kind::kCreated, Kind::kAllocated, Kind::kDynamic}) {
    for (const std::size_t n : {1, 2, 1000, 4000, 20'000}) {
      OneSided<std::int64_t>(kind, n).run();
      OneSided<double>(kind, n).run();
    }
    OneSided<std::int32_t>(kind, 300).run();
    operations(kind);
    contended<std::int64_t>(kind);
    contended<std::int32_t>(kind);
  }
  OneSided<std::int64_t>(Kind::kCreated, 1 << 17).run();
  return finish("one_sided");
}
