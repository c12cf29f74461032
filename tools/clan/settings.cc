// What is wrong with the CLAN_* variables and the file of settings: the library's rules
// (clan/face/settings.h), and what the library cannot know, that a variable is misspelt.
#include <clan/face/settings.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"

namespace clan::tool {
namespace {

constexpr std::string_view kPrefix = "CLAN_";
/// Variables of the library for itself across exec, of scripts of the project, and of builds.
constexpr const char* kOthers[] = {"CLAN_INHERITED_NAMES", "CLAN_PACKAGES", "CLAN_SHOW_PACKAGES",
                                   "CLAN_PRELOAD", "CLAN_BENCH"};
constexpr std::string_view kOtherPrefixes[] = {"CLAN_TEST_", "CLAN_BENCH_"};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// How many letters have to be put in, taken out, changed or swapped with their neighbour to make
/// `b` of `a`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> of(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        of[i][j] = i + j;
        continue;
      }
      of[i][j] =
          std::min({of[i - 1][j] + 1, of[i][j - 1] + 1, of[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
      }
    }
  }
  return of[a.size()][b.size()];
}

bool is_known(std::string_view name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end() ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers) ||
         std::any_of(
             std::begin(kOtherPrefixes), std::end(kOtherPrefixes),
             [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; });
}

/// Sentences about the lines of a file, or about the environment if `path` is empty.
std::vector<std::string> wrong_in(const std::string& path, std::string text,
                                  bool with_environment) {
  std::vector<std::string> sentences;
  Settings settings;
  const auto environment = [&](const char* name) -> const char* {
    return with_environment ? std::getenv(name) : nullptr;
  };
  const auto say = [&](const WrongSetting& wrong) {
    char sentence[768];
    describe(wrong, path.c_str(), sentence, sizeof sentence);
    sentences.emplace_back(sentence);
  };
  (void)take_settings(path.empty() ? nullptr : text.data(), environment, &settings, say);
  return sentences;
}

/// Reads the environment, and the file that it names, into `settings`.
Settings all_settings(Settings settings) {
  std::string none;
  const std::string config = variable("CLAN_CONFIG");
  std::string text = config.empty() ? "" : read_settings_file(config, &none);
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  const auto say = [](const WrongSetting&) {};
  (void)take_settings(config.empty() ? nullptr : text.data(), environment, &settings, say);
  return settings;
}

}  // namespace

std::string read_settings_file(const std::string& path, std::string* why) {
  // It may be another user's (`clan stat`): a FIFO must not hold us.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  struct stat about {};
  std::string text(kSettingsFile, '\0');
  const bool regular = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
  const ssize_t got = regular ? read(fd, text.data(), text.size()) : -1;
  if (fd >= 0 && !regular) {
    *why = "it is no regular file";
  } else if (got < 0) {
    *why = std::strerror(errno);
  } else if (static_cast<std::size_t>(got) == kSettingsFile) {
    *why = kSettingsFileTooLong;
  }
  if (fd >= 0) close(fd);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

std::string why_wrong(const std::string& name, const std::string& value) {
  if (value.empty()) return "";
  if (name == "CLAN_LOG") {
    constexpr const char* kLevels[] = {"off", "error", "warn", "info", "debug"};
    const bool known =
        std::find(std::begin(kLevels), std::end(kLevels), value) != std::end(kLevels);
    return known ? "" : "is none of off, error, warn, info and debug";
  }
  if (name == "CLAN_CONFIG") {
    std::string why;
    std::string text = read_settings_file(value, &why);
    if (!why.empty()) return "cannot be read: " + why;
    const auto wrong = wrong_in(value, std::move(text), false);
    return wrong.empty() ? "" : "has a wrong line: " + wrong[0];
  }
  Settings settings;
  SettingFault fault;
  return find_setting(name.c_str()) == nullptr ||
                 take_setting(name.c_str(), value.c_str(), &settings, &fault)
             ? ""
             : fault.text;
}

NetworkOptions network_settings() {
  Settings settings;
  settings.looks_at_key = false;  // what is made of the options says what is wrong with it
  return all_settings(settings).network_options();
}

std::string why_no_net(const std::string& library) {
  const Settings settings = all_settings({});
  if (!settings.net || settings.disable) return "";
  const auto net = std::filesystem::path(library).parent_path() / "libclan-net.so";
  if (!std::filesystem::exists(net)) {
    return fmt::format("this build has no --net (CLAN_NET): there is no {}", net.string());
  }
  if (settings.network_options().enabled) return "";
  return "--net (CLAN_NET) needs a key that both hosts have: CLAN_KEY=FILE, an absolute path, "
         "chmod "
         "600 (`openssl rand -hex 32` makes one); or CLAN_NETWORK_MODE=off where the wire and all "
         "its users are trusted";
}

std::vector<std::string> wrong_settings(bool log_alone) {
  std::vector<std::string> sentences;
  const std::string log = variable("CLAN_LOG"), disable = variable("CLAN_DISABLE"),
                    config = variable("CLAN_CONFIG");
  if (const std::string why = why_wrong("CLAN_LOG", log); !why.empty()) {
    sentences.push_back(fmt::format("environment: CLAN_LOG={:.120} {}", log, why));
  }
  if (log_alone || settings_detail::yes_or_no(disable.c_str()) == 1) return sentences;
  std::string why;
  std::string text = config.empty() ? "" : read_settings_file(config, &why);
  if (!why.empty()) {
    sentences.push_back(fmt::format("environment: CLAN_CONFIG={} cannot be read: {}", config, why));
  }
  const auto more = wrong_in(why.empty() ? config : "", std::move(text), true);
  sentences.insert(sentences.end(), more.begin(), more.end());
  return sentences;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> sentences;
  const auto names = variable_names();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.substr(0, kPrefix.size()) != kPrefix || is_known(name, names)) continue;
    constexpr std::size_t kLongest = 64;  // of a name that may be a slip
    const std::string_view shown = name.substr(0, kLongest);
    const auto& nearest = *std::min_element(
        names.begin(), names.end(),
        [&](const auto& a, const auto& b) { return distance(shown, a) < distance(shown, b); });
    sentences.push_back(fmt::format("nothing reads {}: the nearest name that means something is {}",
                                    shown, nearest));
  }
  return sentences;
}

}  // namespace clan::tool
