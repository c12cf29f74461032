#include "system/shared_table.h"

#include <clan/detail/clock.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace clan::ofi {
namespace {

constexpr std::uint64_t kMagic = 0x31764174616c6331ULL;
constexpr std::uint64_t kLeastLines = 65536;
constexpr std::uint64_t kMostLines = std::uint64_t{1} << 24;
constexpr std::size_t kMostName = 200;  ///< a memfd's may have 249
constexpr std::int64_t kOpenMs = 10'000;

class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string memfd_name(const std::string& name) {
  struct stat net {};
  (void)::stat("/proc/self/ns/net", &net);
  return "clan-ofi-av:" + std::to_string(net.st_ino) + ":" + name;
}

std::string link_of(const std::string& path) {
  char target[512];
  const ssize_t n = ::readlink(path.c_str(), target, sizeof target);
  return n < 0 ? std::string() : std::string(target, static_cast<std::size_t>(n));
}

// One process of a user opens at a time, so that two do not make the same table. The name is the
// lock: the kernel releases it when the process dies.
File lock_opening() {
  File socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = "clan-ofi-av." + std::to_string(::geteuid());
  std::memcpy(address.sun_path + 1, text.data(), text.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const std::uint64_t deadline = deadline_after_ms(kOpenMs);
  while (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE || monotonic_ns() >= deadline) return File();
    ::usleep(1000);
  }
  return socket;
}

// Looks for a table's memfd in all processes of this user.
File find_memfd(const std::string& name, int flags) {
  const std::string wanted = "/memfd:" + name + " (deleted)";
  const auto close_dir = [](DIR* d) { ::closedir(d); };
  using Directory = std::unique_ptr<DIR, decltype(close_dir)>;
  Directory proc(::opendir("/proc"), close_dir);
  if (proc == nullptr) return File();
  while (const dirent* process = ::readdir(proc.get())) {
    if (process->d_name[0] < '0' || process->d_name[0] > '9') continue;
    const std::string path = std::string("/proc/") + process->d_name;
    struct stat owner {};
    if (::stat(path.c_str(), &owner) != 0 || owner.st_uid != ::geteuid()) continue;
    Directory open_files(::opendir((path + "/fd").c_str()), close_dir);
    if (open_files == nullptr) continue;
    while (const dirent* entry = ::readdir(open_files.get())) {
      const std::string link = path + "/fd/" + entry->d_name;
      if (entry->d_name[0] == '.' || link_of(link) != wanted) continue;
      File found(::open(link.c_str(), flags | O_CLOEXEC));
      struct stat file {};
      // The descriptor may have become another one meanwhile.
      if (found.get() < 0 || link_of("/proc/self/fd/" + std::to_string(found.get())) != wanted)
        continue;
      if (::fstat(found.get(), &file) == 0 && file.st_uid == ::geteuid()) return found;
    }
  }
  return File();
}

// A lock of the open file: other processes and other openings in this one wait.
class Locked {
 public:
  Locked(int fd, short type) : fd_(fd) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    int rc;
    do rc = ::fcntl(fd_, F_OFD_SETLKW, &lock);
    while (rc != 0 && errno == EINTR);
    held_ = rc == 0;
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
  ~Locked() {
    struct flock lock {};
    lock.l_type = F_UNLCK;
    lock.l_whence = SEEK_SET;
    if (held_) (void)::fcntl(fd_, F_OFD_SETLK, &lock);
  }
  bool held() const { return held_; }

 private:
  int fd_;
  bool held_ = false;
};

}  // namespace

int SharedTable::make(const std::string& name, std::size_t count) {
  File file(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) return -errno;
  const std::uint64_t capacity =
      std::bit_ceil(std::clamp<std::uint64_t>(count, kLeastLines, kMostLines));
  const Header header{kMagic, capacity, 0, 1, 0, {}};
  if (::ftruncate(file.get(), static_cast<off_t>(bytes_for(capacity))) != 0 ||
      ::pwrite(file.get(), &header, sizeof header, 0) != sizeof header ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return -errno;
  }
  return file.release();
}

int SharedTable::open(const std::string& name, bool read_only, std::size_t count,
                      std::unique_ptr<SharedTable>* table) {
  if (name.empty() || name.size() > kMostName) return name.empty() ? -FI_EINVAL : -ENAMETOOLONG;
  if (::access("/proc/self/fd", R_OK | X_OK) != 0) return -FI_ENOSYS;  // nobody could be found
  const File opening = lock_opening();
  if (opening.get() < 0) return -FI_ETIMEDOUT;
  const std::string full_name = memfd_name(name);
  File file = find_memfd(full_name, read_only ? O_RDONLY : O_RDWR);
  if (file.get() < 0) {
    if (read_only) return -FI_ENOENT;
    const int made = make(full_name, count);
    if (made < 0) return made;
    file = File(made);
  }
  std::unique_ptr<SharedTable> opened(new (std::nothrow) SharedTable);
  if (opened == nullptr) return -FI_ENOMEM;
  if (int rc = opened->map(file.get(), read_only); rc != 0) return rc;
  file.release();
  *table = std::move(opened);
  return 0;
}

