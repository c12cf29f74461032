#include "os/test_settings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>

#include "os/sys.h"

namespace clan::preload {

constinit TestSettings test_settings;

namespace {

void open_count(const char* path) {
  const int fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC));
  struct stat about {};
  if (fd < 0) return;
  if (sys::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size >= 24) {
    void* memory = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) test_settings.sums = static_cast<std::atomic<std::uint64_t>*>(memory);
  }
  sys::close(fd);
}

}  // namespace

void read_test_settings() {
  const char* at_once = std::getenv("CLAN_TEST_MOVE");
  test_settings.move_at_once =
      at_once != nullptr && *at_once != 0 && std::strcmp(at_once, "0") != 0;
  if (const char* path = std::getenv("CLAN_TEST_COUNT"); path != nullptr && *path != 0)
    open_count(path);
}

}  // namespace clan::preload
