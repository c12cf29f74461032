// Processes that share a connection, and may not look into each other's /proc any more, by which
// one finds the pipe that the other has made.
#include <sched.h>
#include <sys/prctl.h>

#include "helpers.h"

namespace clan::test {
namespace {

constexpr uid_t kNobody = 65534;
constexpr int kCalls = 60;

struct Change {
  const char* name;
  bool (*make)();
  bool as_root = true;
};
const Change kChanges[] = {
    {"setuid", [] { return ::setuid(kNobody) == 0; }},
    {"setgid", [] { return ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0; }},
    {"seteuid", [] { return ::seteuid(kNobody) == 0; }},
    {"setegid", [] { return ::setegid(kNobody) == 0 && ::seteuid(kNobody) == 0; }},
    {"setreuid", [] { return ::setreuid(kNobody, kNobody) == 0; }},
    {"setregid", [] { return ::setregid(kNobody, kNobody) == 0 && ::setuid(kNobody) == 0; }},
    {"setresuid", [] { return ::setresuid(kNobody, kNobody, kNobody) == 0; }},
    {"setresgid",
     [] { return ::setresgid(kNobody, kNobody, kNobody) == 0 && ::setuid(kNobody) == 0; }},
    {"by number", [] { return ::syscall(SYS_setresuid, kNobody, kNobody, kNobody) == 0; }},
    {"chroot", [] { return ::chroot(testing::TempDir().c_str()) == 0; }},
    {"setns",
     [] {
       const int own = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
       const bool set = ::setns(own, CLONE_NEWNET) == 0;
       return ::close(own) == 0 && set;
     }},
    {"not dumpable", [] { return ::prctl(PR_SET_DUMPABLE, 0) == 0; }, false},
};

/// As nobody, a user that the kernel lets read only its own processes.
bool become_nobody() {
  return ::geteuid() != 0 ||
         (::setresgid(kNobody, kNobody, kNobody) == 0 &&
          ::setresuid(kNobody, kNobody, kNobody) == 0 && ::prctl(PR_SET_DUMPABLE, 1) == 0);
}

int answer(int fd) {
  char buffer[1000];
  for (int i = 0; i < kCalls; ++i) {
    if (::recv(fd, buffer, sizeof buffer, MSG_WAITALL) != 1000) return 1;
    if (::write(fd, buffer, sizeof buffer) != 1000) return 2;
  }
  return 0;
}

enum class When { kBeforeTheFork, kBehindTheOthersCalls, kInTheOther };

// A child of the process uses the connection first, and moves it if it may.
void share_with_child(const Change& change, When when) {
  SCOPED_TRACE(change.name + std::string(" ") + std::to_string(static_cast<int>(when)));
  Peer peer(
      [&](int fd) {
        if (!change.as_root && !become_nobody()) return 5;
        if (when == When::kBeforeTheFork && !change.make()) return 3;
        const pid_t other = child([&] {
          if (when == When::kInTheOther && !change.make()) return 3;
          return answer(fd);
        });
        if (result_of(other) != 0) return 4;
        if (when == When::kBehindTheOthersCalls && !change.make()) return 3;
        return echo(fd);
      },
      false);
  ping(peer.fd, kCalls);
  ping(peer.fd, kCalls);
}

TEST(Identity, OfAProcessThatSharesAConnectionMayChange) {
  for (const Change& change : kChanges) {
    if (change.as_root && ::geteuid() != 0) continue;
    for (const When when : {When::kBeforeTheFork, When::kBehindTheOthersCalls, When::kInTheOther}) {
      share_with_child(change, when);
    }
  }
}

}  // namespace
}  // namespace clan::test
