// The key that is read when the library starts. Each test is a process of its own: what is kept is
// kept once.
#include "os/kept_key.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "os/config.h"
#include "udp/key_files.h"

namespace clan::preload {
namespace {

constexpr uid_t kNobody = 65'534;

class KeptKey : public testing::Test {
 protected:
  // In a child with these settings and no others; `body` says whether all is right.
  template <typename Body>
  static bool in_child(const std::string& file, const char* net, const char* mode, Body body) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (const char* name : {"CLAN_CONFIG", "CLAN_DISABLE"}) ::unsetenv(name);
      ::setenv("CLAN_KEY", file.c_str(), 1);
      ::setenv("CLAN_NET", net, 1);
      ::setenv("CLAN_NETWORK_MODE", mode, 1);
      keep_key();
      ::_exit(body() ? 0 : 1);
    }
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
  }
  // The flags of the mapping at this address, as /proc/self/smaps has them: "rd wr mr mw me ac dd
  // ".
  static std::string flags_of(const void* at) {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      std::uintptr_t first = 0, last = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
        const auto wanted = reinterpret_cast<std::uintptr_t>(at);
        here = first <= wanted && wanted < last;
      } else if (here && line.starts_with("VmFlags:")) {
        return line + " ";
      }
    }
    return "";
  }

  test::KeyFiles files_;
  const std::string file_ = files_.make(test::kKey + "\n");
};

TEST_F(KeptKey, IsThereWhenTheFileIsGoneAndAlsoInAChild) {
  EXPECT_TRUE(in_child(file_, "1", "encrypt", [&] {
    if (::unlink(file_.c_str()) != 0 || kept_key(network_settings_now()) != test::kKey)
      return false;
    const pid_t child = ::fork();
    if (child == 0) ::_exit(kept_key(network_settings_now()) == test::kKey ? 0 : 1);
    int status = -1;
    return ::waitpid(child, &status, 0) == child && status == 0;
  }));
}

TEST_F(KeptKey, OfRootIsThereForTheUserThatTheProcessGoesOnAs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  EXPECT_TRUE(in_child(file_, "1", "encrypt", [&] {
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return false;
    clan::KeyFile file;
    return !file.read(file_.c_str()).ok() && kept_key(network_settings_now()) == test::kKey;
  }));
}

TEST_F(KeptKey, IsInNoCoreDump) {
  EXPECT_TRUE(in_child(file_, "1", "encrypt", [&] {
    const char* key = kept_key(network_settings_now()).data();
    return flags_of(key).find(" dd ") != std::string::npos &&
           flags_of(file_.data()).find(" dd ") == std::string::npos;
  }));
}

TEST_F(KeptKey, IsNotReadWhereNothingNeedsIt) {
  const auto has_none = [] {
    Settings asks = network_settings_now();
    asks.net = true, asks.network_mode = NetworkOptions::Mode::kEncrypt;
    return kept_key(asks).empty();
  };
  EXPECT_TRUE(in_child(file_, "0", "encrypt", has_none));
  EXPECT_TRUE(in_child(file_, "", "encrypt", has_none));
  EXPECT_TRUE(in_child(file_, "1", "off", has_none));
  EXPECT_FALSE(in_child(file_, "1", "integrity", has_none));
}

TEST_F(KeptKey, ThatIsOfNoUseAnyMoreIsWiped) {
  for (const bool other_file : {false, true}) {
    EXPECT_TRUE(in_child(file_, "1", "encrypt", [&] {
      Settings wanted = network_settings_now(), changed = wanted;
      if (kept_key(wanted) != test::kKey) return false;
      changed.network_mode =
          other_file ? NetworkOptions::Mode::kEncrypt : NetworkOptions::Mode::kOff;
      if (other_file) std::strcpy(changed.key_file, "/another");
      return kept_key(changed).empty() && kept_key(wanted).empty();
    }));
  }
}

TEST_F(KeptKey, ThatOthersMayReadIsNotKept) {
  EXPECT_TRUE(in_child(files_.make(test::kKey, 0644), "1", "encrypt",
                       [] { return kept_key(network_settings_now()).empty(); }));
}

// CLAN_NET may stand in the file that CLAN_CONFIG names.
TEST_F(KeptKey, IsThatOfTheSettingsFile) {
  const std::string settings = files_.make("# here\nCLAN_NET=1\nCLAN_KEY=" + file_ + "\n");
  const pid_t child = ::fork();
  if (child == 0) {
    for (const char* name : {"CLAN_NET", "CLAN_KEY", "CLAN_NETWORK_MODE", "CLAN_DISABLE"})
      ::unsetenv(name);
    ::setenv("CLAN_CONFIG", settings.c_str(), 1);
    keep_key();
    ::_exit(kept_key(network_settings_now()) == test::kKey ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clan::preload
