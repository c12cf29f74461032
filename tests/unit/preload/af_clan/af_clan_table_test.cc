// Which descriptors are AF_CLAN, and the names of streams: over dup, close and exec.
#include "af_clan/af_clan_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace clan::preload {
namespace {

ClanName clan_name_of(std::string_view text) {
  ClanName name;
  name.size = text.size();
  std::memcpy(name.text, text.data(), text.size());
  return name;
}
std::string text_of_name(const ClanName& name) { return {name.text, name.size}; }

/// A socket of the kernel's, whose descriptor is forgotten when it is closed.
struct TabledFd {
  explicit TabledFd(int number) : fd(number) { EXPECT_GE(fd, 0); }
  ~TabledFd() { close(); }
  void close() {
    if (fd < 0) return;
    forget_af_clan(fd);
    ::close(fd);
    fd = -1;
  }
  int fd;
};

TEST(AfClanTable, KnowsNothingOfDescriptorsThatNeverAppeared) {
  const TabledFd plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(af_clan_type(plain.fd), 0);
  EXPECT_FALSE(is_af_clan(plain.fd));
  EXPECT_EQ(af_clan_type(-1), 0);
  EXPECT_EQ(af_clan_type(1 << 30), 0);
}

TEST(AfClanTable, KnowsTheTypeAndTheNamesUntilTheDescriptorIsForgotten) {
  TabledFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(af_clan_appear(one.fd, SOCK_STREAM, {clan_name_of("jobs"), clan_name_of("worker")}));
  EXPECT_TRUE(is_af_clan(one.fd));
  EXPECT_FALSE(is_af_clan_packet(one.fd));
  EXPECT_EQ(text_of_name(af_clan_names(one.fd).local), "jobs");
  EXPECT_EQ(text_of_name(af_clan_names(one.fd).peer), "worker");
  const int number = one.fd;
  one.close();
  EXPECT_FALSE(is_af_clan(number));
  EXPECT_TRUE(af_clan_names(number).local.empty());
}

TEST(AfClanTable, RemembersOneNameAndLeavesTheOther) {
  const TabledFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(af_clan_appear(one.fd, SOCK_STREAM, {clan_name_of("a"), clan_name_of("b")}));
  const ClanName other = clan_name_of("c");
  remember_af_clan(one.fd, nullptr, &other);
  EXPECT_EQ(text_of_name(af_clan_names(one.fd).local), "a");
  EXPECT_EQ(text_of_name(af_clan_names(one.fd).peer), "c");
}

TEST(AfClanTable, HasOneEntryForAllDescriptorsOfAnOpenFile) {
  TabledFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(af_clan_appear(one.fd, SOCK_STREAM, {clan_name_of("a"), {}}));
  const TabledFd copy(::dup(one.fd));
  duplicate_af_clan(one.fd, copy.fd);
  const ClanName later = clan_name_of("later");
  remember_af_clan(copy.fd, &later, nullptr);
  EXPECT_EQ(text_of_name(af_clan_names(one.fd).local), "later");
  one.close();
  EXPECT_EQ(af_clan_type(copy.fd), SOCK_STREAM);
  EXPECT_EQ(text_of_name(af_clan_names(copy.fd).local), "later");
}

// dup2() over an AF_CLAN socket by an invalid descriptor.
TEST(AfClanTable, ForgetsADescriptorThatAnotherHasTakenThePlaceOf) {
  const TabledFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const TabledFd plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(af_clan_appear(one.fd, SOCK_STREAM, {}));
  duplicate_af_clan(plain.fd, one.fd);
  EXPECT_EQ(af_clan_type(one.fd), 0);
}

TEST(AfClanTable, GivesEntriesAgainWithoutTheNamesOfTheirLastLife) {
  for (int i = 0; i < 200; ++i) {
    const TabledFd one(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(af_clan_appear(one.fd, SOCK_DGRAM, {}));
    EXPECT_TRUE(is_af_clan_packet(one.fd));
    ASSERT_TRUE(af_clan_names(one.fd).local.empty()) << i;
    const ClanName name = clan_name_of("once");
    remember_af_clan(one.fd, &name, &name);
  }
}

TEST(AfClanTable, ForgetsARangeAndNothingBesideIt) {
  TabledFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const TabledFd low(::fcntl(one.fd, F_DUPFD_CLOEXEC, one.fd + 100)),
      high(::fcntl(one.fd, F_DUPFD_CLOEXEC, low.fd + 100));
  for (const int fd : {one.fd, high.fd, low.fd}) ASSERT_TRUE(af_clan_appear(fd, SOCK_STREAM, {}));
  forget_af_clan_range(static_cast<unsigned>(low.fd), ~0u);
  EXPECT_EQ(af_clan_type(one.fd), SOCK_STREAM);
  EXPECT_EQ(af_clan_type(low.fd), 0);
  EXPECT_EQ(af_clan_type(high.fd), 0);
}

TEST(AfClanTable, IsHandedOnOverExecForDescriptorsThatStayOpen) {
  const TabledFd stays(::socket(AF_INET, SOCK_STREAM, 0)),
      goes(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(af_clan_appear(stays.fd, SOCK_STREAM, {clan_name_of("a,b:\x01"), clan_name_of("")}));
  ASSERT_TRUE(af_clan_appear(goes.fd, SOCK_STREAM, {clan_name_of("goes"), {}}));
  const char* const text = af_clan_inheritance();
  ASSERT_NE(text, nullptr);
  const std::string setting(text);
  const auto equals = setting.find('=');
  ASSERT_NE(equals, std::string::npos);
  // The next program: it knows of none yet.
  forget_af_clan_range(0, ~0u);
  ASSERT_EQ(::setenv(setting.substr(0, equals).c_str(), setting.c_str() + equals + 1, 1), 0);
  af_clan_take_over();
  EXPECT_EQ(af_clan_type(stays.fd), SOCK_STREAM);
  EXPECT_EQ(text_of_name(af_clan_names(stays.fd).local), "a,b:\x01");
  EXPECT_TRUE(af_clan_names(stays.fd).peer.empty());
  EXPECT_EQ(af_clan_type(goes.fd), 0);
  EXPECT_EQ(::getenv(setting.substr(0, equals).c_str()), nullptr);
}

// What the environment says is input: descriptors that are not what it says are left alone.
TEST(AfClanTable, TakesOverOnlyWhatTheKernelConfirms) {
  const TabledFd stream(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      other(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string fd = std::to_string(stream.fd), other_fd = std::to_string(other.fd);
  for (const std::string& text :
       {fd + ":" + std::to_string(SOCK_DGRAM) + ":l61p61,",
        other_fd + ":" + std::to_string(SOCK_DGRAM) + ":l61p61,", other_fd + ":1:l61p61,",
        std::string("999999:1:l61p61,"), std::string("-1:1:l61p61,"), fd + ":1:l61",
        std::string(":::,"), std::string("x")}) {
    ASSERT_EQ(::setenv("CLAN_INHERITED_NAMES", text.c_str(), 1), 0);
    af_clan_take_over();
    EXPECT_EQ(af_clan_type(stream.fd), 0) << text;
    EXPECT_EQ(af_clan_type(other.fd), 0) << text;
  }
}

TEST(AfClanTable, HasNothingToHandOnWithoutDescriptors) {
  forget_af_clan_range(0, ~0u);
  EXPECT_EQ(af_clan_inheritance(), nullptr);
}

}  // namespace
}  // namespace clan::preload
