#include "name.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace clan::orb {
namespace {

constexpr std::size_t kMostName = 48;

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool good_name(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
  };
  return !text.empty() && text.size() <= kMostName && std::all_of(text.begin(), text.end(), good);
}

std::string random_name() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value) value = static_cast<std::uint64_t>(::getpid()) << 32;
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

std::string Name::address() const {
  const std::string end = name.empty() ? "tcp-" + std::to_string(port) : std::to_string(uid) + "-" + name;
  const bool ipv6 = host.find(':') != std::string::npos;
  return std::string(kPrefix) + (ipv6 ? "[" + host + "]" : host) + ":" + end;
}

std::optional<Name> Name::parse(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view host = text.substr(0, colon), end = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Name out;
  out.host = host;
  const std::size_t dash = end.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  if (end.substr(0, dash) == "tcp") {
    const auto port = number<std::uint16_t>(end.substr(dash + 1));
    if (!port || *port == 0) return std::nullopt;
    out.port = *port;
    return out;
  }
  const auto uid = number<uid_t>(end.substr(0, dash));
  if (!uid || !good_name(end.substr(dash + 1))) return std::nullopt;
  out.uid = *uid;
  out.name = end.substr(dash + 1);
  return out;
}

std::optional<Name> Name::of_endpoint(std::string_view text) {
  Name out;
  out.uid = ::geteuid();
  while (!text.empty() && text.back() == ':') text.remove_suffix(1);  // as in giop:tcp::
  if (text.empty()) {
    out.name = random_name();
    return out;
  }
  if (good_name(text)) {
    out.name = text;
    return out;
  }
  const auto given = parse(text);
  if (!given || given->name.empty() || given->uid != out.uid) return std::nullopt;
  return given;
}

std::uint64_t host_id() {
  static const std::uint64_t id = [] {
    char boot[64] = {};
    if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
      if (std::fgets(boot, sizeof boot, file) == nullptr) boot[0] = '\0';
      std::fclose(file);
    }
    std::uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
    for (const char* c = boot; *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100'0000'01b3;
    struct stat network {};
    if (::stat("/proc/self/ns/net", &network) == 0) hash = (hash ^ network.st_ino) * 0x100'0000'01b3;
    return hash;
  }();
  return id;
}

std::string service_name(std::string_view name) { return "giop." + std::string(name); }

std::string port_service_name(std::uint16_t port, std::uint64_t inode) {
  return "giop.tcp." + std::to_string(port) + "." + std::to_string(inode);
}

}  // namespace clan::orb
