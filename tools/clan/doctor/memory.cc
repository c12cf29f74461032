// `clan doctor`: memory that can be shared, its pages and limits.
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "finding.h"

// Newer than the headers of some supported systems.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace clan::tool {
namespace {

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{} KB", limit / 1024);
}

}  // namespace

Finding check_memfd() {
  Finding f{.name = "memfd",
            .effect = "CLAN's memory is sealed memfd only: without it nothing can be shared",
            .fatal = true};
  const Descriptor fd(memfd_create("clan-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok() || ftruncate(fd.get(), 4096) != 0) {
    f.seen = "memfd_create: " + errno_text();
    return f;
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0 ||
      ftruncate(fd.get(), 8192) == 0) {
    f.seen = "sealing against resize does not hold: " + errno_text();
    return f;
  }
  f.fatal = false;
  f.effect = "segments are sealed against resize and vanish with their last user";
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0) {
    f.state = State::kOk;
    f.seen = "memfd, seals for size and future writes";
  } else {
    f.state = State::kLimited;
    f.seen = "memfd and size seals; F_SEAL_FUTURE_WRITE: " + errno_text();
    f.effect += "; pages shown read-only to a peer are not sealed against its writes";
  }
  return f;
}

Finding check_huge_pages() {
  Finding f{.name = "huge_pages",
            .effect = "ordinary 4 KB pages: large rings cost more TLB misses"};
  constexpr std::size_t kSize = 2U << 20U;
  const Descriptor fd(memfd_create("clan-doctor", MFD_CLOEXEC | MFD_HUGETLB));
  bool reserved = false;
  if (fd.ok() && ftruncate(fd.get(), kSize) == 0) {
    void* p = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    reserved = p != MAP_FAILED;
    if (reserved) munmap(p, kSize);
  }
  // The chosen word of the file is in [brackets].
  const std::string shmem = read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const auto open = shmem.find('[');
  const auto close = shmem.find(']');
  const std::string thp = open == std::string::npos || close == std::string::npos || close < open
                              ? "unknown"
                              : shmem.substr(open + 1, close - open - 1);
  const bool thp_usable =
      thp == "always" || thp == "advise" || thp == "within_size" || thp == "force";
  f.seen = fmt::format("hugetlb memfd {}, transparent for shared memory: {}",
                       reserved ? "yes" : "none reserved", thp);
  if (reserved || thp_usable) {
    f.state = State::kOk;
    f.effect = "large segments can use huge pages; small ones never ask for them";
  }
  return f;
}

Finding check_memlock() {
  Finding f{.name = "memlock"};
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    f.seen = "getrlimit: " + errno_text();
    f.effect =
        "the NIC's TLB pins nothing; pages may be swapped under a transfer, which then waits";
    return f;
  }
  constexpr rlim_t kFullTlb = rlim_t{1024 + 16} * 4096;  // every entry of a TLB of the usual size
  f.state = limit.rlim_cur >= kFullTlb ? State::kOk : State::kLimited;
  f.seen = fmt::format("soft {}, hard {}", limit_text(limit.rlim_cur), limit_text(limit.rlim_max));
  f.effect = f.state == State::kOk
                 ? "a full NIC TLB (1040 pages) may be pinned"
                 : "a full NIC TLB does not fit: raise it with `ulimit -l` to pin every entry";
  return f;
}

Finding check_userfaultfd() {
  Finding f{.name = "userfaultfd",
            .effect =
                "the kernel cannot tell the NIC when a program unmaps memory: translations of such "
                "memory are not kept"};
  const Descriptor fd(
      static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  if (!fd.ok()) {
    f.seen = "userfaultfd: " + errno_text();
    return f;
  }
  uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
  if (ioctl(fd.get(), UFFDIO_API, &api) != 0) {
    f.seen = "UFFDIO_API: " + errno_text();
    return f;
  }
  f.state = State::kOk;
  f.seen = fmt::format("user mode, features {:#x}", static_cast<std::uint64_t>(api.features));
  f.effect = "the kernel tells the NIC when a program unmaps memory it has translated";
  return f;
}

Finding check_max_map_count() {
  Finding f{.name = "max_map_count"};
  const auto count = read_number("/proc/sys/vm/max_map_count");
  if (!count) {
    f.seen = "/proc/sys/vm/max_map_count cannot be read";
    f.effect = "a mapping that fails is reported as ENOMEM and that connection is not accelerated";
    return f;
  }
  f.state = *count >= 65530 ? State::kOk : State::kLimited;
  f.seen = std::to_string(*count);
  f.effect =
      fmt::format("room for some {} connections per process (two mappings each)", *count / 2);
  return f;
}

}  // namespace clan::tool
