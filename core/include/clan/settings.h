// The settings of the interposer, CLAN_* in the environment or in a file: the one place that knows
// how they are written, for the interposer, which obeys them, for `clan run`, which says what is
// wrong before a thousand processes do, and for `clan stat`, which tells what keeps a connection on
// TCP.
//
// Nothing here takes memory but what makes options and contexts of settings; any thread.
#pragma once

#include <clan/context.h>
#include <clan/key_file.h>
#include <clan/log.h>
#include <clan/shared_directory.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace clan {

struct Ports {
  static constexpr int kMost = 64;
  struct Range {
    std::uint16_t first, last;
  };
  Range ranges[kMost] = {};
  int count = 0;
  bool contains(std::uint16_t port) const {
    for (int i = 0; i < count; ++i) {
      if (port >= ranges[i].first && port <= ranges[i].last) return true;
    }
    return false;
  }
};

struct Settings {
  bool disable = false;  ///< asked for, or something could not be understood
  Ports only;            ///< empty: all
  Ports except;
  static constexpr int kMostUids = 16;
  uid_t uids[kMostUids] = {};  ///< besides our own
  int uid_count = 0;
  /// CLAN_DIR.
  static constexpr std::size_t kMostDirectory = kMostSharedDirectory;
  char directory[kMostDirectory + 1] = {};
  /// CLAN_MEMORY: bytes that the pipes of a user may take, 0: see pipe_memory.h
  std::uint64_t memory = 0;
  /// CLAN_KEY: a KeyFile, empty if it cannot be used. It is read again when a Context is made with
  /// network_options().
  static constexpr std::size_t kMostKeyPath = 1023;
  char key_file[kMostKeyPath + 1] = {};
  bool key_is_wrong = false;
  bool looks_at_key = true;  ///< false: settings of another process, or that are obeyed much later
  NetworkOptions::Mode network_mode = NetworkOptions::Mode::kEncrypt;  ///< CLAN_NETWORK_MODE
  bool names_network_mode = false;
  bool net = false;  ///< CLAN_NET: connections to other hosts move, too
  NetworkOptions::Packets network_packets =
      NetworkOptions::Packets::kSockets;  ///< CLAN_NETWORK_PACKETS

  /// Other hosts, for the faces that call them: enabled by either of the two settings, unless the
  /// key is wrong. Without a key, a mode that needs one makes Context::create() fail and say so.
  NetworkOptions network_options() const {
    NetworkOptions network;
    network.enabled = !key_is_wrong && (key_file[0] != 0 || names_network_mode);
    network.mode = network_mode;
    network.packets = network_packets;
    network.key_file = key_file;
    return network;
  }
  /// Of a Context of a face: the users and the network.
  ContextOptions context_options() const {
    ContextOptions options;
    options.allow_uids.assign(uids, uids + uid_count);
    options.network = network_options();
    return options;
  }
  bool has_directory() const { return directory[0] != 0; }
  bool names_uid(uid_t uid) const {
    for (int i = 0; i < uid_count; ++i) {
      if (uids[i] == uid) return true;
    }
    return false;
  }
  bool leaves_out(std::uint16_t local, std::uint16_t remote) const {
    return only.count != 0 && !only.contains(local) && !only.contains(remote);
  }
  bool excepts(std::uint16_t local, std::uint16_t remote) const {
    return except.contains(local) || except.contains(remote);
  }
};

/// What may stand in the environment and in a file.
inline constexpr const char* kSettingNames[] = {
    "CLAN_ONLY",         "CLAN_EXCEPT",          "CLAN_UIDS",
    "CLAN_DIR",          "CLAN_MEMORY",          "CLAN_KEY",
    "CLAN_NETWORK_MODE", "CLAN_NETWORK_PACKETS", "CLAN_NET", "CLAN_DISABLE"};

