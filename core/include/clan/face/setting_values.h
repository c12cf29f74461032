// How values of settings are written: lists of ports and users, sizes, names. Any thread.
#pragma once

#include <clan/face/setting_types.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace clan {

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

/// Calls `take(item, fault)` for each item between commas, which returns what follows it, or null.
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

/// "4790". False: `fault` says why.
inline bool parse_port(const char* text, std::uint16_t* port, SettingFault* fault) {
  constexpr std::uint64_t kMostPort = 65535;
  std::uint64_t value = 0;
  const char* end = settings_detail::number(text, kMostPort, &value);
  if (end != nullptr && *end == 0 && value > 0)
    return *port = static_cast<std::uint16_t>(value), true;
  std::snprintf(fault->text, sizeof fault->text, "is not a UDP port, 1 to 65535");
  return false;
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
template <typename Value, std::size_t kCount>
bool parse_name(const char* text, const NamedValue<Value> (&list)[kCount], Value* out,
                SettingFault* fault) {
  for (const auto& known : list) {
    if (std::strcmp(text, known.name) == 0) return *out = known.value, true;
  }
  int at = std::snprintf(fault->text, sizeof fault->text, "is none of");
  for (const auto& known : list) {
    at += std::snprintf(fault->text + at, sizeof fault->text - static_cast<std::size_t>(at),
                        "%s %s", &known == list ? "" : ",", known.name);
  }
  return false;
}

}  // namespace clan
