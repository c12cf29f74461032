// What `clan doctor` has found of one facility, and the checks. Each asks the kernel by trying;
// every child, file and mapping is gone when it returns.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace clan::tool {

enum class State { kOk, kLimited, kAbsent };

struct Finding {
  std::string name;
  State state = State::kAbsent;
  std::string seen = {};    // what was measured or read
  std::string effect = {};  // what CLAN does about it
  bool fatal = false;       // CLAN cannot work at all on this machine
};

inline std::string errno_text() { return std::strerror(errno); }
/// First line of a file, empty if it cannot be read.
inline std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}
inline std::optional<long> read_number(const std::string& path) {
  std::ifstream file(path);
  long value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

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

// memory.cc
Finding check_memfd();
Finding check_huge_pages();
Finding check_memlock();
Finding check_userfaultfd();
Finding check_max_map_count();
// processes.cc
Finding check_membarrier();
Finding check_process_vm();
Finding check_ptrace_scope();
Finding check_cpus();
// scheduler.cc
/// What waiting costs: tells which kind of machine this is.
Finding check_scheduler();
// sockets.cc
Finding check_unix_sockets();
// network.cc
/// Packets to other hosts, or to that one.
Finding check_af_xdp(const std::string& host);
/// Whether CLAN answers there, asked as the settings say, and if not why.
Finding check_far_host(const std::string& host);
/// Whose the UDP port is at which other hosts ask for programs of this user.
Finding check_network_port();
/// Whether `clan ip` can make its device.
Finding check_tun();

}  // namespace clan::tool
