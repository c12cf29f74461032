#include <fmt/core.h>

#include <cstdlib>

#include "commands.h"

namespace clan::tool {
namespace {

struct Variable {
  const char* name;
  const char* help;
};

// Each variable some part of CLAN reads, in the order in which a user is likely to want it.
constexpr Variable kVariables[] = {
    {"CLAN_LOG", "how much the library says on stderr: off, error, warn, info, debug"},
};

}  // namespace

void print_environment() {
  for (const Variable& variable : kVariables) {
    const char* value = std::getenv(variable.name);
    fmt::print("{:<16} {}\n{:<16}   {}\n", variable.name, variable.help, "",
               value != nullptr ? fmt::format("set to \"{}\"", value) : "not set");
  }
}

}  // namespace clan::tool