/// What CLAN_NETWORK_MODE may be.
struct NetworkModeName {
  const char* name;
  NetworkOptions::Mode mode;
};
inline constexpr NetworkModeName kNetworkModes[] = {{"off", NetworkOptions::Mode::kOff},
                                                    {"integrity", NetworkOptions::Mode::kIntegrity},
                                                    {"encrypt", NetworkOptions::Mode::kEncrypt}};

/// What CLAN_NETWORK_PACKETS may be.
struct NetworkPacketsName {
  const char* name;
  NetworkOptions::Packets packets;
};
inline constexpr NetworkPacketsName kNetworkPackets[] = {
    {"sockets", NetworkOptions::Packets::kSockets},
    {"xdp", NetworkOptions::Packets::kXdp},
    {"auto", NetworkOptions::Packets::kAuto}};

/// What a program must be allowed to write into files (RLIMIT_FSIZE), to have pipes.
constexpr std::uint64_t kFileBytes = 64u << 20;

/// A settings file has fewer bytes.
constexpr std::size_t kSettingsFile = 8192;
constexpr char kSettingsFileTooLong[] = "it has more than 8191 bytes";

/// Why something is wrong, as the end of a sentence that begins with it.
struct SettingFault {
  char text[224] = {};
};

namespace settings_detail {

/// Digits, 0 to `most`. Null if there is no such number at `at`, else what is behind it.
inline const char* number(const char* at, std::uint64_t most, std::uint64_t* value) {
  if (*at < '0' || *at > '9') return nullptr;
  std::uint64_t sum = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    sum = sum * 10 + static_cast<std::uint64_t>(*at - '0');
    if (sum > most) return nullptr;
  }
  *value = sum;
  return at;
}

/// 1, 0, or -1: neither.
inline int yes_or_no(const char* text) {
  constexpr const char* kWords[] = {"0", "1", "no", "yes", "false", "true", "off", "on"};
  int word = 0;
  for (const char* known : kWords) {
    std::size_t i = 0;
    while (known[i] != 0 &&
           (text[i] == known[i] || (text[i] >= 'A' && (text[i] | 0x20) == known[i])))
      ++i;
    if (known[i] == 0 && text[i] == 0) return word & 1;
    ++word;
  }
  return *text == 0 ? 0 : -1;
}

/// Calls `take(item, fault)` for each item between commas: it returns what is behind, null if that
/// is none. False: `fault` says why.
template <typename Take>
bool each_item(const char* text, const char* list, const char* item_is, SettingFault* fault,
               Take take) {
  for (const char* at = text; *text != 0;) {
    while (*at == ' ') ++at;
    const char* end = take(at, fault);
    if (end != nullptr && *end == 0) return true;
    if (end != nullptr && *end == ',') {
      at = end + 1;
      continue;
    }
    if (fault->text[0] == 0) {
      const int length = static_cast<int>(std::strcspn(at, ","));
      std::snprintf(fault->text, sizeof fault->text, "is not a list of %s: \"%.*s%s\" is no %s",
                    list, length > 40 ? 40 : length, at, length > 40 ? "..." : "", item_is);
    }
    return false;
  }
  return true;
}

}  // namespace settings_detail

/// "80,443,8000-8010", spaces behind commas. False: `fault` says why.
inline bool parse_ports(const char* text, Ports* ports, SettingFault* fault) {
  constexpr std::uint64_t kMostPort = 65535;
  ports->count = 0;
  auto take = [&](const char* at, SettingFault* why) -> const char* {
    std::uint64_t first = 0;
    const char* end = settings_detail::number(at, kMostPort, &first);
    std::uint64_t last = first;
    if (end != nullptr && *end == '-') end = settings_detail::number(end + 1, kMostPort, &last);
    if (end == nullptr || first == 0 || first > last) return nullptr;
    if (ports->count == Ports::kMost) {
      std::snprintf(why->text, sizeof why->text, "has more than %d ports and ranges", Ports::kMost);
      return nullptr;
    }
    ports->ranges[ports->count++] = {static_cast<std::uint16_t>(first),
                                     static_cast<std::uint16_t>(last)};
    return end;
  };
  return settings_detail::each_item(text, "ports, like 80,8000-8010", "port or range of them",
                                    fault, take);
}

