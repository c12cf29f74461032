#include "share/loader.h"

#include <elf.h>
#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/detail/log.h"
#include "os/scratch.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// By the name of the program's loader, in its file.
bool is_musl(int file, const Elf64_Phdr& part) {
  char name[512];
  const std::size_t length =
      part.p_filesz < sizeof name ? static_cast<std::size_t>(part.p_filesz) : sizeof name - 1;
  const long n = sys::call(SYS_pread64, file, name, length, part.p_offset);
  name[n > 0 ? n : 0] = 0;
  return std::strstr(name, "/ld-musl-") != nullptr;
}

// Whether a program, or a script's interpreter, has musl's loader, which cannot load the library.
bool has_other_loader(const char* path, int depth) {
  struct Closed {
    int fd;
    ~Closed() {
      if (fd >= 0) sys::close(fd);
    }
  } file{static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC))};
  constexpr std::size_t kHead = 4096;
  const Scratch memory(Scratch::kUsual);
  if (file.fd < 0 || !memory) return false;
  char* const head = memory.as<char>();
  const long n = sys::call(SYS_read, file.fd, head, kHead - 1);
  head[n > 0 ? n : 0] = 0;
  if (n > 2 && head[0] == '#' && head[1] == '!') {
    const char* from = head + 2 + std::strspn(head + 2, " \t");
    const std::size_t length = std::strcspn(from, " \t\n");
    char interpreter[512];
    if (depth > 3 || length == 0 || length >= sizeof interpreter) return false;
    std::memcpy(interpreter, from, length);
    interpreter[length] = 0;
    return has_other_loader(interpreter, depth + 1);
  }
  Elf64_Ehdr elf;
  std::memcpy(&elf, head, sizeof elf);
  if (n < static_cast<long>(sizeof elf) || std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 ||
      elf.e_ident[EI_CLASS] != ELFCLASS64) {
    return false;
  }
  for (unsigned i = 0; i < elf.e_phnum; ++i) {
    Elf64_Phdr part;
    const std::uint64_t at = elf.e_phoff + std::uint64_t{i} * sizeof part;
    if (elf.e_phoff > kHead || at + sizeof part > static_cast<std::uint64_t>(n)) return false;
    std::memcpy(&part, head + at, sizeof part);
    if (part.p_type == PT_INTERP) return is_musl(file.fd, part);
  }
  return false;
}

constexpr char kPreload[] = "LD_PRELOAD=";

}  // namespace

bool is_preload(const char* variable) {
  return std::strncmp(variable, kPreload, sizeof kPreload - 1) == 0;
}

bool without_us(const char* variable, char* to) {
  char* end = std::strcpy(to, kPreload) + sizeof kPreload - 1;
  for (const char* at = variable + sizeof kPreload - 1; *at != 0;) {
    const std::size_t length = std::strcspn(at, ": ");
    const char* name = at + length;
    while (name > at && name[-1] != '/') --name;
    const bool us = std::strncmp(name, "libclan-preload", sizeof "libclan-preload" - 1) == 0;
    if (length > 0 && !us) {
      if (end[-1] != '=') *end++ = ':';
      std::memcpy(end, at, length);
      end += length;
    }
    at += length + (at[length] != 0 ? 1 : 0);
  }
  *end = 0;
  return end[-1] != '=';
}

bool must_do_without_us(const char* path, char* const* environment) {
  bool loads = false;
  for (char* const* at = environment; at != nullptr && *at != nullptr; ++at) {
    loads |= is_preload(*at) && std::strstr(*at, "libclan-preload") != nullptr;
  }
  KeepErrno keep;
  if (!loads || !has_other_loader(path, 0)) return false;
  CLAN_WARN("%s is linked with musl: it will run without CLAN", path);
  return true;
}

}  // namespace clan::preload
