// A dynamic window of many small pieces of MPI_Alloc_mem, as a list has whose elements are
// allocated one by one: more pieces than Open MPI has places for what is attached. Each rank writes
// into all of the next one's.
#include <array>
#include <cstring>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

constexpr int kPieces = 200;
constexpr int kBytes = 48;

unsigned char pattern(int rank, int piece) {
  return static_cast<unsigned char>(rank * 61 + piece * 7 + 1);
}

void run() {
  const int rank = rank_in(MPI_COMM_WORLD), size = size_of(MPI_COMM_WORLD);
  const int next = (rank + 1) % size, last = (rank + size - 1) % size;
  MPI_Win window{};
  MUST(MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window));
  std::vector<unsigned char*> pieces(kPieces);
  std::vector<MPI_Aint> here(kPieces), there(kPieces);
  for (int n = 0; n < kPieces; ++n) {
    const auto at = static_cast<std::size_t>(n);
    MUST(MPI_Alloc_mem(kBytes, MPI_INFO_NULL, &pieces[at]));
    std::memset(pieces[at], 0, kBytes);
    MUST(MPI_Win_attach(window, pieces[at], kBytes));
    MUST(MPI_Get_address(pieces[at], &here[at]));
  }
  MUST(MPI_Sendrecv(here.data(), kPieces, MPI_AINT, last, 0, there.data(), kPieces, MPI_AINT, next,
                    0, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  MUST(MPI_Win_lock_all(0, window));
  for (int n = 0; n < kPieces; ++n) {
    std::array<unsigned char, kBytes> out;
    out.fill(pattern(rank, n));
    MUST(MPI_Put(out.data(), kBytes, MPI_BYTE, next, there[static_cast<std::size_t>(n)], kBytes,
                 MPI_BYTE, window));
    MUST(MPI_Win_flush(next, window));
  }
  MUST(MPI_Win_unlock_all(window));
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  for (int n = 0; n < kPieces; ++n) {
    unsigned char* const piece = pieces[static_cast<std::size_t>(n)];
    for (int i = 0; i < kBytes; ++i) EXPECT(piece[i] == pattern(last, n));
    MUST(MPI_Win_detach(window, piece));
    MUST(MPI_Free_mem(piece));
  }
  MUST(MPI_Win_free(&window));
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  clan::test::mpi::run();
  return clan::test::mpi::finish("pieces");
}
