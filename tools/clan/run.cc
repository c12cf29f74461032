// `clan run`: adds the preload library to LD_PRELOAD, or makes libfabric find and take our provider, and
// becomes the command. Every process that a user starts under CLAN passes here, so there is nothing but the
// checks and the exec.
#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr std::string_view kLibrary = "libclan-preload.so";
constexpr int kUsage = 2;  // of any command of `clan`
constexpr int kOurFault = 125;
constexpr int kCannotStart = 126;
constexpr int kNotFound = 127;

template <typename... Arguments>
void complain(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  fmt::print(stderr, "clan run: {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// ../lib from this program, in a build tree and in an installed one.
std::string library_path() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return std::string(kLibrary);
  return self.parent_path().parent_path() / "lib" / kLibrary;
}

/// LD_PRELOAD with `library` behind everything else, which some want to come before all others (sanitizers),
/// and without other copies of it.
std::string preload_list(const std::string& library) {
  std::string list;
  const char* present = std::getenv("LD_PRELOAD");
  std::string_view rest = present != nullptr ? present : "";
  while (!rest.empty()) {
    const std::size_t end = rest.find_first_of(": ");
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::string_view name = entry.substr(entry.rfind('/') + 1);
    if (!entry.empty() && name != library.substr(library.rfind('/') + 1)) list.append(entry).append(":");
  }
  return list + library;
}

/// A program that gcc has linked with AddressSanitizer refuses to start behind any preloaded library, unless
/// told that this one may be there.
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

bool has_interpreter(int fd, const Elf64_Ehdr& header) {
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const std::size_t bytes = segments.size() * sizeof(Elf64_Phdr);
  if (pread(fd, segments.data(), bytes, static_cast<off_t>(header.e_phoff)) != static_cast<ssize_t>(bytes)) {
    return false;
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_INTERP) return true;
  }
  return false;
}

/// Why the dynamic loader will not load the library into this program; nullptr if it will, and for what
/// is not an ELF file (a script: its interpreter is one).
const char* why_not_served(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return nullptr;
  if (((about.st_mode & S_ISUID) != 0 && about.st_uid != getuid()) ||
      ((about.st_mode & S_ISGID) != 0 && about.st_gid != getgid())) {
    return "is setuid or setgid";
  }
  if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    return "has file capabilities";
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;  // may be executed, not read
  const char* why = nullptr;
  Elf64_Ehdr header{};
  const ssize_t got = pread(fd, &header, sizeof header, 0);
  if (got >= EI_NIDENT && std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0) {
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || got != sizeof header) {
      why = "is a 32-bit program";
    } else if (!has_interpreter(fd, header)) {
      why = "is statically linked";
    }
  }
  close(fd);
  return why;
}

/// True if the preload library is there and LD_PRELOAD can name it.
bool check_library(const std::string& library) {
  if (access(library.c_str(), R_OK) != 0) {
    complain("{}: {}; build the target clan_preload, or install CLAN with its lib/ beside bin/", library,
             std::strerror(errno));
    return false;
  }
  if (library.find_first_of(": ") != std::string::npos) {
    complain("{}: LD_PRELOAD cannot name a path with a space or a colon in it; move CLAN elsewhere", library);
    return false;
  }
  return true;
}

/// True if programs can load the libfabric provider.
bool check_provider() {
#ifdef CLAN_LIBFABRIC
  const std::string why = why_no_provider();
#else
  const std::string why = "this CLAN was built without the libfabric provider (CLAN_LIBFABRIC)";
#endif
  if (!why.empty()) complain("{}", why);
  return why.empty();
}

/// True if programs can load libclanrpc.
bool check_rpc() {
#ifdef CLAN_SUNRPC
  const std::string why = why_no_rpc();
#else
  const std::string why = "this CLAN was built without libclanrpc (CLAN_SUNRPC)";
#endif
  if (!why.empty()) complain("{}", why);
  return why.empty();
}

/// False, with a message, if a value cannot be passed on.
bool set_variables(const RunOptions& options, const std::string& library) {
  const auto set = [](const char* name, const std::string& value) {
    if (!value.empty()) setenv(name, value.c_str(), 1);
  };
  set("CLAN_ONLY", options.only);
  set("CLAN_EXCEPT", options.except);
  set("CLAN_LOG", options.log);
  if (options.disable) set("CLAN_DISABLE", "1");
  if (!options.config.empty()) {
    // Absolute: the command may change its directory before the library reads it.
    char absolute[PATH_MAX];
    if (realpath(options.config.c_str(), absolute) == nullptr || access(absolute, R_OK) != 0) {
      complain("the configuration file {} cannot be read: {}", options.config, std::strerror(errno));
      return false;
    }
    set("CLAN_CONFIG", absolute);
  }
  if (options.tcp) {
    set("LD_PRELOAD", preload_list(library));
    set("ASAN_OPTIONS", sanitizer_options());
  }
#ifdef CLAN_SUNRPC
  if (options.rpc) set("LD_PRELOAD", preload_list(rpc_library()));
#endif
#ifdef CLAN_LIBFABRIC
  if (options.ofi) {
    for (const auto& [name, value] : ofi_variables()) setenv(name.c_str(), value.c_str(), 1);
  }
#endif
  return true;
}

/// False, with messages, if each process of the command would have to complain of its settings.
bool check_settings(bool tcp) {
  const auto wrong = wrong_settings(!tcp);  // the provider reads CLAN_LOG alone
  for (const std::string& sentence : wrong) complain("{}", sentence);
  for (const std::string& sentence : unknown_variables()) complain("warning: {}", sentence);
  return wrong.empty();
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

  if (!options.tcp &&
      (options.disable || !options.only.empty() || !options.except.empty() || !options.config.empty())) {
    complain("--only, --except, --config and --disable are about TCP connections: say --with tcp,ofi");
    return kUsage;
  }
  const std::string library = library_path();
  if (options.tcp && !check_library(library)) return kOurFault;
  if (options.ofi && !check_provider()) return kOurFault;
  if (options.rpc && !check_rpc()) return kOurFault;
  const Command found = find_command(name);
  if (found.err != 0) {
    const bool absent = found.err == ENOENT || found.err == ENOTDIR;
    if (absent) {
      complain("{}: command not found", name);
    } else {
      complain("{}: not executable: {}", found.path, std::strerror(found.err));
    }
    return absent ? kNotFound : kCannotStart;
  }
  const char* why = options.tcp ? why_not_served(found.path) : nullptr;
  if (why != nullptr) complain("warning: {} {}: it will run without CLAN", found.path, why);
  if (!set_variables(options, library) || !check_settings(options.tcp)) return kUsage;

  std::vector<char*> argv;
  for (const auto& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int err = errno;
  complain("{}: {}", found.path, std::strerror(err));
  return err == ENOENT ? kNotFound : kCannotStart;
}

}  // namespace clan::tool
