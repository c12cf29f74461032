// Offers in a directory that is no good, or no good any more.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "clan/face/reason_text.h"
#include "migrate/directory_names.h"
#include "migrate/offer.h"
#include "preload/own_directory.h"
#include "preload/tcp_pair.h"
#include "state/withdraw.h"

namespace clan::preload {
namespace {

using reasons::Why;

/// A connection whose client has made an offer, or has not been able to.
struct Offered {
  TcpPair pair;
  Offered() {
    Route route;
    EXPECT_TRUE(route_of(pair.fd(0), &route));
    offer_in_directory(pair.fd(0), pair.socket(0), route);
  }
  bool is_made() const { return pair.socket(0).state_now() == Socket::State::kOffered; }
  /// It says so, has kept nothing, and works.
  bool stays_on_tcp() const {
    const Socket& s = pair.socket(0);
    char byte = 'x';
    return s.state_now() == Socket::State::kKernel &&
           s.said.load(std::memory_order_relaxed) == Why::kDirectory && s.offer_fd.get() < 0 &&
           ::send(pair.fd(0), &byte, 1, 0) == 1 && ::recv(pair.fd(1), &byte, 1, 0) == 1;
  }
};

bool make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

TEST(Directory, HasTheOfferUntilItIsTakenBack) {
  const OwnDirectory directory;
  Offered one;
  ASSERT_TRUE(one.is_made());
  EXPECT_EQ(directory.files(), 1);
  go_on_in_directory(one.pair.fd(0), one.pair.socket(0));  // nobody has come
  EXPECT_TRUE(one.is_made());
  withdraw_offer(one.pair.socket(0));
  EXPECT_EQ(directory.files(), 0);
}

TEST(Directory, MayBecomeALinkToWhereItIsNow) {
  const OwnDirectory directory;
  const std::string there = directory.path() + "-moved";
  std::filesystem::rename(directory.path(), there);
  std::filesystem::create_directory_symlink(there, directory.path());
  EXPECT_TRUE(Offered().is_made());
  std::filesystem::remove_all(there);
}

TEST(Directory, ThatHasGoneLeavesConnectionsOnTcp) {
  const OwnDirectory directory;
  Offered before;
  ASSERT_TRUE(before.is_made());
  std::filesystem::remove_all(directory.path());
  EXPECT_TRUE(Offered().stays_on_tcp());
  ASSERT_TRUE(make_file(directory.path()));
  EXPECT_TRUE(Offered().stays_on_tcp());
  std::filesystem::remove(directory.path());
  ASSERT_EQ(::symlink(directory.path().c_str(), directory.path().c_str()), 0);
  EXPECT_TRUE(Offered().stays_on_tcp());
  std::filesystem::remove(directory.path());
  std::filesystem::create_directory(directory.path());
  EXPECT_TRUE(Offered().is_made());
  withdraw_offer(before.pair.socket(0));  // whose file has gone
}

TEST(Directory, IsSaidToBeNoGoodWithWhatHelps) {
  const auto text = [](int error) {
    char to[160];
    reasons::describe({1, Why::kDirectory, false, static_cast<std::uint32_t>(error)}, to,
                      sizeof to);
    return std::string(to);
  };
  EXPECT_EQ(text(0), "no offer can be made in CLAN_DIR");
  EXPECT_NE(text(ENOSPC).find("CLAN_DIR: its file system has no inodes"), std::string::npos);
  EXPECT_NE(text(EROFS).find("read-only"), std::string::npos);
  EXPECT_NE(text(ENOENT).find("mkdir"), std::string::npos);
  EXPECT_NE(text(EIO).find(std::strerror(EIO)), std::string::npos);
}

/// A server that looks for its client's offer, where there is another socket of this user.
struct Claimed {
  TcpPair pair;
  std::string path;
  Claimed() {
    Route route;
    EXPECT_TRUE(route_of(pair.fd(1), &route));
    sockaddr_un name{};
    path_of(name_of(route.remote, route.local), &name);
    path = name.sun_path;
  }
  bool finds_one() const {
    Route route;
    EXPECT_TRUE(route_of(pair.fd(1), &route));
    claim_in_directory(pair.fd(1), pair.socket(1), route);
    return pair.socket(1).state_now() == Socket::State::kOffered;
  }
};

/// Somebody's listening socket that is no offer of this connection.
struct Bystander {
  explicit Bystander(const std::string& at) : fd(unix_socket(SOCK_SEQPACKET)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s", at.c_str());
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
    EXPECT_EQ(::listen(fd, 4), 0);
  }
  ~Bystander() { ::close(fd); }
  Bystander(const Bystander&) = delete;
  Bystander& operator=(const Bystander&) = delete;
  bool hears_of_somebody() const { return ::accept(fd, nullptr, nullptr) >= 0 || errno != EAGAIN; }
  int fd;
};

TEST(Directory, LeadsAServerToNoSocketThatALinkPointsTo) {
  const OwnDirectory directory;
  const std::string there = directory.path() + "/bystander";
  const Bystander bystander(there);
  const Claimed server;
  ASSERT_EQ(::symlink(there.c_str(), server.path.c_str()), 0);
  EXPECT_FALSE(server.finds_one());
  ASSERT_EQ(::unlink(server.path.c_str()), 0);
  ASSERT_EQ(::link(there.c_str(), server.path.c_str()), 0);
  EXPECT_FALSE(server.finds_one());
  EXPECT_FALSE(bystander.hears_of_somebody());
  ASSERT_EQ(::unlink(server.path.c_str()), 0);
  // Nor is its own name a way there.
  ASSERT_EQ(::link(there.c_str(), (there + "-too").c_str()), 0);
  ASSERT_EQ(::rename(there.c_str(), server.path.c_str()), 0);
  EXPECT_FALSE(server.finds_one());
  EXPECT_FALSE(bystander.hears_of_somebody());
}

TEST(Directory, LeadsAServerToNoSocketThatWasBoundToAnotherName) {
  const OwnDirectory directory;
  const std::string there = directory.path() + "/bystander";
  const Bystander bystander(there);
  const Claimed server;
  ASSERT_EQ(::rename(there.c_str(), server.path.c_str()), 0);
  EXPECT_FALSE(server.finds_one());
}

TEST(Directory, LeadsAServerToItsClientWhateverTheDirectoryIsCalled) {
  const OwnDirectory directory;
  Offered client;
  ASSERT_TRUE(client.is_made());
  Route route;
  ASSERT_TRUE(route_of(client.pair.fd(1), &route));
  const std::string there = directory.path() + "-moved";
  std::filesystem::rename(directory.path(), there);
  std::filesystem::create_directory_symlink(there, directory.path());
  claim_in_directory(client.pair.fd(1), client.pair.socket(1), route);
  EXPECT_EQ(client.pair.socket(1).state_now(), Socket::State::kOffered);
  std::filesystem::remove_all(there);
}

/// A small file system of our own there. False: this process may not have one.
bool mount_small(const std::string& path) {
  return ::unshare(CLONE_NEWNS) == 0 &&
         ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("clan-test", path.c_str(), "tmpfs", 0, "size=64k,nr_inodes=8") == 0;
}

void fill_and_empty(const OwnDirectory& directory) {
  Offered before;
  ASSERT_TRUE(before.is_made());
  int files = 0;
  while (make_file(directory.path() + "/" + std::to_string(files))) ++files;
  ASSERT_EQ(errno, ENOSPC);
  ASSERT_GT(files, 0);
  EXPECT_TRUE(Offered().stays_on_tcp());
  ASSERT_EQ(::unlink((directory.path() + "/0").c_str()), 0);
  EXPECT_TRUE(Offered().is_made());
  // Without a byte left, but with inodes.
  const int file = ::open((directory.path() + "/1").c_str(), O_WRONLY | O_CLOEXEC);
  const std::string page(4096, 'x');
  while (::write(file, page.data(), page.size()) > 0) {
  }
  ::close(file);
  {
    const Offered full;
    EXPECT_TRUE(full.is_made() || full.stays_on_tcp());
  }
  ASSERT_EQ(::mount("none", directory.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  EXPECT_TRUE(Offered().stays_on_tcp());
  withdraw_offer(before.pair.socket(0));  // whose file stays
}

TEST(Directory, ThatIsFullOrReadOnlyLeavesConnectionsOnTcp) {
  const OwnDirectory directory;
  constexpr int kNotAllowed = 77;
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!mount_small(directory.path())) ::_exit(kNotAllowed);
    fill_and_empty(directory);
    std::fflush(stdout);
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotAllowed)
    GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clan::preload
