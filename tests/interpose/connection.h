// What tests of the interposer share: a TCP connection between this process and a child, and
// whether it has moved into shared memory. The test programs run with the library preloaded, and
// some without it too.
#pragma once

#include <arpa/inet.h>
#include <clan/pipe.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace clan::test {

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Listens on a port that is free.
inline int listener() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(0);
  EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd, 64), 0);
  return fd;
}
inline std::uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}
inline int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

/// What `in_child` returns is the exit code. The child ends with the thread that made it, and after
/// `seconds`.
template <typename F>
pid_t child(F&& in_child, unsigned seconds = 60) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(seconds);
    ::_exit(in_child());
  }
  return pid;
}
inline int result_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/// A pipe's shared page in this process, unmapped by nobody.
inline PipePage* page_of(int memfd) {
  void* memory = ::mmap(nullptr, sizeof(PipePage), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<PipePage*>(memory);
}
/// Descriptors of pipes that this process has.
inline std::vector<int> pipes() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    if (std::filesystem::read_symlink(entry, none) != "/memfd:clan-pipe (deleted)") continue;
    found.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return found;
}
/// Sent by the pipes that this process has open.
inline std::uint64_t bytes_by_shared_memory() {
  std::uint64_t sum = 0;
  for (const int fd : pipes()) {
    PipePage* page = page_of(fd);
    if (page == nullptr) continue;
    for (const auto& end : page->ends) sum += end.sender.bytes.load();
    ::munmap(page, sizeof *page);
  }
  return sum;
}

inline int echo(int fd) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return n == 0 ? 0 : 1;
    if (::write(fd, buffer, static_cast<std::size_t>(n)) != n) return 2;
  }
}

/// `rounds` messages there and back.
inline void ping(int fd, int rounds) {
  std::vector<char> out(1000), in(1000);
  for (int i = 0; i < rounds; ++i) {
    std::memset(out.data(), i, out.size());
    ASSERT_EQ(::write(fd, out.data(), out.size()), 1000);
    ASSERT_EQ(::recv(fd, in.data(), in.size(), MSG_WAITALL), 1000);
    ASSERT_EQ(in, out);
  }
}

/// A child that sends back all it gets on one connection, and our end of that.
struct Echo {
  pid_t server = -1;
  int fd = -1;
  Echo() {
    const int listening = listener();
    server = child([&] { return echo(::accept(listening, nullptr, nullptr)); });
    fd = connect_to(port_of(listening));
    ::close(listening);
  }
  ~Echo() {
    ::close(fd);
    EXPECT_EQ(result_of(server), 0);
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
};

}  // namespace clan::test