// The descriptor is the table's from here, where it succeeds.
int SharedTable::map(int fd, bool read_only) {
  Header header{};
  struct stat file {};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (::fstat(fd, &file) != 0 || ::pread(fd, &header, sizeof header, 0) != sizeof header)
    return -FI_EIO;
  if (header.magic != kMagic || header.capacity == 0 || header.capacity > kMostLines ||
      static_cast<std::size_t>(file.st_size) != bytes_for(header.capacity) ||
      (::fcntl(fd, F_GET_SEALS) & kSeals) != kSeals) {
    return -FI_EINVAL;
  }
  bytes_ = bytes_for(header.capacity);
  void* const mapped =
      ::mmap(nullptr, bytes_, read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return -errno;
  map_ = static_cast<char*>(mapped);
  capacity_ = header.capacity;
  read_only_ = read_only;
  fd_ = fd;
  return 0;
}

SharedTable::~SharedTable() {
  if (map_ != nullptr) ::munmap(map_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::uint64_t SharedTable::lines() const {
  // PAIR ofi.shared_table: sees the lines, also of a process that died in the middle
  return std::min(header().count.load(std::memory_order_acquire), capacity_);
}

int SharedTable::insert(const SocketAddress& address, fi_addr_t* number) {
  const Locked lock(fd_, F_WRLCK);
  if (!lock.held()) return -FI_EIO;
  const std::uint64_t count = lines();
  // relaxed: under the file's lock
  std::uint64_t i = header().freed.load(std::memory_order_relaxed) > 0 ? 0 : count;
  while (i < count && line(i).used.load(std::memory_order_relaxed) != 0) ++i;
  if (i == capacity_) return -FI_ENOSPC;
  const std::uint32_t next = header().generation.load(std::memory_order_relaxed) + 1;
  Line& fresh = line(i);
  fresh.length = address.length;
  fresh.changed = next;
  std::memcpy(fresh.address, &address.storage,
              std::min<std::size_t>(address.length, sizeof fresh.address));
  static_cast<fi_addr_t*>(numbers())[i] = i;
  // Each is stored behind the one before: this process may die between two of them.
  fresh.used.store(1, std::memory_order_release);  // PAIR ofi.shared_table: publishes the line
  if (i == count) {
    // PAIR ofi.shared_table: a used line more
    header().count.store(count + 1, std::memory_order_release);
  } else {
    header().freed.fetch_sub(1, std::memory_order_release);  // PAIR ofi.shared_table: it is used
  }
  // PAIR ofi.shared_table: there is something new
  header().generation.store(next, std::memory_order_release);
  *number = i;
  return 0;
}

int SharedTable::remove(fi_addr_t number) {
  const Locked lock(fd_, F_WRLCK);
  if (!lock.held()) return -FI_EIO;
  // relaxed: under the file's lock
  if (number >= lines() || line(number).used.load(std::memory_order_relaxed) == 0)
    return -FI_EINVAL;
  const std::uint32_t next = header().generation.load(std::memory_order_relaxed) + 1;
  line(number).changed = next;
  // PAIR ofi.shared_table: changed, and not used any more
  line(number).used.store(0, std::memory_order_release);
  header().freed.fetch_add(1, std::memory_order_release);  // PAIR ofi.shared_table: behind `used`
  // PAIR ofi.shared_table: there is something new
  header().generation.store(next, std::memory_order_release);
  return 0;
}

std::uint32_t SharedTable::changes(
    std::uint32_t seen, const std::function<void(fi_addr_t, const SocketAddress*)>& f) const {
  const Locked lock(fd_, F_RDLCK);
  if (!lock.held()) return seen;
  // PAIR ofi.shared_table: sees the changes up to it
  const std::uint32_t now = header().generation.load(std::memory_order_acquire);
  const std::uint64_t count = lines();
  for (std::uint64_t i = 0; i < count; ++i) {
    const Line& l = line(i);
    if (static_cast<std::int32_t>(l.changed - seen) <= 0) continue;
    const SocketAddress address =
        l.used.load(std::memory_order_acquire) != 0  // PAIR ofi.shared_table: sees the line
            ? read_address(l.address, std::min<std::size_t>(l.length, sizeof l.address))
            : SocketAddress{};
    f(i, address.valid() ? &address : nullptr);
  }
  return now;
}

}  // namespace clan::ofi
