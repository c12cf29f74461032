#include "config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace clan::gateway {
namespace {

TEST(GatewayConfig, ALineOfAFileIsARule) {
  const Config config = read_text(
      "# comment\n\n"
      "listen=127.0.0.1:80 to=clan:web,service:native,[::1]:81 balance=least  # and so on\n"
      "listen=clan:out to=127.0.0.1:82 send-proxy=v2 idle-timeout=1.5 max=3 log=off\n");
  ASSERT_EQ("", config.error);
  ASSERT_EQ(2u, config.rules.size());
  const Rule& first = config.rules[0];
  EXPECT_EQ("127.0.0.1:80", first.listen.text());
  ASSERT_EQ(3u, first.targets.size());
  EXPECT_EQ("clan:web", first.targets[0].addresses.at(0).text());
  EXPECT_EQ("native", first.targets[1].service);
  EXPECT_EQ("[::1]:81", first.targets[2].addresses.at(0).text());
  EXPECT_EQ(Balance::kLeast, first.balance);
  const Rule& second = config.rules[1];
  EXPECT_EQ("clan:out", second.listen.text());
  EXPECT_EQ(ProxyVersion::kV2, second.sends_proxy);
  EXPECT_EQ(1500u, second.idle_ms);
  EXPECT_EQ(3u, second.most);
  EXPECT_FALSE(second.logs);
}

TEST(GatewayConfig, WhatIsWrongIsSaidWithItsLine) {
  for (const char* line :
       {"to=clan:web", "listen=127.0.0.1:80", "listen", "listen=127.0.0.1 to=clan:a",
        "listen=127.0.0.1:80 to=nohost.invalid.:80 ", "listen=127.0.0.1:80 to=clan:",
        "listen=service:a to=clan:b", "listen=127.0.0.1:80 to=clan:a balance=most",
        "listen=127.0.0.1:80 to=clan:a accept-proxy=10.0.0.0/33",
        "listen=127.0.0.1:80 to=clan:a accept-proxy=", "listen=::1:80 to=clan:a",
        "listen=127.0.0.1:80 to=clan:a max=-1", "listen=127.0.0.1:80 to=clan:a check=x",
        "listen=127.0.0.1:80 to=clan:a colour=red"}) {
    const Config config = read_text(std::string("\n") + line + "\n");
    EXPECT_EQ(0u, config.error.find("line 2: ")) << line << ": " << config.error;
  }
  EXPECT_NE("", read_text("").error);
  EXPECT_NE("", read_text("listen=*:80 to=clan:a\nlisten=[::]:80 to=clan:b\n").error);
}

TEST(GatewayConfig, TheCommandLineHasTheSameWords) {
  const Config config = read_arguments({"--listen", "127.0.0.1:80", "--to=clan:web",
                                        "--accept-proxy", "10.0.0.0/8,::1", "--drain", "0"});
  ASSERT_EQ("", config.error);
  ASSERT_EQ(1u, config.rules.size());
  EXPECT_TRUE(config.rules[0].accepts_proxy);
  EXPECT_EQ(0u, config.drain_ms);
  EXPECT_NE("", read_arguments({"--listen"}).error);
  EXPECT_NE("", read_arguments({"listen=*:80"}).error);
  EXPECT_NE("", read_arguments({"--config", "/nowhere"}).error);
  EXPECT_NE("", read_arguments({"--config", "/dev/null", "--to", "clan:a"}).error);
}

}  // namespace
}  // namespace clan::gateway
