#include "process.h"

#include <clan/detail/log.h>
#include <clan/face/settings.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace clan::rpc {
namespace {

std::atomic<std::uint32_t> forks{0};

struct Process {
  Real real;
  Settings settings;
  Stage stage = Stage::kOptimized;
  std::mutex mutex;
  Context* context = nullptr;  // never destroyed: other threads may use it until the process ends
  std::uint32_t context_generation = 0;
  bool failed = false;  ///< no Context could be made in this generation
  RpcPage* page = nullptr;
  RpcPage private_page;
};

Process& process();

void before_fork() { process().mutex.lock(); }
void after_fork_in_parent() { process().mutex.unlock(); }
void after_fork_in_child() {
  Process& p = process();
  p.mutex.unlock();
  p.page = &p.private_page;  // the parent's is the parent's
  forks.fetch_add(1, std::memory_order_relaxed);
}

#ifdef CLAN_RPC_WRAPPED  // libclanrpc.a: see override.cc
extern "C" {
decltype(::clnt_vc_create) __real_clnt_vc_create;
decltype(::clnt_dg_create) __real_clnt_dg_create;
decltype(::svc_vc_create) __real_svc_vc_create;
decltype(::svc_dg_create) __real_svc_dg_create;
[[gnu::weak]] decltype(::xprt_register) __real_xprt_register;
}
Real find_real() {
  return {__real_clnt_vc_create, __real_clnt_dg_create, __real_svc_vc_create,
          __real_svc_dg_create,  __real_xprt_register,  nullptr};
}
#else
template <typename Function>
void find(Function* function, const char* name) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
Real find_real() {
  Real real;
  find(&real.clnt_vc_create, "clnt_vc_create");
  find(&real.clnt_dg_create, "clnt_dg_create");
  find(&real.svc_vc_create, "svc_vc_create");
  find(&real.svc_dg_create, "svc_dg_create");
  find(&real.xprt_register, "xprt_register");
  find(&real.xdr_bytes, "xdr_bytes");
  return real;
}
#endif

void read_settings(Process& p) {
  p.settings = settings_of_environment("remote calls go without CLAN");
  const char* stage = std::getenv("CLAN_RPC_STAGE");
  if (stage != nullptr && std::strcmp(stage, "direct") == 0) p.stage = Stage::kDirect;
  if (stage != nullptr && std::strcmp(stage, "reduced") == 0) p.stage = Stage::kReduced;
}

Process* make_process() {
  auto* p = new Process;
  p->real = find_real();
  read_settings(*p);
  p->page = &p->private_page;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  return p;
}

Process& process() {
  static Process* const p = make_process();
  return *p;
}

// A process that never meets another has no page: it keeps its descriptors as they were.
void share_page(Process& p) {
  const int fd = memfd_create(kRpcMemfdName, MFD_CLOEXEC);
  if (fd < 0) return;
  void* memory = MAP_FAILED;
  if (ftruncate(fd, 4096) == 0)
    memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    return;
  }
  auto* page = new (memory) RpcPage;
  page->pid = static_cast<std::uint32_t>(getpid());
  page->handles = p.page->handles.load(std::memory_order_relaxed);
  page->calls_stock = p.page->calls_stock.load(std::memory_order_relaxed);
  p.page = page;
}

}  // namespace

const Real& real() { return process().real; }
Stage stage() { return process().stage; }
bool disabled() { return process().settings.disable; }
bool calls_other_hosts() { return process().settings.network_options().enabled; }
// relaxed: a child has one thread
std::uint32_t generation() { return forks.load(std::memory_order_relaxed); }
RpcPage& counters() { return *process().page; }

Context* context() {
  Process& p = process();
  {
    std::lock_guard lock(p.mutex);
    const std::uint32_t now = generation();
    if (p.context_generation != now) {  // the parent's; its destructor is not for us
      p.context = nullptr;
      p.failed = false;
      p.context_generation = now;
    }
    if (p.context != nullptr || p.failed) return p.context;
  }
  ContextOptions options = p.settings.context_options();
  options.network.directory_port = 0;  // servers tell their port by the socket
  // Not under our mutex: fork() takes the engine's locks before it.
  auto made = create_context(std::move(options), "remote calls");
  std::lock_guard lock(p.mutex);
  if (p.context != nullptr) return p.context;  // another thread's
  if (!made) {
    CLAN_WARN("remote calls stay with the kernel: %s", made.error().message().c_str());
    p.failed = true;
    return nullptr;
  }
  p.context = new Context(std::move(*made));
  share_page(p);
  return p.context;
}

std::string marker_name(int socket_type, const sockaddr* address) {
  const char* kind = socket_type == SOCK_STREAM ? "tcp" : "udp";
  int port = 0;
  switch (address->sa_family) {
    case AF_INET: port = ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port); break;
    case AF_INET6: port = ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port); break;
    case AF_UNIX: {
      const char* path = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
      if (socket_type != SOCK_STREAM || path[0] != '/' || std::strlen(path) > 90) return {};
      return std::string("clan-rpc:") + path;
    }
    default: return {};
  }
  if (port == 0) return {};
  return std::string("clan-rpc:") + kind + ":" + std::to_string(port);
}

namespace {
socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}
}  // namespace

int bind_marker(const std::string& name) {
  if (name.empty()) return -1;
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

bool marker_is_there(const std::string& name) {
  if (name.empty()) return false;
  sockaddr_un address;
  const socklen_t length = abstract_address(name, &address);
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool there = connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0;
  close(fd);
  return there;
}

namespace {
bool same_host_address(const sockaddr_storage& a, const sockaddr* b) {
  if (a.ss_family != b->sa_family) return false;
  if (a.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, 16) == 0;
}
}  // namespace

bool is_local(int fd, int socket_type, const sockaddr* address, socklen_t length) {
  if (address->sa_family == AF_UNIX) return true;
  sockaddr_storage ours{}, theirs{};
  socklen_t ours_length = sizeof ours, theirs_length = sizeof theirs;
  if (socket_type == SOCK_STREAM) {
    return getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &ours_length) == 0 &&
           getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &theirs_length) == 0 &&
           same_host_address(ours, reinterpret_cast<sockaddr*>(&theirs));
  }
  // Which address would packets to it leave from? Its own, if this host has it.
  const int probe = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (probe < 0) return false;
  const bool local = connect(probe, address, length) == 0 &&
                     getsockname(probe, reinterpret_cast<sockaddr*>(&ours), &ours_length) == 0 &&
                     same_host_address(ours, address);
  close(probe);
  return local;
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  if (getrandom(&word, sizeof word, 0) != sizeof word) return 0;
  return word;
}

}  // namespace clan::rpc