/// "33,113". False: `fault` says why.
inline bool parse_uids(const char* text, Settings* settings, SettingFault* fault) {
  settings->uid_count = 0;
  auto take = [&](const char* at, SettingFault* why) -> const char* {
    std::uint64_t uid = 0;
    const char* end = settings_detail::number(at, 0xffff'fffeu, &uid);
    if (end == nullptr) return nullptr;
    if (settings->uid_count == Settings::kMostUids) {
      std::snprintf(why->text, sizeof why->text, "has more than %d users", Settings::kMostUids);
      return nullptr;
    }
    settings->uids[settings->uid_count++] = static_cast<uid_t>(uid);
    return end;
  };
  return settings_detail::each_item(text, "user ids, like 33,113", "number of a user", fault, take);
}

/// "67108864", "65536K", "64M", "1G"; at most 1024G. False: `fault` says why.
inline bool parse_memory(const char* text, std::uint64_t* bytes, SettingFault* fault) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  std::uint64_t value = 0;
  const char* end = settings_detail::number(text, kMost, &value);
  const char* units = "KMG";
  if (end != nullptr && *end != 0) {
    const char* unit = std::strchr(units, *end);
    const auto shift = unit != nullptr ? 10 * (unit - units + 1) : 0;
    end = unit != nullptr && value <= kMost >> shift ? end + 1 : nullptr;
    value <<= shift;
  }
  if (end != nullptr && *end == 0 && value > 0) return *bytes = value, true;
  std::snprintf(fault->text, sizeof fault->text, "is not a size, like 64M or 1G");
  return false;
}

/// One of the names of a list, like "encrypt". False: `fault` says why.
template <typename Known, std::size_t kCount, typename Value>
bool parse_name(const char* text, const Known (&list)[kCount], Value Known::*value, Value* out,
                SettingFault* fault) {
  for (const Known& known : list) {
    if (std::strcmp(text, known.name) == 0) return *out = known.*value, true;
  }
  int at = std::snprintf(fault->text, sizeof fault->text, "is none of");
  for (const Known& known : list) {
    at += std::snprintf(fault->text + at, sizeof fault->text - static_cast<std::size_t>(at),
                        "%s %s", &known == list ? "" : ",", known.name);
  }
  return false;
}

/// "/etc/clan/key". False: `fault` says why.
inline bool parse_key_file(const char* text, Settings* settings, SettingFault* fault) {
  const std::size_t size = std::strlen(text);
  settings->key_file[0] = 0;
  settings->key_is_wrong = true;
  if (*text != '/' || size > Settings::kMostKeyPath) {
    std::snprintf(fault->text, sizeof fault->text,
                  "is not the absolute path of a file, of at most %zu bytes",
                  Settings::kMostKeyPath);
    return false;
  }
  if (settings->looks_at_key) {
    KeyFile file;
    if (auto s = file.read(text); !s) {
      std::snprintf(fault->text, sizeof fault->text, "cannot be used: %s", s.error().what);
      return false;
    }
  }
  std::memcpy(settings->key_file, text, size + 1);
  settings->key_is_wrong = false;
  return true;
}

