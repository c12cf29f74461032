// What the tests of libclanrpc share: servers as processes of their own, handles, and how calls
// travelled.
//
// The same tests run twice: with libclanrpc.so in LD_PRELOAD, and stock. What they expect of a
// call's outcome is the same; how it travelled is not.
#pragma once

#include <arpa/inet.h>
#include <clan/face/rpc_face.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "every.h"

namespace clan::test {

/// This process has libclanrpc.so.
inline bool preloaded() {
  const char* list = std::getenv("LD_PRELOAD");
  return list != nullptr && std::strstr(list, "libclanrpc") != nullptr;
}

/// The counters of a process; null: it has none, so that nothing of it has gone over CLAN.
inline std::shared_ptr<const RpcPage> page_of(pid_t pid) {
  const std::string directory = "/proc/" + std::to_string(pid) + "/fd";
  DIR* entries = opendir(directory.c_str());
  if (entries == nullptr) return nullptr;
  std::shared_ptr<const RpcPage> page;
  while (const dirent* entry = readdir(entries)) {
    char target[256] = {};
    const std::string link = directory + "/" + entry->d_name;
    if (readlink(link.c_str(), target, sizeof target - 1) < 0) continue;
    if (std::strstr(target, kRpcMemfdName) == nullptr) continue;
    const int fd = open(link.c_str(), O_RDONLY | O_CLOEXEC);
    void* memory = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) continue;
    page = {static_cast<const RpcPage*>(memory),
            [](const RpcPage* p) { munmap(const_cast<RpcPage*>(p), 4096); }};
    if (page->pid == static_cast<std::uint32_t>(pid)) break;
    page.reset();
  }
  closedir(entries);
  return page;
}

struct Paths {
  std::uint64_t clan = 0;
  std::uint64_t stock = 0;
};

/// Calls of this process so far.
inline Paths paths() {
  const auto page = page_of(getpid());
  return page ? Paths{page->calls_clan, page->calls_stock} : Paths{};
}

inline std::uint64_t served_by_clan(pid_t server) {
  const auto page = page_of(server);
  return page ? page->served_clan.load() : 0;
}

/// A server of every.x. Killed at the end.
class Server {
 public:
  enum class Library { kAsWe, kNo };
  explicit Server(std::vector<std::string> arguments, Library library = Library::kAsWe,
                  const char* program = SUNRPC_SERVER) {
    int out[2];
    if (pipe2(out, O_CLOEXEC) != 0) std::abort();
    std::vector<char*> argv = {const_cast<char*>(program)};
    for (auto& word : arguments) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<char*> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      if (library == Library::kAsWe || std::strncmp(*e, "LD_PRELOAD=", 11) != 0)
        environment.push_back(*e);
    }
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environment.data()) != 0)
      std::abort();
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    FILE* text = fdopen(out[0], "r");
    if (std::fscanf(text, "ready tcp=%d udp=%d", &tcp_, &udp_) != 2)
      ADD_FAILURE() << "the server did not start";
    std::fclose(text);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() { stop(SIGKILL); }

  void stop(int signal_number) {
    if (pid_ <= 0) return;
    kill(pid_, signal_number);
    kill(pid_, SIGCONT);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int tcp() const { return tcp_; }
  int udp() const { return udp_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int tcp_ = 0;
  int udp_ = 0;
};

struct Destroyed {
  void operator()(CLIENT* client) const {
    if (client->cl_auth != nullptr) auth_destroy(client->cl_auth);
    clnt_destroy(client);
  }
};
using Handle = std::unique_ptr<CLIENT, Destroyed>;

inline sockaddr_in at_port(int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  return to;
}

inline Handle by_tcp(int port, rpcvers_t version = EVERY_NEW, rpcprog_t program = EVERY) {
  sockaddr_in to = at_port(port);
  int fd = RPC_ANYSOCK;
  return Handle(clnttcp_create(&to, program, version, &fd, 0, 0));
}

inline Handle by_udp(int port, rpcvers_t version = EVERY_NEW) {
  sockaddr_in to = at_port(port);
  int fd = RPC_ANYSOCK;
  return Handle(clntudp_create(&to, EVERY, version, timeval{1, 0}, &fd));
}

inline Handle by_unix(const std::string& path, rpcvers_t version = EVERY_NEW) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, path.c_str(), sizeof to.sun_path - 1);
  int fd = RPC_ANYSOCK;
  return Handle(clntunix_create(&to, EVERY, version, &fd, 0, 0));
}

template <typename Function>
xdrproc_t xdr_of(Function* function) {
  return reinterpret_cast<xdrproc_t>(reinterpret_cast<void (*)()>(function));
}

constexpr timeval kLong{25, 0};

/// Calls until they go over CLAN. With the stock library: once. On a busy machine a server is late
/// again and again, and is asked at growing distances.
inline void warm_up(CLIENT* client) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < end) {
    const std::uint64_t before = paths().clan;
    ASSERT_EQ(
        clnt_call(client, NULLPROC, xdr_of(xdr_void), nullptr, xdr_of(xdr_void), nullptr, kLong),
        RPC_SUCCESS)
        << clnt_sperror(client, "null");
    if (!preloaded() || paths().clan > before) return;
    usleep(1000);
  }
  FAIL() << "calls do not go over CLAN";
}

/// Expects that the calls since `before` went over CLAN, all of them: and none of them when stock.
inline void expect_clan(const Paths& before, std::uint64_t calls) {
  if (!preloaded()) return;
  EXPECT_EQ(paths().clan - before.clan, calls);
  EXPECT_EQ(paths().stock, before.stock);
}

}  // namespace clan::test
