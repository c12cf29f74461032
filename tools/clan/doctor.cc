// `clan doctor`: asks the kernel by trying, not by reading version numbers, and says for each
// answer what CLAN does with it. Changes nothing; every child, file and mapping is gone when it
// returns.
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "commands.h"

// Newer than the headers of some supported systems.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace clan::tool {
namespace {

enum class State { kOk, kLimited, kAbsent };

struct Finding {
  std::string name;
  State state = State::kAbsent;
  std::string seen = {};    // what was measured or read
  std::string effect = {};  // what CLAN does about it
  bool fatal = false;       // CLAN cannot work at all on this machine
};

std::string_view to_string(State state) {
  switch (state) {
    case State::kOk: return "ok";
    case State::kLimited: return "limited";
    case State::kAbsent: return "absent";
  }
  return "";
}

std::string errno_text() { return std::strerror(errno); }

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// First line of a file, empty if it cannot be read.
std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<long> read_number(const std::string& path) {
  std::ifstream file(path);
  long value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

double average_us(int rounds, const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < rounds; ++i) call();
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / rounds;
}

Finding check_membarrier() {
  Finding f{.name = "membarrier",
            .effect =
                "without the asymmetric fence a receiver that goes to sleep is woken through a "
                "full fence in every send: correct, slower"};
  const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (commands < 0) {
    f.seen = "membarrier: " + errno_text();
    return f;
  }
  constexpr long kNeeded =
      MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
  if ((commands & kNeeded) != kNeeded) {
    f.seen = fmt::format("commands {:#x}: no global expedited barrier", commands);
    return f;
  }
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0) {
    f.seen = "registering for the global expedited barrier: " + errno_text();
    return f;
  }
  // With a thread at work on another core, so that there is a core to interrupt.
  std::atomic<bool> stop = false;
  std::thread busy([&stop] {
    while (!stop.load(std::memory_order_relaxed)) std::this_thread::yield();
  });
  const double us =
      average_us(200, [] { syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0); });
  stop.store(true, std::memory_order_relaxed);  // relaxed: nothing else is handed over
  busy.join();
  f.state = us < 50 ? State::kOk : State::kLimited;
  f.seen = fmt::format("global expedited, {:.1f} us", us);
  f.effect = us < 50 ? "a receiver pays one barrier before it sleeps; senders pay no fence"
                     : "the barrier is slow here: going to sleep costs that much";
  return f;
}

struct Buffer {
  pid_t pid;
  std::uint64_t address;
  std::uint64_t expected;
};

/// Reads `there.expected` from another process and writes it back. 0, or the errno that came.
int copy_across(const Buffer& there) {
  std::uint64_t value = 0;
  iovec local{&value, sizeof value};
  iovec remote{reinterpret_cast<void*>(there.address), sizeof value};
  if (process_vm_readv(there.pid, &local, 1, &remote, 1, 0) != sizeof value) return errno;
  if (value != there.expected) return EIO;
  if (process_vm_writev(there.pid, &local, 1, &remote, 1, 0) != sizeof value) return errno;
  return 0;
}

