// Jobs that meet at run time: ranks that are spawned, and two jobs that connect to each other.
//   spawn                 starts itself twice more, two ranks each; the second connects to the
//   first by a port
//   spawn in_turn         starts itself twelve times, one after the other: what has ended costs
//   neither descriptors nor memory
//   spawn killed          the same, and those that are started kill themselves
//   spawn in_turn HOST    starts those on another host
#include <fcntl.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "libfabric/mpi/check.h"

namespace clan::test::mpi {
namespace {

constexpr int kChildren = 2;

std::vector<unsigned char> pattern(std::size_t n, int seed) {
  std::vector<unsigned char> bytes(n);
  for (std::size_t i = 0; i < n; ++i)
    bytes[i] = static_cast<unsigned char>(i * 13 + i / 777 + static_cast<unsigned>(seed));
  return bytes;
}

/// Each rank of one side with each of the other, in sizes of every protocol.
void exchange(MPI_Comm between, int seed_here, int seed_there) {
  int others = 0;
  MUST(MPI_Comm_remote_size(between, &others));
  const int rank = rank_in(between);
  for (const int n : {0, 1, 30, 3000, 20'000, 100'000, 3'000'000}) {
    for (int peer = 0; peer < others; ++peer) {
      const auto out = pattern(static_cast<std::size_t>(n), seed_here + rank);
      std::vector<unsigned char> in(out.size());
      MPI_Status status{};
      MUST(MPI_Sendrecv(out.data(), n, MPI_BYTE, peer, 5, in.data(), n, MPI_BYTE, peer, 5, between,
                        &status));
      int count = -1;
      MUST(MPI_Get_count(&status, MPI_BYTE, &count));
      EXPECT(count == n && in == pattern(in.size(), seed_there + peer));
    }
  }
}

/// The two sides as one.
void merged(MPI_Comm between, bool high) {
  MPI_Comm all{};
  MUST(MPI_Intercomm_merge(between, high ? 1 : 0, &all));
  std::int64_t mine = 1 + rank_in(all), sum = 0;
  MUST(MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, all));
  EXPECT(sum == std::int64_t{size_of(all)} * (size_of(all) + 1) / 2);
  MUST(MPI_Comm_free(&all));
}

int child(MPI_Comm parent, const char* role) {
  exchange(parent, 100, 0);
  merged(parent, true);
  char port[MPI_MAX_PORT_NAME]{};
  MPI_Comm other{};
  if (std::strcmp(role, "accepts") == 0) {
    if (rank_in(MPI_COMM_WORLD) == 0) {
      MUST(MPI_Open_port(MPI_INFO_NULL, port));
      MUST(MPI_Send(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, 9, parent));
    }
    MUST(MPI_Comm_accept(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other));
  } else {
    if (rank_in(MPI_COMM_WORLD) == 0) {
      MUST(MPI_Recv(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, 9, parent, MPI_STATUS_IGNORE));
    }
    MUST(MPI_Comm_connect(port, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other));
  }
  exchange(other, 200, 200);
  MUST(MPI_Comm_disconnect(&other));
  MUST(MPI_Barrier(MPI_COMM_WORLD));
  MUST(MPI_Comm_disconnect(&parent));
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}

MPI_Comm start(char* program, const char* role, int ranks = kChildren, const char* host = nullptr) {
  char word[16];
  std::strcpy(word, role);
  char* words[] = {word, nullptr};
  MPI_Info where = MPI_INFO_NULL;
  if (host != nullptr) {
    MUST(MPI_Info_create(&where));
    MUST(MPI_Info_set(where, "host", host));
  }
  MPI_Comm children{};
  MUST(MPI_Comm_spawn(program, words, ranks, where, 0, MPI_COMM_WORLD, &children,
                      MPI_ERRCODES_IGNORE));
  if (host != nullptr) MUST(MPI_Info_free(&where));
  return children;
}

int parent(char* program) {
  MPI_Comm first = start(program, "accepts"), second = start(program, "connects");
  for (MPI_Comm children : {first, second}) {
    exchange(children, 0, 100);
    merged(children, false);
  }
  if (rank_in(MPI_COMM_WORLD) == 0) {
    char port[MPI_MAX_PORT_NAME]{};
    MUST(MPI_Recv(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, 9, first, MPI_STATUS_IGNORE));
    MUST(MPI_Send(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, 9, second));
  }
  MUST(MPI_Comm_disconnect(&first));
  MUST(MPI_Comm_disconnect(&second));
  return finish("spawn");
}

int child_in_turn(MPI_Comm parent, bool killed) {
  exchange(parent, 100, 0);
  MUST(MPI_Comm_disconnect(&parent));
  if (killed) std::raise(SIGKILL);
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}

int open_descriptors() {
  int open = 0;
  for (int fd = 0; fd < 1024; ++fd) open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return open;
}

/// Counts the mapped bytes of memory that CLAN has made.
std::size_t mapped_bytes() {
  std::ifstream maps("/proc/self/maps");
  std::size_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    std::size_t from = 0, to = 0;
    if (line.find("/memfd:clan") != std::string::npos &&
        std::sscanf(line.c_str(), "%zx-%zx", &from, &to) == 2) {
      bytes += to - from;
    }
  }
  return bytes;
}

int parent_in_turn(char* program, const char* role, const char* host) {
  constexpr int kTurns = 12, kAlive = 4;  // those that have ended may not be known yet
  int before = 0;
  std::size_t bytes_before = 0;
  for (int i = 0; i < kTurns; ++i) {
    MPI_Comm children = start(program, role, 1, host);
    exchange(children, 0, 100);
    MUST(MPI_Comm_disconnect(&children));
    if (i > 0) continue;
    before = open_descriptors();
    bytes_before = mapped_bytes();
  }
  EXPECT(open_descriptors() < before + 2 * kAlive);
  EXPECT(mapped_bytes() < 3 * bytes_before);
  return finish("spawn");
}

}  // namespace
}  // namespace clan::test::mpi

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm above{};
  MPI_Comm_get_parent(&above);
  const char* role = argc > 1 ? argv[1] : "";
  const bool killed = std::strcmp(role, "killed") == 0;
  const bool in_turn = killed || std::strcmp(role, "in_turn") == 0;
  using namespace clan::test::mpi;
  if (above != MPI_COMM_NULL) return in_turn ? child_in_turn(above, killed) : child(above, role);
  const char* const host = argc > 2 ? argv[2] : nullptr;
  return in_turn ? parent_in_turn(argv[0], role, host) : parent(argv[0]);
}
