// Where settings stand: in a file, and in the environment, which wins. Takes them and complains of
// wrong ones. Any thread; only contexts made of settings take memory.
#pragma once

#include <clan/context.h>
#include <clan/detail/log.h>
#include <clan/face/setting_parser.h>
#include <clan/face/setting_types.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace clan {

/// What take_setting() refused: `line` 0 in the environment, or of the file.
struct WrongSetting {
  int line;
  const char* name;
  const char* value;  ///< null: the line has no equals sign
  const char* why;
  /// What stays with the kernel, null: everything.
  const char* loses() const {
    if (value != nullptr && std::strcmp(name, "CLAN_DIR") == 0)
      return "connections to other network namespaces stay on TCP";
    if (value != nullptr && std::strcmp(name, "CLAN_KEY") == 0)
      return "other hosts are reached without CLAN";
    return nullptr;
  }
};

/// Takes a file's settings but for those that the environment has, then the environment's. `file`:
/// the text, which is taken apart, or null. `environment(name)`: the value, or null.
/// `say(WrongSetting)`: for each wrong one. True: all stays with the kernel (`disable`).
template <typename Environment, typename Say>
bool take_settings(char* file, const Environment& environment, Settings* settings, const Say& say) {
  bool wrong = false;
  const auto set_outside = [&](const char* name) {
    const char* value = environment(name);
    return value != nullptr && *value != 0;
  };
  const auto take = [&](int line, const char* name, const char* value) {
    SettingFault fault;
    if (value != nullptr && take_setting(name, value, settings, &fault)) return;
    const WrongSetting refused{line, name, value, fault.text};
    wrong = wrong || refused.loses() == nullptr;
    say(refused);
  };
  int number = 0;
  for (char* line = file; line != nullptr && *line != 0;) {
    char* next = std::strchr(line, '\n');
    if (next != nullptr) *next++ = 0;
    ++number;
    while (*line == ' ' || *line == '\t') ++line;
    char* end = line + std::strlen(line);
    while (end > line && (end[-1] == ' ' || end[-1] == '\r' || end[-1] == '\t')) *--end = 0;
    if (*line != 0 && *line != '#') {
      char* value = std::strchr(line, '=');
      if (value != nullptr) *value++ = 0;
      if (find_setting(line) == nullptr || !set_outside(line)) take(number, line, value);
    }
    line = next;
  }
  for (const SettingName& known : kSettings) {
    if (set_outside(known.name)) take(0, known.name, environment(known.name));
  }
  if (wrong) settings->disable = true;
  return wrong;
}

/// "FILE, line 3: CLAN_ONLY=80- is not …" into `to`.
inline void describe(const WrongSetting& wrong, const char* file, char* to, std::size_t size) {
  char where[256] = "environment";
  if (wrong.line > 0) std::snprintf(where, sizeof where, "%.200s, line %d", file, wrong.line);
  if (wrong.value == nullptr) {
    std::snprintf(to, size,
                  "%s: \"%.60s\" has no equals sign: settings are written like CLAN_ONLY=80", where,
                  wrong.name);
    return;
  }
  std::snprintf(to, size, "%s: %.60s=%.120s %s", where, wrong.name, wrong.value, wrong.why);
}

/// Says it on descriptor 2, whatever CLAN_LOG is. `all`: what follows with `disable`.
inline void complain(const WrongSetting& wrong, const char* file, const char* all) {
  char text[768];
  describe(wrong, file, text, sizeof text);
  log_line(LogLevel::kError, "%s; %s", text, wrong.loses() != nullptr ? wrong.loses() : all);
}

/// The environment's settings, for a face that reads no file. Complains.
inline Settings settings_of_environment(const char* all) {
  Settings settings;
  const auto environment = [](const char* name) -> const char* { return std::getenv(name); };
  const auto say = [&](const WrongSetting& wrong) { complain(wrong, "", all); };
  (void)take_settings(nullptr, environment, &settings, say);
  return settings;
}

/// Reads only the network's settings, for a face without others. Enabled if asked for and none is
/// wrong. `environment`, `say`: as for take_settings().
template <typename Environment, typename Say>
NetworkOptions take_network_settings(const Environment& environment, const Say& say) {
  Settings settings;
  const auto of_network = [&](const char* name) -> const char* {
    return find_setting(name)->of_network ? environment(name) : nullptr;
  };
  (void)take_settings(nullptr, of_network, &settings, say);
  NetworkOptions options = settings.network_options();
  options.enabled = options.enabled && !settings.disable;
  return options;
}

/// Calls Context::create(); without a network, and with a line on descriptor 2, if that fails.
/// `who`: as "CORBA calls".
inline Result<Context> create_context(ContextOptions options, const char* who) {
  auto context = Context::create(options);
  if (context.ok() || !options.network.enabled) return context;
  log_line(LogLevel::kError, "%s to other hosts go without CLAN: %s", who,
           context.error().message().c_str());
  options.network.enabled = false;
  return Context::create(options);
}

}  // namespace clan