// The two directions differ: under yama's scope 1 a process may reach its own children only, and
// two programs that talk to each other are seldom parent and child.
Finding check_process_vm() {
  Finding f{.name = "process_vm",
            .effect =
                "large transfers from memory outside CLAN's segments go through the ring in "
                "pieces (two copies)"};
  static std::uint64_t target = 0;
  int to_parent[2];
  int to_child[2];
  if (pipe2(to_parent, O_CLOEXEC) != 0) {
    f.seen = "pipe: " + errno_text();
    return f;
  }
  Descriptor parent_reads(to_parent[0]);
  Descriptor parent_end(to_parent[1]);
  if (pipe2(to_child, O_CLOEXEC) != 0) {
    f.seen = "pipe: " + errno_text();
    return f;
  }
  Descriptor child_end(to_child[1]);
  Descriptor child_reads(to_child[0]);

  target = 0x70617265;
  const Buffer parent_buffer{getpid(), reinterpret_cast<std::uint64_t>(&target), target};
  const pid_t child = fork();
  if (child < 0) {
    f.seen = "fork: " + errno_text();
    return f;
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    child_end.reset();
    const int error = copy_across(parent_buffer);
    target = 0x6368696c;
    char byte = 0;
    const bool told = write(to_parent[1], &error, sizeof error) == sizeof error;
    // Stay until the parent has tried, or is gone.
    _exit(told && read(to_child[0], &byte, 1) == 0 ? 0 : 1);
  }
  parent_end.reset();
  int upward = EPIPE;
  if (read(parent_reads.get(), &upward, sizeof upward) != sizeof upward) upward = EPIPE;
  const int downward =
      copy_across({child, reinterpret_cast<std::uint64_t>(&target), std::uint64_t{0x6368696c}});
  child_end.reset();
  waitpid(child, nullptr, 0);

  if (upward == 0 && downward == 0) {
    f.state = State::kOk;
    f.seen = "read and write both ways between two processes";
    f.effect = "large transfers are one copy, straight between the two programs' memory";
  } else if (downward == 0) {
    f.state = State::kLimited;
    f.seen = fmt::format("parent to child only; the other way: {}", std::strerror(upward));
  } else {
    f.seen = fmt::format("parent to child: {}; child to parent: {}", std::strerror(downward),
                         upward == 0 ? "allowed" : std::strerror(upward));
  }
  return f;
}

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
  // The chosen word of the file stands in [brackets].
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

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{} KB", limit / 1024);
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

/// Cores the cgroup's CPU quota allows, the smallest on the way to the root; none if not limited.
std::optional<double> cgroup_cpus() {
  std::optional<double> least;
  const auto consider = [&least](double quota, double period) {
    if (quota > 0 && period > 0) least = std::min(least.value_or(1e9), quota / period);
  };
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (!line.starts_with("0::")) continue;
    for (std::string path = line.substr(3);; path.resize(path.rfind('/'))) {
      std::ifstream file("/sys/fs/cgroup" + path + "/cpu.max");
      double quota = 0;  // stays 0 when the file says "max"
      double period = 0;
      if (file >> quota >> period) consider(quota, period);
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  const auto v1_quota = read_number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const auto v1_period = read_number("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1_quota && v1_period) {
    consider(static_cast<double>(*v1_quota), static_cast<double>(*v1_period));
  }
  return least;
}

Finding check_cpus() {
  Finding f{.name = "cpus"};
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  const long allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : online;
  const std::optional<double> quota = cgroup_cpus();
  const double usable = std::min(static_cast<double>(allowed), quota.value_or(1e9));
  f.seen = fmt::format("{} online, {} allowed here, cgroup limit {}", online, allowed,
                       quota ? fmt::format("{:.2f} cores", *quota) : "none");
  f.state = usable >= 2 ? State::kOk : State::kLimited;
  f.effect = usable >= 2 ? "both ends can poll: round trips in the order of a cache-line transfer"
                         : "less than two cores: spinning cannot help, waits go to sleep at once";
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

Finding check_ptrace_scope() {
  Finding f{.name = "ptrace_scope"};
  const auto scope = read_number("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) {
    f.state = State::kOk;
    f.seen = scope ? "yama 0" : "no yama";
    f.effect = "programs of one user may copy from each other; see process_vm for what was tried";
    return f;
  }
  f.state = State::kLimited;
  f.seen = fmt::format("yama {}", *scope);
  f.effect = *scope == 1
                 ? "only a parent may copy from its child, unless the peer allows it by prctl "
                   "or one has CAP_SYS_PTRACE: large transfers else go through the ring"
                 : "only CAP_SYS_PTRACE may copy: large transfers else go through the ring";
  return f;
}

/// Sends a descriptor to ourselves over an abstract UNIX socket. Empty when all of it works.
std::string try_abstract_socket() {
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const Descriptor client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!listener.ok() || !client.ok()) return "socket(AF_UNIX): " + errno_text();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("clan-doctor-{}", getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // [0] stays 0: abstract
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0)
    return "bind to an abstract name: " + errno_text();
  if (listen(listener.get(), 1) != 0) return "listen: " + errno_text();
  if (connect(client.get(), generic, length) != 0) return "connect: " + errno_text();
  const Descriptor server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server.ok()) return "accept: " + errno_text();

  ucred peer{};
  socklen_t peer_length = sizeof peer;
  if (getsockopt(server.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_length) != 0 ||
      peer.pid != getpid()) {
    return "SO_PEERCRED does not name the peer";
  }
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int sent = listener.get();
  std::memcpy(CMSG_DATA(header), &sent, sizeof sent);
  if (sendmsg(client.get(), &message, 0) != 1) return "passing a descriptor: " + errno_text();
  if (recvmsg(server.get(), &message, MSG_CMSG_CLOEXEC) != 1) return "recvmsg: " + errno_text();
  header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return "the descriptor did not arrive";
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof received);
  close(received);
  return "";
}

