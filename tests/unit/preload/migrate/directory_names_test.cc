#include "migrate/directory_names.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "preload/own_directory.h"
#include "state/withdraw.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kName = 0x1234;

Endpoint endpoint(std::uint8_t host, std::uint16_t port) {
  Endpoint e;
  e.address.s6_addr[15] = host;
  e.port = port;
  return e;
}

std::string path_of_offer() {
  sockaddr_un path{};
  path_of(kName, &path);
  return path.sun_path;
}

mode_t mode_of(const std::string& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 ? st.st_mode & 07777 : 0;
}

// Leaves nothing but the file, if it has been made.
bool binds(mode_t mode) {
  const int listener = unix_socket(SOCK_SEQPACKET);
  const bool bound = bind_offer(listener, kName, mode);
  const int error = errno;
  ::close(listener);
  errno = error;
  return bound;
}

TEST(DirectoryNames, DifferByEachPartOfTheAddresses) {
  std::set<std::uint64_t> names;
  for (std::uint8_t host = 1; host <= 10; ++host) {
    for (std::uint16_t port = 1; port <= 10; ++port) {
      names.insert(name_of(endpoint(host, port), endpoint(1, 1)));
      names.insert(name_of(endpoint(1, 1), endpoint(host, port)));
    }
  }
  EXPECT_EQ(names.size(), 199u);  // one pair is the same both ways
  EXPECT_EQ(names.count(0), 0u);
}

TEST(DirectoryNames, AreLeftOverWhenNobodyListens) {
  const OwnDirectory directory;
  sockaddr_un path{};
  const socklen_t size = path_of(kName, &path);
  const int listener = unix_socket(SOCK_SEQPACKET);
  ASSERT_TRUE(bind_offer(listener, kName, 0600));
  EXPECT_FALSE(is_left_over(path, size));
  ::close(listener);
  EXPECT_TRUE(is_left_over(path, size));
}

TEST(DirectoryNames, AreFilesOfTheModeThatWasAskedForWhateverTheUmask) {
  const OwnDirectory directory;
  for (const mode_t mask : {0000u, 0022u, 0077u, 0177u}) {
    for (const mode_t mode : {0600u, 0666u}) {
      const mode_t before = ::umask(mask);
      EXPECT_TRUE(binds(mode));  // in place of what the one before has left over
      ::umask(before);
      EXPECT_EQ(mode_of(path_of_offer()), mode) << "umask " << mask;
    }
  }
}

TEST(DirectoryNames, ThatSomethingElseHasAreLeftToIt) {
  const OwnDirectory directory;
  ASSERT_EQ(::mkdir(path_of_offer().c_str(), 0700), 0);
  EXPECT_FALSE(binds(0600));
  EXPECT_EQ(errno, EADDRINUSE);
  EXPECT_TRUE(std::filesystem::is_directory(path_of_offer()));
  ASSERT_EQ(::rmdir(path_of_offer().c_str()), 0);
  ASSERT_EQ(::symlink("/nonexistent", path_of_offer().c_str()), 0);
  EXPECT_FALSE(binds(0600));
  EXPECT_EQ(errno, EADDRINUSE);
}

// A directory's owner may take out what others have made there, and put something else in its place
// at any time: a link to one of their files.
TEST(DirectoryNames, OfAnOfferThatIsExchangedGiveTheirModeToNoOtherFile) {
  const OwnDirectory directory;
  const std::string secret = directory.path() + "/secret", link = directory.path() + "/link";
  const std::string offer = path_of_offer();
  std::ofstream(secret) << "mine";
  ASSERT_EQ(::chmod(secret.c_str(), 0640), 0);
  std::atomic<bool> done{false};
  std::thread owner([&] {
    while (!done.load(std::memory_order_relaxed)) {  // relaxed: it says nothing else
      struct stat st {};
      if (::lstat(offer.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) continue;
      (void)!::symlink(secret.c_str(), link.c_str());
      ::rename(link.c_str(), offer.c_str());
    }
  });
  constexpr int kRounds = 3000;
  for (int i = 0; i < kRounds && !HasFailure(); ++i) {
    for (const mode_t mode : {0600u, 0666u}) {
      (void)binds(mode);
      EXPECT_EQ(mode_of(secret), 0640u) << "round " << i;
      ::unlink(offer.c_str());
    }
  }
  done.store(true, std::memory_order_relaxed);
  owner.join();
}

TEST(DirectoryNames, AreSweptWithoutReadingAMillionOfOthers) {
  const OwnDirectory directory;
  for (int i = 0; i < kMostNamesRead + 100; ++i) {
    const int fd = ::creat((directory.path() + "/" + std::to_string(i)).c_str(), 0600);
    ASSERT_GE(fd, 0);
    ::close(fd);
  }
  const auto read = sweep();
  if (!read) GTEST_SKIP() << "this process has swept a moment ago";
  EXPECT_EQ(*read, kMostNamesRead);
}

}  // namespace
}  // namespace clan::preload
