// What the MPI programs of these tests share: a check that fails names its line and ends all ranks.
// The last line of a program that passes, from rank 0, is "NAME: PASS, N checks on R ranks".
#pragma once

#define OMPI_SKIP_MPICXX  // the bindings for C++ that MPI no longer has
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace clan::test::mpi {

inline std::uint64_t g_checks = 0;

inline int rank_in(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

inline int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}

inline void fail(const char* file, int line, const char* text) {
  std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_in(MPI_COMM_WORLD), file, line, text);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

#define EXPECT(condition)                                                    \
  do {                                                                       \
    ++clan::test::mpi::g_checks;                                             \
    if (!(condition)) clan::test::mpi::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define MUST(call) EXPECT((call) == MPI_SUCCESS)

template <typename T>
MPI_Datatype type_of();
template <>
inline MPI_Datatype type_of<unsigned char>() {
  return MPI_UNSIGNED_CHAR;
}
template <>
inline MPI_Datatype type_of<std::int32_t>() {
  return MPI_INT32_T;
}
template <>
inline MPI_Datatype type_of<std::int64_t>() {
  return MPI_INT64_T;
}
template <>
inline MPI_Datatype type_of<std::uint64_t>() {
  return MPI_UINT64_T;
}
template <>
inline MPI_Datatype type_of<float>() {
  return MPI_FLOAT;
}
template <>
inline MPI_Datatype type_of<double>() {
  return MPI_DOUBLE;
}

/// Element `i` of what `rank` contributes: small, so that sums over ranks are exact in every type.
template <typename T>
T value(int rank, std::size_t i) {
  return static_cast<T>((static_cast<std::size_t>(rank) * 5 + i * 7 + i / 251) % 13);
}

/// The end of a program: all ranks have come here, and nobody has failed.
inline int finish(const char* name) {
  std::uint64_t all = 0;
  MPI_Reduce(&g_checks, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank_in(MPI_COMM_WORLD) == 0) {
    std::printf("%s: PASS, %llu checks on %d ranks\n", name, static_cast<unsigned long long>(all),
                size_of(MPI_COMM_WORLD));
  }
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}

}  // namespace clan::test::mpi
