// A dynamic window to which every rank attaches memory while the others put, get and count in what
// they know of it already. Each new region lies below all others of its owner, so that the owner
// moves the whole list of them, in which the others look.
#include <sys/mman.h>

#include <cstring>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

constexpr int kRegions = 48;               // Open MPI takes 64
constexpr std::size_t kRegion = 16 << 10;  // of which the last page is not attached
constexpr std::size_t kAttached = 12 << 10;
constexpr std::size_t kPart = 1 << 10;  // of a region, for each rank that writes there
constexpr int kTag = 3;

class Growing {
 public:
  Growing() {
    void* memory = mmap(nullptr, kRegions * kRegion, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(memory != MAP_FAILED);
    arena_ = static_cast<unsigned char*>(memory);
  }
  ~Growing() { munmap(arena_, kRegions * kRegion); }
  Growing(const Growing&) = delete;
  Growing& operator=(const Growing&) = delete;

  void run() {
    MUST(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window_));
    MUST(MPI_Win_lock_all(0, window_));
    for (int n = 0; n < kRegions; ++n) {
      attach(n);
      hear();
      for (int r = 0; r < size_; ++r) {
        if (r != rank_) use_all_of(r);
      }
    }
    MUST(MPI_Waitall(static_cast<int>(told_.size()), told_.data(), MPI_STATUSES_IGNORE));
    while (!all_heard()) hear();
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) use_all_of(r);
    }
    MUST(MPI_Win_flush_all(window_));
    MUST(MPI_Barrier(MPI_COMM_WORLD));
    MUST(MPI_Win_unlock_all(window_));
    for (int n = 0; n < kRegions; ++n) {
      std::int64_t counted = 0;
      std::memcpy(&counted, region(n), sizeof counted);
      sum_ += counted;
    }
    std::int64_t sums[2] = {sum_, -added_}, all[2];
    MUST(MPI_Allreduce(sums, all, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD));
    EXPECT(all[0] + all[1] == 0);  // nothing was counted elsewhere, or twice
    for (int n = 0; n < kRegions; ++n) MUST(MPI_Win_detach(window_, region(n)));
    MUST(MPI_Win_free(&window_));
  }

 private:
  unsigned char* region(int n) const {
    return arena_ + static_cast<std::size_t>(kRegions - 1 - n) * kRegion;
  }

  void attach(int n) {
    MUST(MPI_Win_attach(window_, region(n), kAttached));
    addresses_.push_back(0);
    MUST(MPI_Get_address(region(n), &addresses_.back()));
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      told_.emplace_back();
      MUST(MPI_Isend(&addresses_.back(), 1, MPI_AINT, r, kTag, MPI_COMM_WORLD, &told_.back()));
    }
  }

  void hear() {
    for (int is_there = 1; is_there != 0;) {
      MPI_Status status;
      MUST(MPI_Iprobe(MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, &is_there, &status));
      if (is_there == 0) break;
      MPI_Aint address = 0;
      MUST(MPI_Recv(&address, 1, MPI_AINT, status.MPI_SOURCE, kTag, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
      known_[static_cast<std::size_t>(status.MPI_SOURCE)].push_back(address);
    }
  }

  bool all_heard() const {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && known_[static_cast<std::size_t>(r)].size() != kRegions) return false;
    }
    return true;
  }

  void use_all_of(int r) {
    for (const MPI_Aint address : known_[static_cast<std::size_t>(r)]) use(r, address);
  }

  /// Only this rank writes its part; the first word is everybody's.
  void use(int r, MPI_Aint address) {
    const MPI_Aint part = address + static_cast<MPI_Aint>(kPart) * (rank_ + 1);
    const int bytes = uses_ % 2 == 0 ? 24 : 900;
    std::vector<unsigned char> out(900), in(900);
    std::memset(out.data(), rank_ * 41 + uses_, out.size());
    MUST(MPI_Put(out.data(), bytes, MPI_BYTE, r, part, bytes, MPI_BYTE, window_));
    MUST(MPI_Win_flush(r, window_));
    MUST(MPI_Get(in.data(), bytes, MPI_BYTE, r, part, bytes, MPI_BYTE, window_));
    const std::int64_t one = 1;
    std::int64_t before = 0;
    MUST(MPI_Fetch_and_op(&one, &before, MPI_INT64_T, r, address, MPI_SUM, window_));
    MUST(MPI_Win_flush(r, window_));
    EXPECT(std::memcmp(in.data(), out.data(), static_cast<std::size_t>(bytes)) == 0);
    EXPECT(before >= 0);
    ++added_;
    ++uses_;
  }

  int rank_ = rank_in(MPI_COMM_WORLD);
  int size_ = size_of(MPI_COMM_WORLD);
  unsigned char* arena_ = nullptr;
  MPI_Win window_{};
  std::vector<std::vector<MPI_Aint>> known_{static_cast<std::size_t>(size_)};
  std::vector<MPI_Aint> addresses_ = reserved();  // sent from where they lie
  std::vector<MPI_Request> told_;
  std::int64_t sum_ = 0, added_ = 0;
  int uses_ = 0;

  static std::vector<MPI_Aint> reserved() {
    std::vector<MPI_Aint> addresses;
    addresses.reserve(kRegions);
    return addresses;
  }
};

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  clan::test::mpi::Growing{}.run();
  return clan::test::mpi::finish("growing");
}
