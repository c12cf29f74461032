// `clan doctor`: whether this machine's libraries can load each face.
#include "../commands.h"
#include "finding.h"

namespace clan::tool {
namespace {

template <typename Answer>
[[maybe_unused]] Finding finding_of(const char* name, const Answer& answer) {
  return {.name = name,
          .state = answer.found ? State::kOk : State::kAbsent,
          .seen = answer.seen,
          .effect = answer.effect};
}

}  // namespace

std::vector<Finding> check_faces() {
  return {
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
#ifdef CLAN_VIA
      finding_of("VIA", look_for_via()),
#endif
#ifdef CLAN_VMMC
      finding_of("VMMC", look_for_vmmc()),
#endif
#ifdef CLAN_UNET
      finding_of("U-Net", look_for_unet()),
#endif
  };
}

}  // namespace clan::tool
