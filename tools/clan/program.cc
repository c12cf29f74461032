#include "program.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace clan::tool {
namespace {

/// A file that is closed again.
class File {
 public:
  explicit File(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  explicit operator bool() const { return fd_ >= 0; }

  /// Up to `size` bytes at `at`.
  std::string read(std::uint64_t at, std::size_t size) const {
    std::string bytes(size, '\0');
    const ssize_t n = pread(fd_, bytes.data(), size, static_cast<off_t>(at));
    bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return bytes;
  }

 private:
  int fd_;
};

template <typename T>
bool take(const std::string& bytes, std::size_t at, T& value) {
  if (bytes.size() < at + sizeof value) return false;
  std::memcpy(static_cast<void*>(&value), bytes.data() + at, sizeof value);
  return true;
}

constexpr std::size_t kMostBytes = 65536;  // of a part that is read

/// A note by Go's linker: every program of Go has one.
bool is_gos(const std::string& notes) {
  Elf64_Nhdr note{};
  for (std::size_t at = 0; take(notes, at, note);) {
    const auto padded = [](std::uint64_t n) { return (n + 3) & ~std::uint64_t{3}; };
    const std::size_t name = at + sizeof note;
    if (note.n_namesz == 4 && notes.compare(name, 4, std::string("Go\0\0", 4)) == 0) return true;
    at = name + padded(note.n_namesz) + padded(note.n_descsz);
  }
  return false;
}

struct Why {
  const char* text = nullptr;
  bool cannot_load = false;
};

Why of_elf(const File& file, const Elf64_Ehdr& header) {
  if (header.e_phentsize != sizeof(Elf64_Phdr))
    return {"is statically linked: it will run without CLAN"};
  const std::string table =
      file.read(header.e_phoff, std::size_t{header.e_phnum} * sizeof(Elf64_Phdr));
  std::string interpreter;
  bool go = false;
  Elf64_Phdr part{};
  for (std::size_t at = 0; take(table, at, part); at += sizeof part) {
    const std::size_t size = std::min<std::size_t>(part.p_filesz, kMostBytes);
    if (part.p_type == PT_INTERP) interpreter = file.read(part.p_offset, size);
    if (part.p_type == PT_NOTE) go = go || is_gos(file.read(part.p_offset, size));
  }
  if (interpreter.empty()) return {"is statically linked: it will run without CLAN"};
  if (interpreter.find("/ld-musl-") != std::string::npos) {
    return {"is linked with musl, and CLAN with glibc: it will run without CLAN", true};
  }
  if (go)
    return {
        "is a Go program, which calls the kernel past the C library: its connections stay on TCP"};
  return {};
}

/// The program that a script is for; empty if it is none.
std::string interpreter_of(const std::string& head) {
  if (head.compare(0, 2, "#!") != 0) return "";
  const std::size_t from = head.find_first_not_of(" \t", 2);
  if (from == std::string::npos) return "";
  return head.substr(from, head.find_first_of(" \t\n", from) - from);
}

Why of_file(const std::string& path, int depth = 0) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return {};
  if (((about.st_mode & S_ISUID) != 0 && about.st_uid != getuid()) ||
      ((about.st_mode & S_ISGID) != 0 && about.st_gid != getgid())) {
    return {"is setuid or setgid: it will run without CLAN"};
  }
  if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
    return {"has file capabilities: it will run without CLAN"};
  }
  const File file(path);
  if (!file) return {};  // may be executed, not read
  const std::string head = file.read(0, 512);
  constexpr int kMostScripts = 4;  // for each other
  if (const std::string next = interpreter_of(head); !next.empty() && depth < kMostScripts) {
    return of_file(next, depth + 1);
  }
  if (head.size() < EI_NIDENT || head.compare(0, SELFMAG, ELFMAG) != 0) return {};
  Elf64_Ehdr header{};
  if (head[EI_CLASS] != ELFCLASS64 || !take(head, 0, header)) {
    return {"is a 32-bit program: it will run without CLAN"};
  }
  return of_elf(file, header);
}

/// Programs that start others in an environment of their own, which does not have LD_PRELOAD.
constexpr std::array<std::string_view, 7> kStarters{"sudo",    "su",     "doas",  "pkexec",
                                                    "runuser", "docker", "podman"};

bool clears_environment(const std::vector<std::string>& command) {
  for (std::size_t i = 1; i < command.size(); ++i) {
    const std::string& word = command[i];
    if (word == "-" || word == "-i" || word == "--ignore-environment" || word == "-uLD_PRELOAD" ||
        word == "--unset=LD_PRELOAD") {
      return true;
    }
    if (word == "-u" || word == "--unset") {
      if (i + 1 < command.size() && command[i + 1] == "LD_PRELOAD") return true;
      ++i;
    } else if (word.empty() || word[0] != '-') {
      return false;  // a variable, or the command
    }
  }
  return false;
}

}  // namespace

bool is_binary(const std::string& path) {
  const std::string head = File(path).read(0, 512);
  return head.find('\0') < head.find('\n');
}

Obstacle obstacle_of(const std::string& path, const std::vector<std::string>& command) {
  const std::string name = path.substr(path.rfind('/') + 1);
  if (std::find(kStarters.begin(), kStarters.end(), name) != kStarters.end() &&
      command.size() > 1) {
    return {
        fmt::format("{} starts commands in an environment of its own: they will run without CLAN; "
                    "write {} ... clan run COMMAND",
                    name, name)};
  }
  if (name == "env" && clears_environment(command)) {
    return {
        "env takes LD_PRELOAD out of the environment: its command will run without CLAN; "
        "write env -i clan run COMMAND"};
  }
  const Why why = of_file(path);
  if (why.text == nullptr) return {};
  return {fmt::format("{} {}", path, why.text), why.cannot_load};
}

}  // namespace clan::tool
