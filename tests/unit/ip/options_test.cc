#include "options.h"

#include <getopt.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace clan::ip {
namespace {

std::string parsed(std::vector<std::string> words, UpOptions* options) {
  words.insert(words.begin(), "up");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  optind = 0;
  return parse_up(static_cast<int>(words.size()), argv.data(), options);
}

TEST(IpAddress, IsReadAndWrittenWithItsPrefix) {
  for (const char* text : {"10.9.0.1/24", "fd09::1/64", "0.0.0.0/0", "1.2.3.4/32", "::/0"})
    EXPECT_EQ(to_string(*parse_prefix(text)), text);
  EXPECT_EQ(to_string(*parse_prefix("10.9.0.1")), "10.9.0.1/32");
  for (const char* text : {"", "10.9.0/24", "10.9.0.1/33", "10.9.0.1/", "10.9.0.1/2x", "::1/129"})
    EXPECT_FALSE(parse_prefix(text)) << text;
}

TEST(IpAddress, IsInAPrefixByItsFirstBits) {
  const Prefix prefix = *parse_prefix("10.9.0.1/23");
  EXPECT_TRUE(prefix.contains(*parse_address("10.9.1.255")));
  EXPECT_FALSE(prefix.contains(*parse_address("10.9.2.0")));
  EXPECT_FALSE(prefix.contains(*parse_address("a09::")));
  EXPECT_TRUE(prefix.is_broadcast(*parse_address("10.9.1.255")));
  EXPECT_FALSE(prefix.is_broadcast(*parse_address("10.9.0.255")));
  EXPECT_TRUE(parse_prefix("0.0.0.0/0")->contains(*parse_address("9.9.9.9")));
}

TEST(IpAddress, OfAGroupOrOfNobodyIsNotOfOne) {
  for (const char* text :
       {"224.0.0.1", "255.255.255.255", "0.0.0.0", "127.0.0.1", "ff02::1", "fe80::1", "::", "::1"})
    EXPECT_FALSE(parse_address(text)->is_of_one()) << text;
  for (const char* text : {"10.9.0.1", "223.1.1.1", "fd00::1", "2001:db8::"})
    EXPECT_TRUE(parse_address(text)->is_of_one()) << text;
}

TEST(IpOptions, AreReadInAnyOrder) {
  UpOptions options;
  EXPECT_EQ(parsed({"--address", "10.9.0.1/24", "clan0", "--peer",
                    "10.9.0.2,192.168.7.0/24=udp:198.51.100.7:4791", "--peer", "10.9.0.3=local",
                    "--mtu", "9000", "--no-offload", "--key", "/key"},
                   &options),
            "");
  EXPECT_EQ(options.device, "clan0");
  ASSERT_EQ(options.peers.size(), 2u);
  EXPECT_EQ(to_string(options.peers[0].prefixes[1]), "192.168.7.0/24");
  EXPECT_EQ(options.peers[0].host, "udp:198.51.100.7:4791");
  EXPECT_EQ(options.peers[1].host, "");
  EXPECT_EQ(options.mtu, 9000u);
  EXPECT_FALSE(options.offload);
}

TEST(IpOptions, ThatMakeNoSenseAreNamed) {
  const auto says = [](const std::vector<std::string>& words, const char* what) {
    UpOptions options;
    EXPECT_NE(parsed(words, &options).find(what), std::string::npos)
        << parsed(words, &options) << " for " << words.back();
  };
  const std::vector<std::string> good = {"clan0", "--address", "10.9.0.1/24"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), good.begin(), good.end());
    return more;
  };
  says({"clan0"}, "--address");
  says({"--address", "10.9.0.1/24"}, "a device");
  says({"clan0", "--address", "10.9.0.x/24"}, "10.9.0.x/24 is no address");
  says(with({"eth0"}), "one word too many");
  says(with({"--mtu", "67"}), "--mtu");
  says(with({"--mtu", "65536"}), "--mtu");
  says(with({"--address", "fd09::1/64", "--mtu", "1279"}), "1280");
  for (const char* peer : {"10.9.0.2", "10.9.0.2=", "10.9.0.2=host", "=local", "10.9.0.0/24=local",
                           "224.0.0.1=local", "10.9.0.2=udp:", "10.9.0.2=udp:h/x"})
    says(with({"--peer", peer}), "is not ADDRESS");
  says(with({"--peer", "10.9.0.1=local"}), "own address");
  says(with({"--peer", "fd09::2=local"}), "of its kind");
}

TEST(IpOptions, RefuseAHostThatLiesBehindTheDeviceItself) {
  UpOptions options;
  EXPECT_NE(
      parsed({"clan0", "--address", "10.9.0.1/24", "--peer", "10.9.0.2=udp:10.9.0.2"}, &options)
          .find("behind the device itself"),
      std::string::npos);
  UpOptions routed;
  EXPECT_NE(parsed({"clan0", "--address", "10.9.0.1/24", "--peer",
                    "10.9.0.2,198.51.100.0/24=udp:198.51.100.7"},
                   &routed)
                .find("behind the device itself"),
            std::string::npos);
}

TEST(IpOptions, MakeTheNameThatAPeerIsFoundBy) {
  const Address a = *parse_address("10.9.0.2");
  EXPECT_EQ(service_of(a, "", ""), "ip.10.9.0.2");
  EXPECT_EQ(service_of(a, "", "/run/clan"), "/run/clan/ip.10.9.0.2");
  EXPECT_EQ(service_of(a, "udp:h:4791", "/run/clan"), "udp:h:4791/ip.10.9.0.2");
}

}  // namespace
}  // namespace clan::ip
