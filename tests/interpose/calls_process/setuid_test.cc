// Programs that the dynamic loader starts without the library, whatever the environment says.
#include <sys/stat.h>

#include "helpers.h"

namespace clan::test {
namespace {

/// A shell that belongs to another user, where this one may give files away, and is setuid. The
/// loader then ignores LD_PRELOAD. (It does not if the file is the process's own; no test covers
/// that.)
class SetuidShell {
 public:
  SetuidShell() {
    std::filesystem::copy_file("/bin/sh", path_, std::filesystem::copy_options::overwrite_existing);
    constexpr uid_t kNobody = 65534;
    EXPECT_TRUE(::geteuid() != 0 || ::chown(path_.c_str(), kNobody, kNobody) == 0);
    EXPECT_EQ(::chmod(path_.c_str(), S_ISUID | 0755), 0);
  }
  ~SetuidShell() { ::unlink(path_.c_str()); }
  SetuidShell(const SetuidShell&) = delete;
  SetuidShell& operator=(const SetuidShell&) = delete;

  const char* path() const { return path_.c_str(); }

 private:
  std::string path_ = testing::TempDir() + "clan-setuid-shell-" + std::to_string(::getpid());
};

TEST(Exec, OfASetuidProgramGoesOnByTcp) {
  const SetuidShell shell;
  Peer peer([&](int fd) {
    constexpr int kInScript = 9;
    if (::dup2(fd, kInScript) != kInScript || (fd != kInScript && ::close(fd) != 0)) return 1;
    ::execl(shell.path(), "sh", "-p", "-c", "exec cat <&9 >&9", nullptr);
    return 2;
  });
  put(peer.fd, "under way");  // may still lie in the pipe
  EXPECT_EQ(get(peer.fd, 9), "under way");
  ping(peer.fd, 100);
  EXPECT_TRUE(by_tcp(peer.fd));
}

}  // namespace
}  // namespace clan::test
