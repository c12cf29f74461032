// Every collective of MPI, blocking and not, on several types and communicators, with sizes from
// nothing to a mebibyte; each element of each result is compared.
//   collectives [LARGEST]    bytes of the largest block, 1048576 by default
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

/// The blocking call, or its twin that returns at once and a wait.
template <typename Block, typename Start, typename... Arguments>
void call(bool at_once, Block block, Start start, Arguments... arguments) {
  if (!at_once) {
    MUST(block(arguments...));
    return;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  MUST(start(arguments..., &request));
  MUST(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

template <typename T>
class Collectives {
 public:
  Collectives(MPI_Comm comm, std::size_t n, bool at_once)
      : comm_(comm), n_(n), count_(static_cast<int>(n)), at_once_(at_once) {
    mine_.resize(n);
    for (std::size_t i = 0; i < n; ++i) mine_[i] = value<T>(rank_, i);
  }

  void run() {
    call(at_once_, MPI_Barrier, MPI_Ibarrier, comm_);
    const int last = size_ - 1;
    for (const int root : {0, last}) {
      broadcast(root);
      gather_and_scatter(root);
      reduce(root);
    }
    all_to_all();
    all_reduce();
    scan();
  }

 private:
  std::vector<T> blocks(std::size_t n) const {
    return std::vector<T>(n * static_cast<std::size_t>(size_));
  }

  /// `got` has, from `at`, the first `n` elements that `rank` contributes.
  void expect_block(const std::vector<T>& got, std::size_t at, int rank, std::size_t n) const {
    bool same = true;
    for (std::size_t i = 0; i < n; ++i) same = same && got[at + i] == value<T>(rank, i);
    EXPECT(same);
  }

  /// Element `i` of the sum over ranks [0, end).
  static T sum(int end, std::size_t i) {
    T all{};
    for (int rank = 0; rank < end; ++rank) all = static_cast<T>(all + value<T>(rank, i));
    return all;
  }

  void expect_sum(const T* got, std::size_t from, std::size_t n, int end) const {
    bool same = true;
    for (std::size_t i = 0; i < n; ++i) same = same && got[i] == sum(end, from + i);
    EXPECT(same);
  }

  void broadcast(int root) {
    std::vector<T> data = rank_ == root ? mine_ : std::vector<T>(n_);
    call(at_once_, MPI_Bcast, MPI_Ibcast, data.data(), count_, type_, root, comm_);
    expect_block(data, 0, root, n_);
  }

  /// Blocks of one size, and blocks of different sizes with gaps between them.
  void gather_and_scatter(int root) {
    std::vector<T> all = blocks(n_);
    call(at_once_, MPI_Gather, MPI_Igather, mine_.data(), count_, type_, all.data(), count_, type_,
         root, comm_);
    for (int r = 0; rank_ == root && r < size_; ++r) expect_block(all, r * n_, r, n_);

    std::vector<T> block(n_);
    if (rank_ != root) std::fill(all.begin(), all.end(), T{});
    call(at_once_, MPI_Scatter, MPI_Iscatter, all.data(), count_, type_, block.data(), count_,
         type_, root, comm_);
    expect_block(block, 0, rank_, n_);

    std::vector<int> counts, places;
    int end = 0;
    for (int r = 0; r < size_; ++r) {
      counts.push_back(count_ * (r % 3) / 2);
      places.push_back(end);
      end += counts.back() + 3;
    }
    const int own = counts[static_cast<std::size_t>(rank_)];
    std::vector<T> uneven(static_cast<std::size_t>(end));
    call(at_once_, MPI_Gatherv, MPI_Igatherv, mine_.data(), own, type_, uneven.data(),
         counts.data(), places.data(), type_, root, comm_);
    for (int r = 0; rank_ == root && r < size_; ++r)
      expect_block(uneven, at(places, r), r, at(counts, r));
    std::fill(block.begin(), block.end(), T{});
    call(at_once_, MPI_Scatterv, MPI_Iscatterv, uneven.data(), counts.data(), places.data(), type_,
         padded(block), own, type_, root, comm_);
    expect_block(padded_, 0, rank_, static_cast<std::size_t>(own));

    std::fill(uneven.begin(), uneven.end(), T{});
    call(at_once_, MPI_Allgatherv, MPI_Iallgatherv, mine_.data(), own, type_, uneven.data(),
         counts.data(), places.data(), type_, comm_);
    for (int r = 0; r < size_; ++r) expect_block(uneven, at(places, r), r, at(counts, r));
    std::fill(all.begin(), all.end(), T{});
    call(at_once_, MPI_Allgather, MPI_Iallgather, mine_.data(), count_, type_, all.data(), count_,
         type_, comm_);
    for (int r = 0; r < size_; ++r) expect_block(all, r * n_, r, n_);
  }

  static std::size_t at(const std::vector<int>& numbers, int r) {
    return static_cast<std::size_t>(numbers[static_cast<std::size_t>(r)]);
  }
  /// A buffer for the uneven blocks, none of which is longer than `block`.
  T* padded(const std::vector<T>& block) {
    padded_.assign(block.size() + 1, T{});
    return padded_.data();
  }

  void reduce(int root) {
    std::vector<T> result(n_);
    call(at_once_, MPI_Reduce, MPI_Ireduce, mine_.data(), result.data(), count_, type_, MPI_SUM,
         root, comm_);
    if (rank_ == root) expect_sum(result.data(), 0, n_, size_);
  }

  /// Rank r gives rank q the elements that both their numbers make.
  void all_to_all() {
    std::vector<T> out = blocks(n_), in = blocks(n_);
    for (int to = 0; to < size_; ++to) {
      for (std::size_t i = 0; i < n_; ++i) out[to * n_ + i] = value<T>(rank_ * size_ + to, i);
    }
    call(at_once_, MPI_Alltoall, MPI_Ialltoall, out.data(), count_, type_, in.data(), count_, type_,
         comm_);
    for (int from = 0; from < size_; ++from) expect_block(in, from * n_, from * size_ + rank_, n_);

    // To and from rank r, the more the larger the sum of both ranks; in bytes for alltoallw.
    std::vector<int> counts, places, byte_places;
    std::vector<MPI_Datatype> types(static_cast<std::size_t>(size_), type_);
    for (int r = 0; r < size_; ++r) {
      counts.push_back(count_ * ((rank_ + r) % 3) / 2);
      places.push_back(r * count_);
      byte_places.push_back(r * count_ * static_cast<int>(sizeof(T)));
    }
    for (const bool wide : {false, true}) {
      std::fill(in.begin(), in.end(), T{});
      if (wide) {
        call(at_once_, MPI_Alltoallw, MPI_Ialltoallw, out.data(), counts.data(), byte_places.data(),
             types.data(), in.data(), counts.data(), byte_places.data(), types.data(), comm_);
      } else {
        call(at_once_, MPI_Alltoallv, MPI_Ialltoallv, out.data(), counts.data(), places.data(),
             type_, in.data(), counts.data(), places.data(), type_, comm_);
      }
      for (int r = 0; r < size_; ++r) expect_block(in, r * n_, r * size_ + rank_, at(counts, r));
    }
  }

  void all_reduce() {
    std::vector<T> result(n_);
    call(at_once_, MPI_Allreduce, MPI_Iallreduce, mine_.data(), result.data(), count_, type_,
         MPI_SUM, comm_);
    expect_sum(result.data(), 0, n_, size_);
    std::vector<T> in_place = mine_;
    call(at_once_, MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, in_place.data(), count_, type_,
         MPI_MAX, comm_);
    bool same = true;
    for (std::size_t i = 0; i < n_; ++i) {
      T largest = value<T>(0, i);
      for (int r = 1; r < size_; ++r) largest = std::max(largest, value<T>(r, i));
      same = same && in_place[i] == largest;
    }
    EXPECT(same);

    const std::size_t part = n_ / static_cast<std::size_t>(size_);
    std::vector<T> share(part + 1);
    call(at_once_, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, mine_.data(), share.data(),
         static_cast<int>(part), type_, MPI_SUM, comm_);
    expect_sum(share.data(), rank_ * part, part, size_);

    std::vector<int> counts(static_cast<std::size_t>(size_), static_cast<int>(part));
    counts.back() += static_cast<int>(n_ % static_cast<std::size_t>(size_));
    std::vector<T> rest(at(counts, rank_) + 1);
    call(at_once_, MPI_Reduce_scatter, MPI_Ireduce_scatter, mine_.data(), rest.data(),
         counts.data(), type_, MPI_SUM, comm_);
    expect_sum(rest.data(), rank_ * part, at(counts, rank_), size_);
  }

  void scan() {
    std::vector<T> result(n_);
    call(at_once_, MPI_Scan, MPI_Iscan, mine_.data(), result.data(), count_, type_, MPI_SUM, comm_);
    expect_sum(result.data(), 0, n_, rank_ + 1);
    call(at_once_, MPI_Exscan, MPI_Iexscan, mine_.data(), result.data(), count_, type_, MPI_SUM,
         comm_);
    if (rank_ > 0) expect_sum(result.data(), 0, n_, rank_);
  }

  MPI_Comm comm_;
  std::size_t n_;
  int count_;
  bool at_once_;
  int rank_ = rank_in(comm_);
  int size_ = size_of(comm_);
  MPI_Datatype type_ = type_of<T>();
  std::vector<T> mine_;
  std::vector<T> padded_;
};

template <typename T>
void all_of(MPI_Comm comm, std::size_t largest) {
  std::vector<std::size_t> sizes{0, 1, 5, 64, 1000, 16 << 10, 100'000, largest};
  for (const std::size_t bytes : sizes) {
    if (bytes > largest) continue;
    const std::size_t n = (bytes + sizeof(T) - 1) / sizeof(T);
    for (const bool at_once : {false, true}) Collectives<T>(comm, n, at_once).run();
  }
}

/// Pairs of a matrix: an operation in which the order of the ranks counts.
void multiply(void* left, void* right, int* n, MPI_Datatype*) {
  auto* a = static_cast<std::array<std::uint64_t, 4>*>(left);
  auto* b = static_cast<std::array<std::uint64_t, 4>*>(right);
  for (int i = 0; i < *n; ++i) {
    const auto& x = a[i];
    const auto y = b[i];
    b[i] = {x[0] * y[0] + x[1] * y[2], x[0] * y[1] + x[1] * y[3], x[2] * y[0] + x[3] * y[2],
            x[2] * y[1] + x[3] * y[3]};
  }
}

void own_operation(MPI_Comm comm) {
  MPI_Op op{};
  MPI_Datatype matrix{};
  MUST(MPI_Op_create(multiply, 0, &op));
  MUST(MPI_Type_contiguous(4, MPI_UINT64_T, &matrix));
  MUST(MPI_Type_commit(&matrix));
  const auto of = [](int rank) {
    const auto r = static_cast<std::uint64_t>(rank);
    return std::array<std::uint64_t, 4>{r + 1, 2, 3, r};
  };
  std::vector<std::array<std::uint64_t, 4>> mine(3000, of(rank_in(comm))), result(3000);
  MUST(MPI_Allreduce(mine.data(), result.data(), 3000, matrix, op, comm));
  auto expected = of(size_of(comm) - 1);
  for (int r = size_of(comm) - 2; r >= 0; --r) {
    auto left = of(r);
    int one = 1;
    multiply(&left, &expected, &one, nullptr);
  }
  EXPECT(
      std::all_of(result.begin(), result.end(), [&](const auto& got) { return got == expected; }));

  struct Place {
    double value;
    int rank;
  } here{static_cast<double>((rank_in(comm) * 3) % 7), rank_in(comm)}, least{};
  MUST(MPI_Allreduce(&here, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, comm));
  EXPECT(least.value == 0 && least.rank == 0);
  MUST(MPI_Type_free(&matrix));
  MUST(MPI_Op_free(&op));
}

/// Many under way at once, over two communicators, waited for from the last to the first.
void many_at_once(MPI_Comm comm) {
  MPI_Comm twin{};
  MUST(MPI_Comm_dup(comm, &twin));
  constexpr int kMany = 24;
  constexpr int kCount = 5000;
  const int size = size_of(comm);
  std::vector<std::vector<std::int64_t>> in(kMany), out(kMany);
  std::vector<MPI_Request> requests(kMany);
  for (int k = 0; k < kMany; ++k) {
    const auto slot = static_cast<std::size_t>(k);
    in[slot].assign(kCount, rank_in(comm) + k);
    out[slot].assign(kCount * static_cast<std::size_t>(size), 0);
    MPI_Comm on = k % 2 == 0 ? comm : twin;
    switch (k % 3) {
      case 0:
        MUST(MPI_Iallreduce(in[slot].data(), out[slot].data(), kCount, MPI_INT64_T, MPI_SUM, on,
                            &requests[slot]));
        break;
      case 1:
        MUST(MPI_Ibcast(in[slot].data(), kCount, MPI_INT64_T, k % size, on, &requests[slot]));
        break;
      default:
        MUST(MPI_Iallgather(in[slot].data(), kCount, MPI_INT64_T, out[slot].data(), kCount,
                            MPI_INT64_T, on, &requests[slot]));
    }
  }
  for (int k = kMany - 1; k >= 0; --k)
    MUST(MPI_Wait(&requests[static_cast<std::size_t>(k)], MPI_STATUS_IGNORE));
  for (int k = 0; k < kMany; ++k) {
    const auto slot = static_cast<std::size_t>(k);
    const std::int64_t all =
        static_cast<std::int64_t>(size) * (size - 1) / 2 + static_cast<std::int64_t>(k) * size;
    if (k % 3 == 0)
      EXPECT(std::count(out[slot].begin(), out[slot].begin() + kCount, all) == kCount);
    if (k % 3 == 1) EXPECT(std::count(in[slot].begin(), in[slot].end(), k % size + k) == kCount);
    for (int r = 0; k % 3 == 2 && r < size; ++r) {
      EXPECT(std::count(out[slot].begin() + r * kCount, out[slot].begin() + (r + 1) * kCount,
                        r + k) == kCount);
    }
  }
  MUST(MPI_Comm_free(&twin));
}

/// A ring of neighbours, and the two halves of the world as an intercommunicator.
void other_communicators() {
  const int size = size_of(MPI_COMM_WORLD), rank = rank_in(MPI_COMM_WORLD);
  const int wraps = 1;
  MPI_Comm ring{};
  MUST(MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &wraps, 0, &ring));
  const std::array<int, 2> out{rank * 2, rank * 2 + 1};
  std::array<int, 2> in{};
  MUST(MPI_Neighbor_alltoall(out.data(), 1, MPI_INT, in.data(), 1, MPI_INT, ring));
  if (size > 2) EXPECT(in[0] == (rank + size - 1) % size * 2 + 1 && in[1] == (rank + 1) % size * 2);
  std::array<int, 2> seen{};
  MUST(MPI_Neighbor_allgather(&rank, 1, MPI_INT, seen.data(), 1, MPI_INT, ring));
  EXPECT(seen[0] == (rank + size - 1) % size && seen[1] == (rank + 1) % size);
  MUST(MPI_Comm_free(&ring));

  MPI_Comm half{}, both{};
  const int side = rank % 2;
  MUST(MPI_Comm_split(MPI_COMM_WORLD, side, rank, &half));
  MUST(MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - side, 7, &both));
  int sum = 0, expected = 0;
  MUST(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, both));
  for (int r = 1 - side; r < size; r += 2) expected += r;
  EXPECT(sum == expected);
  MPI_Comm merged{};
  MUST(MPI_Intercomm_merge(both, side, &merged));
  EXPECT(size_of(merged) == size);
  int all = 0;
  MUST(MPI_Allreduce(&rank, &all, 1, MPI_INT, MPI_SUM, merged));
  EXPECT(all == size * (size - 1) / 2);
  for (MPI_Comm* comm : {&merged, &both, &half}) MUST(MPI_Comm_free(comm));
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  using namespace clan::test::mpi;
  MPI_Init(&argc, &argv);
  const std::size_t largest = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1 << 20;
  all_of<std::int32_t>(MPI_COMM_WORLD, largest);
  all_of<double>(MPI_COMM_WORLD, std::min<std::size_t>(largest, 100'000));
  all_of<unsigned char>(MPI_COMM_WORLD, 1000);

  MPI_Comm backwards{}, part{};
  const int rank = rank_in(MPI_COMM_WORLD);
  MUST(MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &backwards));
  all_of<std::int64_t>(backwards, 16 << 10);
  MUST(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &part));
  all_of<float>(part, 16 << 10);
  own_operation(MPI_COMM_WORLD);
  many_at_once(MPI_COMM_WORLD);
  other_communicators();
  MUST(MPI_Comm_free(&part));
  MUST(MPI_Comm_free(&backwards));
  return finish("collectives");
}
