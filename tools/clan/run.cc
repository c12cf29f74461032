// `clan run`: adds the preload library to LD_PRELOAD, or makes libfabric find and take our
// provider, and becomes the command. Every process that a user starts under CLAN passes here, so
// there is nothing but the checks and the exec.
#include <fmt/core.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "program.h"

namespace clan::tool {
namespace {

constexpr std::string_view kPreloadLibrary = "libclan-preload.so";
constexpr int kUsage = 2;  // of any command of `clan`
constexpr int kOurFault = 125;
constexpr int kCannotStart = 126;
constexpr int kNoCommand = 127;

template <typename... Arguments>
void complain(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  fmt::print(stderr, "clan run: {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// ../lib from this program, in a build tree and in an installed one.
std::string library_path() {
  std::error_code error;
  auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {  // no /proc: the name by which the kernel was asked for us
    const auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    self = std::filesystem::canonical(name != nullptr ? name : "", error);
  }
  if (error) return std::string(kPreloadLibrary);
  return self.parent_path().parent_path() / "lib" / kPreloadLibrary;
}

/// LD_PRELOAD with `library` behind everything else, which some want to come before all others
/// (sanitizers), and without other copies of it.
std::string preload_list(const std::string& library) {
  const std::string_view own =
      library.empty() ? kPreloadLibrary : std::string_view(library).substr(library.rfind('/') + 1);
  std::string list;
  const char* present = std::getenv("LD_PRELOAD");
  std::string_view rest = present != nullptr ? present : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find_first_of(": ");
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::string_view name = entry.substr(entry.rfind('/') + 1);
    if (!entry.empty() && name != own) list.append(entry).append(":");
  }
  return list + library;
}

/// A program that gcc has linked with AddressSanitizer refuses to start behind any preloaded
/// library, unless a setting permits it.
std::string sanitizer_options() {
  const char* present = std::getenv("ASAN_OPTIONS");
  constexpr std::string_view kOption = "verify_asan_link_order=";
  std::string options = present != nullptr ? present : "";
  if (options.find(kOption) != std::string::npos) return options;
  if (!options.empty()) options.append(":");
  return options.append(kOption).append("0");
}

struct Command {
  std::string path;
  int err = 0;  // why it cannot be run; path is then the best candidate, if any
};

/// 0 if `path` is a file that may be executed.
int executable(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return errno;
  if (S_ISDIR(about.st_mode)) return EISDIR;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

/// The file execvp() will run.
Command find_command(const std::string& name) {
  if (name.find('/') != std::string::npos) return {name, executable(name)};
  Command best{"", ENOENT};
  const char* path = std::getenv("PATH");
  std::string_view rest = path != nullptr ? path : "/bin:/usr/bin";
  for (bool more = !name.empty(); more;) {
    const std::size_t end = rest.find(':');
    const std::string_view directory = rest.substr(0, end);
    more = end != std::string_view::npos;
    rest.remove_prefix(more ? end + 1 : rest.size());
    const std::string candidate = fmt::format("{}/{}", directory.empty() ? "." : directory, name);
    const int err = executable(candidate);
    if (err == 0) return {candidate, 0};
    if (err == EACCES && best.err == ENOENT) best = {candidate, err};
  }
  return best;
}

/// `library`: empty if the command cannot start behind it. False, with a message, if a value cannot
/// be passed on.
bool set_variables(const RunOptions& options, const std::string& library) {
  const auto set = [](const char* name, const std::string& value) {
    if (!value.empty()) setenv(name, value.c_str(), 1);
  };
  set("CLAN_ONLY", options.only);
  set("CLAN_EXCEPT", options.except);
  set("CLAN_LOG", options.log);
  if (options.disable) set("CLAN_DISABLE", "1");
  if (options.net) set("CLAN_NET", "1");
  if (!options.config.empty()) {
    // Absolute: the command may change its directory before the library reads it.
    char absolute[PATH_MAX];
    if (realpath(options.config.c_str(), absolute) == nullptr || access(absolute, R_OK) != 0) {
      complain("the configuration file {} cannot be read: {}", options.config,
               std::strerror(errno));
      return false;
    }
    set("CLAN_CONFIG", absolute);
  }
  if (options.tcp && library.empty()) {
    const std::string list = preload_list("");
    list.empty() ? (void)unsetenv("LD_PRELOAD")
                 : set("LD_PRELOAD", list.substr(0, list.size() - 1));
  } else if (options.tcp) {
    set("LD_PRELOAD", preload_list(library));
    set("ASAN_OPTIONS", sanitizer_options());
  }
  for (const Face* face : options.faces) {
    if (!face->library.empty()) {
      if (library.empty()) continue;
      set("LD_PRELOAD", preload_list(face->library));
      set("ASAN_OPTIONS", sanitizer_options());
    }
    for (const auto& [name, value] : face->variables ? face->variables() : Variables{})
      setenv(name.c_str(), value.c_str(), 1);
  }
  return true;
}

/// False, with messages, if each process of the command would have to complain of its settings.
bool check_settings(bool log_alone, const std::string& library) {
  auto wrong = wrong_settings(log_alone);
  if (std::string why = log_alone ? "" : why_no_net(library); wrong.empty() && !why.empty())
    wrong.push_back(std::move(why));
  for (const std::string& sentence : wrong) complain("{}", sentence);
  for (const std::string& sentence : unknown_variables()) complain("warning: {}", sentence);
  return wrong.empty();
}

/// Becomes the command. Returns, with an exit code, only if it cannot be started.
int become(const Command& found, const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const auto& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(found.path.c_str(), argv.data());
  // execvp() has a shell read what the kernel does not know: scripts, and no binaries.
  if (errno == ENOEXEC && !is_binary(found.path)) execvp(argv[0], argv.data());
  const int err = errno;
  complain("{}: {}", found.path,
           err == ENOEXEC ? "this kernel cannot run programs of this kind" : std::strerror(err));
  return err == ENOENT ? kNoCommand : kCannotStart;
}

}  // namespace

int exec_under_clan(const RunOptions& options, const std::vector<std::string>& command) {
  if (command.empty()) {
    complain("which command? Usage: clan run [OPTIONS] COMMAND [ARGUMENT]...");
    return kUsage;
  }
  const std::string& name = command[0];
  if (name.size() > 1 && name[0] == '-') {
    complain("there is no option {}; see `clan run --help`", name);
    return kUsage;
  }

  const bool log_alone =  // what the command reads of the settings
      !options.tcp && std::ranges::all_of(options.faces, &Face::reads_log_alone);
  if (!options.tcp && ((options.disable && log_alone) || !options.only.empty() ||
                       !options.except.empty() || !options.config.empty() || options.net)) {
    std::string with = "tcp";
    for (const Face* face : options.faces) with += "," + face->name;
    complain(
        "--only, --except, --config, --net and --disable are about TCP connections: say "
        "--with {}",
        with);
    return kUsage;
  }
  const auto takes = [&](const char* face) {
    return std::ranges::find(options.faces, find_face(face)) != options.faces.end();
  };
  if (takes("ofi") && takes("mpi")) {
    complain("Open MPI takes one way for its messages: --with ofi or --with mpi");
    return kUsage;
  }
  const std::string library = library_path();
  std::string why = options.tcp ? why_not_preloaded(library, "the target clan_preload") : "";
  for (std::size_t i = 0; i < options.faces.size() && why.empty(); ++i)
    why = options.faces[i]->why_not();
  if (!why.empty()) {
    complain("{}", why);
    return kOurFault;
  }
  const Command found = find_command(name);
  if (found.err != 0) {
    const bool absent = found.err == ENOENT || found.err == ENOTDIR;
    if (absent) {
      complain("{}: command not found", name);
    } else {
      complain("{}: not executable: {}", found.path, std::strerror(found.err));
    }
    return absent ? kNoCommand : kCannotStart;
  }
  const bool preloads =
      options.tcp || std::ranges::any_of(options.faces, [](auto f) { return !f->library.empty(); });
  const Obstacle obstacle = preloads ? obstacle_of(found.path, command) : Obstacle{};
  if (!obstacle.sentence.empty()) complain("warning: {}", obstacle.sentence);
  if (!set_variables(options, obstacle.cannot_load ? "" : library) ||
      !check_settings(log_alone, library))
    return kUsage;

  return become(found, command);
}

}  // namespace clan::tool