/// Takes one setting. False: `fault` says why not. Then everything is to stay on TCP (`disable` is
/// set): what cannot be understood must not accelerate what it meant to leave alone. But without a
/// directory that can be used, only connections between network namespaces stay; without a key,
/// only calls to other hosts.
inline bool take_setting(const char* name, const char* value, Settings* settings,
                         SettingFault* fault) {
  const auto is = [&](const char* known) { return std::strcmp(name, known) == 0; };
  bool good = true;
  if (is("CLAN_DISABLE")) {
    const int yes = settings_detail::yes_or_no(value);
    settings->disable = yes != 0;
    good = yes >= 0;
    if (!good) std::snprintf(fault->text, sizeof fault->text, "is neither 1 nor 0, nor yes or no");
  } else if (is("CLAN_NET")) {
    const int yes = settings_detail::yes_or_no(value);
    settings->net = yes > 0;
    good = yes >= 0;
    if (!good) std::snprintf(fault->text, sizeof fault->text, "is neither 1 nor 0, nor yes or no");
  } else if (is("CLAN_ONLY")) {
    good = parse_ports(value, &settings->only, fault);
  } else if (is("CLAN_EXCEPT")) {
    good = parse_ports(value, &settings->except, fault);
  } else if (is("CLAN_UIDS")) {
    good = parse_uids(value, settings, fault);
  } else if (is("CLAN_DIR")) {
    settings->directory[0] = 0;
    if (const char* why = why_not_shared_directory(value); why != nullptr) {
      std::snprintf(fault->text, sizeof fault->text, "%s", why);
      return false;
    }
    std::size_t size = std::strlen(value);
    while (size > 1 && value[size - 1] == '/') --size;
    std::memcpy(settings->directory, value, size);
    settings->directory[size] = 0;
  } else if (is("CLAN_MEMORY")) {
    good = parse_memory(value, &settings->memory, fault);
  } else if (is("CLAN_KEY")) {
    return parse_key_file(value, settings, fault);
  } else if (is("CLAN_NETWORK_MODE")) {
    good = parse_name(value, kNetworkModes, &NetworkModeName::mode, &settings->network_mode, fault);
    settings->names_network_mode = good;
  } else if (is("CLAN_NETWORK_PACKETS")) {
    good = parse_name(value, kNetworkPackets, &NetworkPacketsName::packets,
                      &settings->network_packets, fault);
  } else {
    good = false;
    if (is("CLAN_LOG") || is("CLAN_CONFIG")) {
      std::snprintf(fault->text, sizeof fault->text, "can be set in the environment only");
    } else if (*name != 0 && name[std::strlen(name) - 1] == ' ') {
      std::snprintf(fault->text, sizeof fault->text, "has a space before the equals sign");
    } else {
      std::snprintf(fault->text, sizeof fault->text,
                    "is no setting: there are CLAN_ONLY, CLAN_EXCEPT, CLAN_UIDS, CLAN_DIR, "
                    "CLAN_MEMORY, CLAN_KEY, "
                    "CLAN_NETWORK_MODE, CLAN_NETWORK_PACKETS, CLAN_NET and CLAN_DISABLE");
    }
  }
  if (!good) settings->disable = true;
  return good;
}

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

/// Takes the settings of a file, and then those of the environment, which win: a line of the file
/// is not looked at if the environment has that variable. `file`: the text, which is taken apart,
/// or null. `environment(name)`: the value, or null. `say(WrongSetting)` for each that is wrong.
/// True if something was that keeps everything with the kernel; then `disable` is set.
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
      bool overruled = false;
      for (const char* name : kSettingNames)
        overruled |= std::strcmp(line, name) == 0 && set_outside(name);
      if (!overruled) take(number, line, value);
    }
    line = next;
  }
  for (const char* name : kSettingNames) {
    if (set_outside(name)) take(0, name, environment(name));
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

/// Says it on descriptor 2, whatever CLAN_LOG is: who has set something wants to know. `all`: what
/// happens where everything stays with the kernel.
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

/// Context::create(); without a network, and with a line on descriptor 2, where the one asked for
/// cannot be had. `who`: as "CORBA calls".
inline Result<Context> create_context(ContextOptions options, const char* who) {
  auto context = Context::create(options);
  if (context.ok() || !options.network.enabled) return context;
  log_line(LogLevel::kError, "%s to other hosts go without CLAN: %s", who,
           context.error().message().c_str());
  options.network.enabled = false;
  return Context::create(options);
}

}  // namespace clan
