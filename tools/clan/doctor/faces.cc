// `clan doctor`: whether this machine's libraries can load each face.
#include "../commands.h"
#include "finding.h"

namespace clan::tool {
namespace {

template <typename Answer>
Finding finding_of(const char* name, const Answer& answer) {
  return {.name = name,
          .state = answer.found ? State::kOk : State::kAbsent,
          .seen = answer.seen,
          .effect = answer.effect};
}

}  // namespace

std::vector<Finding> check_faces() {
  std::vector<Finding> findings{
#ifdef CLAN_LIBFABRIC
      finding_of("libfabric", look_for_provider()),
#endif
#ifdef CLAN_OMNIORB
      finding_of("omniORB", look_for_orb()),
#endif
#ifdef CLAN_SUNRPC
      finding_of("sunrpc", look_for_rpc()),
#endif
#ifdef CLAN_MPI
      finding_of("Open MPI", look_for_mpi()),
#endif
  };
  for (const auto& [title, state] : look_for_linked()) findings.push_back(finding_of(title, state));
  return findings;
}

}  // namespace clan::tool
