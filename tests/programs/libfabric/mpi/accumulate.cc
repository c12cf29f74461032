// MPI_Get_accumulate and MPI_Fetch_and_op with types that the program has made, of every width:
// what comes back is what was there before, and every sum arrives.
#include <vector>

#include "check.h"

namespace clan::test::mpi {
namespace {

template <typename T>
void sums(MPI_Datatype base, int count) {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  MPI_Datatype derived{};
  MUST(MPI_Type_contiguous(1, base, &derived));
  MUST(MPI_Type_commit(&derived));
  const auto n = static_cast<std::size_t>(count);
  std::vector<T> memory(n, T{0}), ones(n, T{1}), before(n, T{-1});
  MPI_Win window{};
  MUST(MPI_Win_create(memory.data(), static_cast<MPI_Aint>(n * sizeof(T)), sizeof(T), MPI_INFO_NULL,
                      MPI_COMM_WORLD, &window));
  // One after the other: what was there before is known.
  constexpr int kTimes = 10;
  const int right = (rank + 1) % size;
  for (int i = 0; i < kTimes; ++i) {
    MUST(MPI_Win_lock(MPI_LOCK_SHARED, right, 0, window));
    MUST(MPI_Get_accumulate(ones.data(), count, derived, before.data(), count, derived, right, 0,
                            count, derived, MPI_SUM, window));
    MUST(MPI_Win_unlock(right, window));
    EXPECT(before == std::vector<T>(n, static_cast<T>(i)));
  }
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  // All at once: what was there before is some sum.
  for (int i = 0; i < kTimes; ++i) {
    MUST(MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window));
    MUST(MPI_Get_accumulate(ones.data(), count, derived, before.data(), count, derived, 0, 0, count,
                            derived, MPI_SUM, window));
    MUST(MPI_Win_unlock(0, window));
    for (const T value : before)
      EXPECT(value >= T{kTimes} && value < static_cast<T>(kTimes * (size + 1)));
  }
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  const T sum = static_cast<T>(rank == 0 ? kTimes * (size + 1) : kTimes);
  MUST(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window));
  EXPECT(memory == std::vector<T>(n, sum));
  MUST(MPI_Win_unlock(rank, window));
  MUST(MPI_Win_free(&window));
  MUST(MPI_Type_free(&derived));
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  using namespace clan::test::mpi;
  for (const int count : {1, 5, 31, 32, 33, 500}) {
    sums<short>(MPI_SHORT, count);
    sums<int>(MPI_INT, count);
    sums<long>(MPI_LONG, count);
    sums<float>(MPI_FLOAT, count);
    sums<double>(MPI_DOUBLE, count);
  }
  return finish("accumulate");
}
