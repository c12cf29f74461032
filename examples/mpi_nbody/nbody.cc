// Particles that attract each other, each step all with all: what a message costs decides how much
// a second processor helps. Nothing of CLAN is in here: it is an MPI program, for whichever
// transport mpirun takes.
//
//   mpirun -n RANKS mpi_nbody PARTICLES STEPS      prints "PARTICLES RANKS MICROSECONDS-A-STEP SUM"
//
// Each rank moves its share of the particles; then all tell each other where theirs are. The
// microseconds are those of the fastest tenth of the steps. SUM is of all positions, and the same
// to the last bit for any number of ranks.
#define OMPI_SKIP_MPICXX
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

struct Body {
  double x, y, z, mass;
};
struct Velocity {
  double x, y, z;
};

constexpr double kStep = 1e-3, kSoftening = 1e-2;
constexpr int kTenths = 10;

std::vector<Body> make_bodies(int n) {
  std::vector<Body> bodies;
  unsigned dice = 12345;
  const auto next = [&] {
    dice = dice * 1664525 + 1013904223;
    return dice / 4294967296.0 - 0.5;
  };
  for (int i = 0; i < n; ++i) {
    const double x = next(), y = next(), z = next();
    bodies.push_back({x, y, z, 1.0 / n});
  }
  return bodies;
}

/// What all bodies do to one.
Velocity pull(const std::vector<Body>& bodies, const Body& on) {
  Velocity sum{0, 0, 0};
  for (const Body& b : bodies) {
    const double dx = b.x - on.x, dy = b.y - on.y, dz = b.z - on.z;
    const double squared = dx * dx + dy * dy + dz * dz + kSoftening;
    const double factor = b.mass / (squared * std::sqrt(squared));
    sum.x += dx * factor;
    sum.y += dy * factor;
    sum.z += dz * factor;
  }
  return sum;
}

void move(const std::vector<Body>& bodies, int first, std::vector<Velocity>& velocities,
          std::vector<Body>& moved) {
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const Body& old = bodies[static_cast<std::size_t>(first) + i];
    const Velocity a = pull(bodies, old);
    Velocity& v = velocities[i];
    v = {v.x + a.x * kStep, v.y + a.y * kStep, v.z + a.z * kStep};
    moved[i] = {old.x + v.x * kStep, old.y + v.y * kStep, old.z + v.z * kStep, old.mass};
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int n = argc > 1 ? std::atoi(argv[1]) : 1024, steps = argc > 2 ? std::atoi(argv[2]) : 100;
  if (n < ranks || n % ranks != 0 || steps < kTenths) {
    if (rank == 0)
      std::fprintf(stderr, "PARTICLES is a multiple of the ranks, STEPS at least 10\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int share = n / ranks, first = rank * share;
  std::vector<Body> bodies = make_bodies(n), moved(static_cast<std::size_t>(share));
  std::vector<Velocity> velocities(moved.size(), Velocity{0, 0, 0});
  const int steps_of_slice = steps / kTenths;
  std::vector<double> slices;  // of a tenth of the steps each
  MPI_Barrier(MPI_COMM_WORLD);
  for (int slice = 0; slice < kTenths; ++slice) {
    const double began = MPI_Wtime();
    for (int i = 0; i < steps_of_slice; ++i) {
      move(bodies, first, velocities, moved);
      MPI_Allgather(moved.data(), 4 * share, MPI_DOUBLE, bodies.data(), 4 * share, MPI_DOUBLE,
                    MPI_COMM_WORLD);
    }
    slices.push_back((MPI_Wtime() - began) / steps_of_slice * 1e6);
  }
  if (rank == 0) {
    double sum = 0;
    for (const Body& b : bodies) sum += b.x + b.y + b.z;
    std::printf("%d %d %.3f %a\n", n, ranks, *std::min_element(slices.begin(), slices.end()), sum);
  }
  MPI_Finalize();
  return 0;
}
