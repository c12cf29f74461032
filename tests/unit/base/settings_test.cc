#include "clan/face/settings.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace clan {
namespace {

bool is_size(const char* text, std::uint64_t* bytes) {
  SettingFault fault;
  return parse_memory(text, bytes, &fault);
}

TEST(Settings, ASizeIsANumberOfBytesOrOfKMG) {
  std::uint64_t bytes = 0;
  EXPECT_TRUE(is_size("1", &bytes) && bytes == 1);
  EXPECT_TRUE(is_size("65536K", &bytes) && bytes == std::uint64_t{64} << 20);
  EXPECT_TRUE(is_size("1024G", &bytes) && bytes == std::uint64_t{1} << 40);
  for (const char* text : {"", "0", "0G", "64m", "64MB", "-1", "M"})
    EXPECT_FALSE(is_size(text, &bytes)) << text;
}

// 2^34 + 1 GiB is no less than that, although 64 bits hold 1 GiB of it.
TEST(Settings, ASizeThatNobodyHasIsRefusedAndNotCutShort) {
  std::uint64_t bytes = 0;
  for (const char* text : {"1025G", "17179869185G", "17592186044417M", "1099511627777"})
    EXPECT_FALSE(is_size(text, &bytes)) << text << ": " << bytes;
}

NetworkOptions network_of(const std::map<std::string, std::string>& environment,
                          std::vector<std::string>* wrong) {
  const auto value = [&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it != environment.end() ? it->second.c_str() : nullptr;
  };
  return take_network_settings(value, [&](const WrongSetting& one) { wrong->push_back(one.name); });
}

TEST(Settings, OfTheNetworkAreTakenWithoutTheOthers) {
  std::vector<std::string> wrong;
  EXPECT_FALSE(network_of({}, &wrong).enabled);
  const NetworkOptions network = network_of({{"CLAN_NETWORK_MODE", "off"},
                                             {"CLAN_NETWORK_PACKETS", "auto"},
                                             {"CLAN_NETWORK_PORT", "4791"},
                                             {"CLAN_DISABLE", "1"},
                                             {"CLAN_ONLY", "no port"}},
                                            &wrong);
  EXPECT_TRUE(wrong.empty()) << wrong[0];
  EXPECT_TRUE(network.enabled);
  EXPECT_EQ(network.mode, NetworkOptions::Mode::kOff);
  EXPECT_EQ(network.packets, NetworkOptions::Packets::kAuto);
  EXPECT_EQ(network.directory_port, 4791);
}

TEST(Settings, OfTheNetworkReachNobodyWhereOneIsWrong) {
  for (const char* name : {"CLAN_KEY", "CLAN_NETWORK_PACKETS", "CLAN_NETWORK_PORT"}) {
    std::vector<std::string> wrong;
    EXPECT_FALSE(network_of({{"CLAN_NETWORK_MODE", "off"}, {name, "nonsense"}}, &wrong).enabled);
    EXPECT_EQ(wrong, std::vector<std::string>{name});
  }
}

TEST(Settings, OneOfAnotherNameIsToldOfAllThatThereAre) {
  Settings settings;
  SettingFault fault;
  EXPECT_FALSE(take_setting("CLAN_ONYL", "80", &settings, &fault));
  for (const SettingName& known : kSettings)
    EXPECT_NE(std::strstr(fault.text, known.name), nullptr) << fault.text;
  EXPECT_NE(std::strstr(fault.text, "CLAN_NET and CLAN_DISABLE"), nullptr) << fault.text;
}

}  // namespace
}  // namespace clan
