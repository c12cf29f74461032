#include "base/mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "clan/detail/system_call.h"

namespace clan {

Result<Mapping> Mapping::map(int memfd, std::size_t bytes, Access access, Locking locking) {
  struct stat st {};
  if (sys::fstat(memfd, &st) != 0) return errno_error("fstat(memfd)");
  if (bytes == 0 || st.st_size < 0 || static_cast<std::size_t>(st.st_size) < bytes) {
    return Error{EINVAL, "shared memory is smaller than announced"};
  }
  int seals = sys::fcntl(memfd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{EPERM, "shared memory is not sealed against shrinking"};
  }
  // A peer could hand us huge pages that do not exist, which raise SIGBUS when touched.
  struct statfs fs {};
  if (::fstatfs(memfd, &fs) != 0) return errno_error("fstatfs(memfd)");
  if (fs.f_type == HUGETLBFS_MAGIC)
    return Error{EPERM, "shared memory of huge pages is not taken from peers"};
  int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  // What may not be accessed gets no memory when it is locked.
  const int first = locking == Locking::kNever ? PROT_NONE : protection;
  void* p = sys::mmap(nullptr, bytes, first, MAP_SHARED | MAP_NORESERVE, memfd, 0);
  if (p == MAP_FAILED) return errno_error("mmap(memfd)");
  Mapping mapping(static_cast<std::byte*>(p), bytes);
  if (locking == Locking::kNever && (sys::call(SYS_munlock, p, bytes) != 0 ||
                                     sys::call(SYS_mprotect, p, bytes, protection) != 0)) {
    return errno_error("mapping memory that is not locked");
  }
  return mapping;
}

}  // namespace clan
