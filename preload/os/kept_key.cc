#include "os/kept_key.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "clan/face/key_file.h"
#include "os/config.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

struct KeyInMemory {
  KeyFile key;
  char path[Settings::kMostKeyPath + 1] = {};
};

constinit KeyInMemory* key_in_memory = nullptr;

bool is_named(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0;
}

bool needs_key(const Settings& settings) {
  return settings.net && !settings.disable && settings.network_mode != NetworkOptions::Mode::kOff &&
         settings.key_file[0] != 0;
}

void wipe_key(KeyInMemory* what) {
  what->~KeyInMemory();
  (void)sys::munmap(what, sizeof *what);
}

}  // namespace

void keep_key() {
  // Most programs pay for these two looks only.
  if (key_in_memory != nullptr || (!is_named("CLAN_NET") && !is_named("CLAN_CONFIG"))) return;
  const KeepErrno keep;
  const Settings settings = network_settings_now();
  if (!needs_key(settings)) return;
  void* place = sys::mmap(nullptr, sizeof(KeyInMemory), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return;
  auto* made = new (place) KeyInMemory;
  if (sys::call(SYS_madvise, made, sizeof *made, MADV_DONTDUMP) != 0 ||
      !made->key.read(settings.key_file)) {
    return wipe_key(made);
  }
  std::memcpy(made->path, settings.key_file, sizeof made->path);
  key_in_memory = made;
}

std::string_view kept_key(const Settings& settings) {
  if (key_in_memory == nullptr) return {};
  if (needs_key(settings) && std::strcmp(key_in_memory->path, settings.key_file) == 0)
    return key_in_memory->key.key();
  wipe_key(key_in_memory);
  key_in_memory = nullptr;
  return {};
}

}  // namespace clan::preload
