// `clan doctor`: whether this machine's libraries can load each face.
#include "../faces.h"

#include "finding.h"

namespace clan::tool {

std::vector<Finding> check_faces() {
  std::vector<Finding> findings;
  for (const Face& face : faces()) {
    const FaceState state = state_of(face);
    findings.push_back({.name = face.title,
                        .state = state.found ? State::kOk : State::kAbsent,
                        .seen = state.seen,
                        .effect = state.effect});
  }
  return findings;
}

}  // namespace clan::tool
