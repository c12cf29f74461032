#include "support/process.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <ostream>
#include <system_error>
#include <thread>
#include <vector>

#include "clan/detail/clock.h"

namespace clan::test {
namespace {

std::string proc_path(pid_t pid, const char* leaf) {
  return "/proc/" + (pid == 0 ? std::string("self") : std::to_string(pid)) + "/" + leaf;
}

std::size_t entries(const std::string& directory) {
  DIR* d = ::opendir(directory.c_str());
  if (d == nullptr) return 0;
  std::size_t n = 0;
  while (dirent* e = ::readdir(d)) {
    if (e->d_name[0] != '.') ++n;
  }
  ::closedir(d);
  return n;
}

// AddressSanitizer's allocator does not know of fork: a child inherits the locks that other threads
// of its parent held, and hangs at its first allocation of that size. Such a child is of no use.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAllocatorMayBeLocked = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool kAllocatorMayBeLocked = true;
#else
constexpr bool kAllocatorMayBeLocked = false;
#endif
#else
constexpr bool kAllocatorMayBeLocked = false;
#endif

void use_all_of_the_allocator() {
  std::thread fresh([] {  // whose caches are empty
    std::vector<std::unique_ptr<char[]>> blocks;
    for (std::size_t bytes = 16; bytes < (1u << 19); bytes += bytes < 1024 ? 16 : bytes / 8) {
      blocks.push_back(std::make_unique<char[]>(bytes));
    }
  });
  fresh.join();
}

// waitpid until the state changes or the time is over.
Exit reap(pid_t pid, int timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  for (int nap_us = 50;;) {
    int status = 0;
    pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) {
      if (WIFSIGNALED(status)) return {false, WTERMSIG(status), -1};
      if (WIFEXITED(status)) return {false, 0, WEXITSTATUS(status)};
    } else if (got < 0 && errno == ECHILD) {
      return {false, 0, -1};
    }
    if (monotonic_ns() >= deadline) return {true, 0, -1};
    ::usleep(static_cast<useconds_t>(nap_us));
    if (nap_us < 2000) nap_us *= 2;
  }
}

}  // namespace

std::string unique_name(const std::string& word) {
  static std::atomic<unsigned> counter{0};
  return "t" + std::to_string(::getpid()) + "-" + std::to_string(++counter) + "-" + word;
}

void PrintTo(const Exit& exit, std::ostream* out) {
  if (exit.timed_out) {
    *out << "still running";
  } else if (exit.signal != 0) {
    *out << "ended by " << ::strsignal(exit.signal);
  } else {
    *out << "returned " << exit.code;
  }
}

Process Process::start(const Body& body, unsigned watchdog_s) {
  std::fflush(nullptr);  // or the child prints the parent's buffers again
  const pid_t parent = ::getpid();
  for (;;) {
    Gate sane;
    Process p;
    p.pid_ = ::fork();
    if (p.pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(127);
      ::signal(SIGALRM, SIG_DFL);
      ::alarm(watchdog_s);
      if (kAllocatorMayBeLocked) use_all_of_the_allocator();
      sane.open();
      const int code = body();
      std::fflush(nullptr);
      ::_exit(code);
    }
    if (p.pid_ < 0) {
      std::perror("fork");
      std::abort();
    }
    if (!kAllocatorMayBeLocked || sane.wait(3000)) return p;
    (void)p.kill();  // and once more
  }
}

Process::Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    (void)kill();
    pid_ = std::exchange(other.pid_, -1);
  }
  return *this;
}
Process::~Process() { (void)kill(); }

Exit Process::wait(int timeout_ms) {
  if (pid_ < 0) return {};
  Exit exit = reap(pid_, timeout_ms);
  if (!exit.timed_out) pid_ = -1;
  return exit;
}

Exit Process::kill() {
  if (pid_ < 0) return {};
  ::kill(pid_, SIGKILL);
  return wait();
}

void Process::send_signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void Process::stop() {
  send_signal(SIGSTOP);
  siginfo_t info{};
  (void)::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOWAIT);
}

void Process::resume() { send_signal(SIGCONT); }

Gate::Gate() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE | EFD_NONBLOCK)) {
  if (!fd_) std::abort();
}

void Gate::open(std::uint64_t times) { (void)!::write(fd_.get(), &times, sizeof times); }

bool Gate::wait(int timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  for (;;) {
    std::uint64_t one = 0;
    if (::read(fd_.get(), &one, sizeof one) == static_cast<ssize_t>(sizeof one)) return true;
    const std::uint64_t now = monotonic_ns();
    if (now >= deadline) return false;
    pollfd p{fd_.get(), POLLIN, 0};
    (void)::poll(&p, 1, static_cast<int>((deadline - now) / 1'000'000 + 1));
  }
}

void KillAtStep::step() {
  if (++taken_ == n_) ::kill(::getpid(), SIGKILL);
}

std::size_t open_descriptors(pid_t pid) {
  const std::size_t n = entries(proc_path(pid, "fd"));
  return pid == 0 ? n - 1 : n;  // without the directory itself
}

std::size_t mapping_count(pid_t pid) {
  std::ifstream maps(proc_path(pid, "maps"));
  std::size_t n = 0;
  for (std::string line; std::getline(maps, line);)
    n += line.find("/memfd:clan-") != line.npos ? 1 : 0;
  return n;
}

std::uint64_t mapped_bytes(pid_t pid) {
  std::ifstream statm(proc_path(pid, "statm"));
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * 4096;
}

std::uint64_t resident_shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssShmem:", 0) == 0) return std::strtoull(line.c_str() + 9, nullptr, 10) * 1024;
  }
  return 0;
}

// Counts CLAN's files: tests that run beside this one have theirs.
std::size_t files_in_dev_shm() {
  std::size_t n = 0;
  std::error_code none;  // where there is no such directory
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    if (entry.path().filename().native().find("clan") != std::string::npos) ++n;
  }
  return n;
}

std::size_t writable_memfd_mappings(const std::string& prefix, std::span<SharedRange> out) {
  std::ifstream maps("/proc/self/maps");
  std::size_t n = 0;
  const std::string wanted = "/memfd:" + prefix;
  for (std::string line; n < out.size() && std::getline(maps, line);) {
    const std::size_t name = line.find(wanted);
    if (name == std::string::npos) continue;
    unsigned long begin = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, permissions) != 3) continue;
    if (permissions[1] != 'w' || permissions[3] != 's') continue;
    out[n++] = {reinterpret_cast<std::byte*>(begin), end - begin, line.substr(name + 7)};
  }
  return n;
}

bool eventually(const std::function<bool()>& condition, int timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  while (!condition()) {
    if (monotonic_ns() >= deadline) return condition();
    ::usleep(1000);
  }
  return true;
}

}  // namespace clan::test
