// A server process of the tests, and by which path calls go.
#pragma once

#include <gtest/gtest.h>
#include <omniORB4/omniInterceptors.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "suite.hh"

extern char** environ;

namespace suite {

/// The same tests run with CLAN_DISABLE=1: what they expect is what omniORB does over TCP.
inline bool stock() { return std::getenv("CLAN_DISABLE") != nullptr; }
inline std::string expected_path() { return stock() ? "giop:tcp:" : "giop:clan:"; }

/// The path of the last reply, e.g. "giop:tcp:127.0.0.1:4711".
inline std::string& last_path() {
  static thread_local std::string path;
  return path;
}
/// Replies of the whole process that came by the expected path, and by another: calls of the ORB's
/// own threads.
inline std::atomic<int>& replies(bool expected) {
  static std::atomic<int> counts[2];
  return counts[expected ? 1 : 0];
}
inline CORBA::Boolean note_path(omni::omniInterceptors::clientReceiveReply_T::info_T& info) {
  last_path() = info.peeraddress();
  ++replies(last_path().substr(0, expected_path().size()) == expected_path());
  return 1;
}

inline ::testing::AssertionResult went_by(const std::string& path) {
  if (last_path().substr(0, path.size()) == path) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "the last reply came by " << last_path() << ", not " << path;
}
#define EXPECT_PATH() EXPECT_TRUE(::suite::went_by(::suite::expected_path()))

class Process {
 public:
  /// `environment`: NAME=value, besides what there is.
  Process(std::vector<std::string> arguments, std::vector<std::string> environment) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    std::vector<char*> argv, envp;
    for (auto& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    for (auto& e : environment) envp.push_back(e.data());
    for (char** e = environ; *e != nullptr; ++e) envp.push_back(*e);
    envp.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    ::posix_spawn_file_actions_addclose(&actions, ends[0]);
    if (::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    out_ = ::fdopen(ends[0], "r");
  }
  Process(Process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), out_(std::exchange(other.out_, nullptr)) {}
  ~Process() {
    if (pid_ > 0) end(SIGKILL);
    if (out_ != nullptr) std::fclose(out_);
  }

  std::string line() {
    char text[16384] = {};
    if (std::fgets(text, sizeof text, out_) == nullptr) return {};
    text[std::strcspn(text, "\n")] = '\0';
    return text;
  }
  void signal(int number) { ::kill(pid_, number); }
  /// Sends SIGSTOP, and waits until it is stopped.
  void stop() {
    signal(SIGSTOP);
    int status;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  int end(int number) {
    signal(number);
    return wait();
  }
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  std::FILE* out_;
};

inline std::string program(const char* name) { return SUITE_PROGRAMS "/" + std::string(name); }

/// A server with the transport preloaded, and a TCP endpoint on the loopback.
inline Process start_server(std::vector<std::string> options = {},
                            std::vector<std::string> environment = {}) {
  options.insert(options.begin(), program("omniorb-suite-server"));
  options.insert(options.end(), {"-ORBendPoint", "giop:tcp:127.0.0.1:"});
  environment.insert(environment.end(), {"LD_PRELOAD=" SUITE_PRELOAD, "ORBclanEndPoint=1"});
  return Process(std::move(options), std::move(environment));
}

/// An ORB of this process, with the options of a command line.
class Orb {
 public:
  explicit Orb(std::vector<std::string> options = {}) {
    options.insert(options.begin(), "test");
    std::vector<char*> argv;
    for (auto& o : options) argv.push_back(o.data());
    int argc = static_cast<int>(argv.size());
    argv.push_back(nullptr);
    orb_ = CORBA::ORB_init(argc, argv.data());
    omniORB::getInterceptors()->clientReceiveReply.add(note_path);
  }
  ~Orb() {
    try {
      orb_->destroy();
    } catch (...) {
    }
  }
  CORBA::ORB_ptr operator->() { return orb_; }
  Suite::Server_ptr server(const std::string& reference) {
    CORBA::Object_var object = orb_->string_to_object(reference.c_str());
    return Suite::Server::_unchecked_narrow(object);
  }

 private:
  CORBA::ORB_var orb_;
};

}  // namespace suite
