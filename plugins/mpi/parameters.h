// The MCA parameters of this component, and what is said to people.
#pragma once

#include <cstddef>

#include "open_mpi.h"

namespace clan::mpi {

/// The MCA parameters; component.cc registers and explains them.
struct Parameters {
  int verbose = 0;
  unsigned bulk_bytes = 256 * 1024;
  unsigned channels = 0;
  std::size_t get_bytes = 256 * 1024;
  unsigned looks = 0;
  bool crowded = false;  ///< more ranks of the job on this host than processors
  bool direct_copy = true;
  bool share_allocated = true;
  char* key = nullptr;           ///< Open MPI's; null or empty: CLAN_KEY
  char* network_mode = nullptr;  ///< Open MPI's; null or empty: CLAN_NETWORK_MODE
};
extern Parameters g_parameters;

/// A line for people, where btl_clan_verbose is at least `level`.
void log(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));
/// True in one of a host's ranks, for what all of them would say.
inline bool speaks_for_host() { return opal_process_info.my_local_rank == 0; }

}  // namespace clan::mpi