Finding check_unix_sockets() {
  Finding f{.name = "unix_sockets"};
  const std::string trouble = try_abstract_socket();
  if (trouble.empty()) {
    f.state = State::kOk;
    f.seen = "abstract names, SO_PEERCRED, descriptor passing";
    f.effect = "peers of one network namespace find each other without files or a daemon";
  } else {
    f.seen = trouble;
    f.effect = "processes cannot meet: CLAN cannot be used here";
    f.fatal = true;
  }
  return f;
}

#ifdef CLAN_LIBFABRIC
Finding check_libfabric() {
  const ProviderState provider = look_for_provider();
  return {.name = "libfabric",
          .state = provider.found ? State::kOk : State::kAbsent,
          .seen = provider.seen,
          .effect = provider.effect};
}
#endif

#ifdef CLAN_OMNIORB
Finding check_omniorb() {
  const OrbState orb = look_for_orb();
  return {.name = "omniORB", .state = orb.found ? State::kOk : State::kAbsent, .seen = orb.seen, .effect = orb.effect};
}
#endif

#ifdef CLAN_SUNRPC
Finding check_sunrpc() {
  const ProviderState library = look_for_rpc();
  return {.name = "sunrpc",
          .state = library.found ? State::kOk : State::kAbsent,
          .seen = library.seen,
          .effect = library.effect};
}
#endif

#ifdef CLAN_MPI
Finding check_open_mpi() {
  const ProviderState component = look_for_mpi();
  return {.name = "Open MPI",
          .state = component.found ? State::kOk : State::kAbsent,
          .seen = component.seen,
          .effect = component.effect};
}
#endif

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

void print_json(const std::vector<Finding>& findings, bool usable) {
  fmt::print("{{\"usable\": {}, \"findings\": [", usable);
  const char* separator = "\n";
  for (const Finding& f : findings) {
    fmt::print("{}  {{\"name\": {}, \"state\": \"{}\", \"seen\": {}, \"effect\": {}}}", separator,
               json_string(f.name), to_string(f.state), json_string(f.seen), json_string(f.effect));
    separator = ",\n";
  }
  fmt::print("\n]}}\n");
}

void print_text(const std::vector<Finding>& findings, bool usable) {
  for (const Finding& f : findings) {
    fmt::print("{:<14} {:<8} {}\n{:<23} {}\n", f.name, to_string(f.state), f.seen, "", f.effect);
  }
  fmt::print("\n{}\n", usable ? "CLAN can be used on this machine."
                              : "CLAN cannot be used on this machine: see what is absent above.");
}

}  // namespace

int doctor(bool json) {
  const std::vector<Finding> findings{
      check_memfd(),      check_unix_sockets(), check_membarrier(), check_process_vm(),
      check_cpus(),       check_ptrace_scope(), check_memlock(),    check_max_map_count(),
      check_huge_pages(), check_userfaultfd(),
#ifdef CLAN_LIBFABRIC
      check_libfabric(),
#endif
#ifdef CLAN_OMNIORB
      check_omniorb(),
#endif
#ifdef CLAN_SUNRPC
      check_sunrpc(),
#endif
#ifdef CLAN_MPI
      check_open_mpi(),
#endif
  };
  const bool usable =
      std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.fatal; });
  json ? print_json(findings, usable) : print_text(findings, usable);
  return usable ? 0 : 1;
}

}  // namespace clan::tool
