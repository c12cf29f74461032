// The page in which a process keeps its counters for tools to read (clan/*_face.h).
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>

namespace clan {

/// Makes this process's page, in a memfd of that name that stays open and mapped; in private memory
/// where the kernel gives none. Sets Page::pid.
template <typename Page>
Page* make_counter_page(const char* name) {
  void* memory = MAP_FAILED;
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ::ftruncate(fd, sizeof(Page)) == 0)
    memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  auto* const page = memory == MAP_FAILED ? new Page : new (memory) Page;
  page->pid = static_cast<std::uint32_t>(::getpid());
  return page;
}

}  // namespace clan
