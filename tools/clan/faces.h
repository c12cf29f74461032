// The faces of this build as their users meet them: where each is, whether programs can load it,
// and what makes them take it. `clan run --with`, `clan env` and `clan doctor` read one table.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace clan::tool {

using Variables = std::vector<std::pair<std::string, std::string>>;

/// What `clan doctor` says of a face.
struct FaceState {
  bool found = false;
  std::string seen;
  std::string effect;
};

struct Face {
  std::string name;     ///< of `clan run --with` and `clan env`
  std::string title;    ///< of `clan doctor`
  std::string without;  ///< what is so where it cannot be loaded
  /// Says why programs cannot load it, as a sentence; "" if they can.
  std::function<std::string()> why_not;
  /// Prints for sh what makes programs find it.
  std::function<void()> print;
  /// Finds its state; called only if why_not() has found nothing.
  std::function<FaceState()> look;

  // What `clan run --with` needs.
  std::string carries = {};  ///< what goes over CLAN; empty: programs are linked with the face
  std::string library = {};  ///< which LD_PRELOAD names; empty: programs find the face otherwise
  std::function<Variables()> variables = {};
  bool reads_log_alone = false;  ///< of the settings
};

/// All of them, in the order in which they are shown.
const std::vector<Face>& faces();
/// Null: this build has none of that name.
const Face* find_face(std::string_view name);
FaceState state_of(const Face& face);
/// `clan env FACE`. The exit code.
int print_environment(const Face& face);

// For those that define them.
Face ofi_face();
Face orb_face();
Face rpc_face();
Face mpi_face();
std::vector<Face> linked_faces();
/// ../lib/NAME from this program, in a build tree and in an installed one.
std::string in_lib(const std::string& name);
/// Says why a file cannot be read, and names the targets that make it; "" if it can.
std::string why_not_there(const std::string& file, const char* targets);
/// The same of a library that LD_PRELOAD has to name.
std::string why_not_preloaded(const std::string& library, const char* targets);

}  // namespace clan::tool
