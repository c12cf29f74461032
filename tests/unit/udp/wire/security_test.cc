// The rules for the key's file, and the library of cryptography that is loaded: which of these is
// taken. What it does is tested in crypto/crypto_security_test.cc.
#include "link/udp/wire/security.h"

#include <gtest/gtest.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "clan/face/key_file.h"
#include "udp/key_files.h"

namespace clan::test {
namespace {

using udp::Mode;

/// 0 or an errno: why it is not taken.
int fault_of(const std::string& path) {
  clan::KeyFile file;
  const Status taken = file.read(path.c_str());
  return taken ? 0 : taken.error().err;
}

TEST(KeyFile, IsReadWithoutWhiteSpaceAtItsEnd) {
  KeyFiles files;
  clan::KeyFile file;
  ASSERT_TRUE(file.read(files.make(kKey + " \r\n").c_str()).ok());
  EXPECT_EQ(file.key(), kKey);
}

TEST(KeyFile, ThatOthersMayUseIsRefused) {
  KeyFiles files;
  for (mode_t mode : {0640, 0604, 0620, 0610}) {
    EXPECT_EQ(fault_of(files.make(kKey, mode)), EACCES) << mode;
  }
  EXPECT_EQ(fault_of(files.make(kKey, 0400)), 0);
}

TEST(KeyFile, OfAnotherUserIsTakenByRootIfNobodyElseMayUseIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  KeyFiles files;
  const std::string path = files.make(kKey), open = files.make(kKey, 0640);
  for (const std::string& file : {path, open}) ASSERT_EQ(::chown(file.c_str(), 65'534, 65'534), 0);
  EXPECT_EQ(fault_of(path), 0);
  EXPECT_EQ(fault_of(open), EACCES);
}

// A capability lets it be opened, and it is still nobody's business.
TEST(KeyFile, OfAnotherUserIsRefusedToAllButRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  KeyFiles files;
  const std::string path = files.make(kKey);
  ASSERT_EQ(::chown(path.c_str(), 65'533, 65'533), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    // Capabilities stay effective over the change of the user alone.
    (void)::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP);
    if (::setresuid(65'534, 65'534, 65'534) != 0) ::_exit(2);
    ::_exit(fault_of(path));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), EACCES);
}

TEST(KeyFile, ThatIsShortLongMissingOrNoFileIsRefused) {
  KeyFiles files;
  EXPECT_EQ(fault_of(files.make(kKey.substr(1) + "\n\n")), EINVAL);
  EXPECT_EQ(fault_of(files.make(std::string(4097, 'x'))), EINVAL);
  EXPECT_EQ(fault_of(files.directory()), EINVAL);
  EXPECT_EQ(fault_of(files.directory() + "/none"), ENOENT);
  EXPECT_EQ(fault_of(""), EINVAL);
}

TEST(SecurityLibrary, IsNotNeededInModeOff) {
  auto none = udp::load_security(Mode::kOff, "", "/nonexistent.so");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->get(), nullptr);
}

TEST(SecurityLibrary, ThatIsMissingIsOneClearSentence) {
  KeyFiles files;
  auto none =
      udp::load_security(Mode::kEncrypt, files.make(kKey), "/nonexistent/libclan-crypto.so.0");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, ELIBACC);
  EXPECT_NE(none.error().message().find("libclan-crypto.so.0 and OpenSSL 3"), std::string::npos);
}

TEST(SecurityLibrary, OfAnotherKindIsRefused) {
  KeyFiles files;
  auto none = udp::load_security(Mode::kEncrypt, files.make(kKey), "libm.so.6");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, ELIBBAD);
}

}  // namespace
}  // namespace clan::test
