// How a setting is written: for the interposer, which obeys it, for `clan run`, which checks it
// before a thousand processes do, and for `clan stat`. Takes no memory; any thread.
#pragma once

#include <clan/face/key_file.h>
#include <clan/face/setting_types.h>
#include <clan/face/setting_values.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace clan {

namespace settings_detail {

inline void say_which_there_are(SettingFault* fault) {
  std::size_t used = 0;
  for (const SettingName& known : kSettings) {
    const char* before = &known == std::begin(kSettings)     ? "is no setting: there are "
                         : &known == std::end(kSettings) - 1 ? " and "
                                                             : ", ";
    const int n =
        std::snprintf(fault->text + used, sizeof fault->text - used, "%s%s", before, known.name);
    used = std::min(used + static_cast<std::size_t>(n), sizeof fault->text - 1);
  }
}

}  // namespace settings_detail

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

/// Takes one setting. False: `fault` says why. Then everything stays on TCP (`disable`): a
/// misunderstood setting must not accelerate what it meant to leave alone. Without a usable
/// directory only connections between network namespaces stay, without a key only calls to other
/// hosts.
inline bool take_setting(const char* name, const char* value, Settings* settings,
                         SettingFault* fault) {
  const auto is = [&](const char* known) { return std::strcmp(name, known) == 0; };
  bool good = true;
  if (is("CLAN_DISABLE") || is("CLAN_NET")) {
    const int yes = settings_detail::yes_or_no(value);
    (is("CLAN_NET") ? settings->net : settings->disable) = yes > 0;
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
    good = parse_name(value, kNetworkModes, &settings->network_mode, fault);
    settings->names_network_mode = good;
  } else if (is("CLAN_NETWORK_PORT")) {
    good = parse_port(value, &settings->network_port, fault);
  } else if (is("CLAN_NETWORK_PACKETS")) {
    good = parse_name(value, kNetworkPackets, &settings->network_packets, fault);
  } else {
    good = false;
    if (is("CLAN_LOG") || is("CLAN_CONFIG")) {
      std::snprintf(fault->text, sizeof fault->text, "can be set in the environment only");
    } else if (*name != 0 && name[std::strlen(name) - 1] == ' ') {
      std::snprintf(fault->text, sizeof fault->text, "has a space before the equals sign");
    } else {
      settings_detail::say_which_there_are(fault);
    }
  }
  if (!good) settings->disable = true;
  return good;
}

}  // namespace clan
