#include "name.h"

#include <arpa/inet.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace clan::orb {
namespace {

constexpr std::size_t kMostWord = 48;
constexpr std::string_view kNumbered = "[::ffff:127.0.0.1]:";

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

bool good_word(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_';
  };
  return !text.empty() && text.size() <= kMostWord && std::all_of(text.begin(), text.end(), good);
}

std::string random_word() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != sizeof value)
    value = static_cast<std::uint64_t>(::getpid()) << 32;
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// A name that somebody has.
struct Numbered {
  const uid_t uid;
  const std::string word, link;
  const std::uint16_t number;
  const pid_t process = ::getpid();

  auto key() const { return std::tie(link, word, uid); }
  ~Numbered();
};

/// Those of this process.
struct Numbers {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, uid_t>, std::weak_ptr<const Numbered>> by_name;
  std::map<std::uint16_t, std::weak_ptr<const Numbered>> by_number;
  std::uint16_t last = 0;
};
Numbers& numbers() {
  static Numbers* const numbers = new Numbers;
  return *numbers;
}

Numbered::~Numbered() {
  if (process != ::getpid()) return;  // a thread that this child does not have may hold the mutex
  std::lock_guard lock(numbers().mutex);
  numbers().by_number.erase(number);
  const auto found = numbers().by_name.find(key());
  if (found != numbers().by_name.end() && found->second.expired()) numbers().by_name.erase(found);
}

/// False: as many names as there are numbers.
bool give_number(Name* name) {
  std::shared_ptr<const Numbered> hold;  // ends outside the lock
  std::lock_guard lock(numbers().mutex);
  auto& [mutex, by_name, by_number, last] = numbers();
  const auto found = by_name.find({name->link, name->word, name->uid});
  if (found != by_name.end()) hold = found->second.lock();
  if (!hold) {
    if (by_number.size() == 65535) return false;
    do {
      ++last;  // the one that was given back last comes last
    } while (last == 0 || by_number.count(last) != 0);
    hold.reset(new Numbered{name->uid, name->word, name->link, last});
    by_name[{name->link, name->word, name->uid}] = hold;
    by_number[last] = hold;
  }
  name->number = hold->number;
  name->hold = std::move(hold);
  return true;
}

/// What has this number in this process, nothing if that is not of this host.
std::optional<Name> numbered(std::uint16_t number, std::string_view host) {
  std::shared_ptr<const Numbered> hold;
  {
    std::lock_guard lock(numbers().mutex);
    const auto found = numbers().by_number.find(number);
    if (found != numbers().by_number.end()) hold = found->second.lock();
  }
  if (!hold || host_of(hold->link) != host) return std::nullopt;
  return Name{hold->uid, hold->word, hold->link, {}, number, hold};
}

}  // namespace

std::string_view host_of(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::string_view host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    return host.substr(1, host.size() - 2);
  return host;
}

bool is_numeric(std::string_view host) {
  in6_addr address;
  const std::string text(host);
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

std::string Name::address() const {
  const std::string end = std::to_string(number);
  const std::string where = link.empty() ? host : std::string(host_of(link));
  if (where.empty()) return std::string(kPrefix) + std::string(kNumbered) + end;
  return std::string(kPrefix) + (where.find(':') != std::string::npos ? "[" + where + "]" : where) +
         ":" + end;
}

std::optional<Name> Name::of_text(std::string_view text, std::string_view link) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto uid = parse_number<uid_t>(text.substr(0, dash));
  Name out;
  out.word = text.substr(dash + 1);
  if (!uid || !good_word(out.word)) return std::nullopt;
  const bool good_link =
      is_numeric(host_of(link)) && parse_number<std::uint16_t>(link.substr(link.rfind(':') + 1));
  if (!link.empty() && !good_link) return std::nullopt;
  out.uid = *uid;
  out.link = link;
  if (!give_number(&out)) return std::nullopt;
  return out;
}

std::optional<Name> Name::of_address(std::string_view text) {
  const std::string_view where = host_of(text);
  const auto value = parse_number<std::uint16_t>(text.substr(text.rfind(':') + 1));
  if (where.empty() || !value) return std::nullopt;
  Name out;
  if (text.substr(0, kNumbered.size()) == kNumbered) return numbered(*value, {}).value_or(out);
  if (auto remote = numbered(*value, where)) return remote;
  out.host = where;
  out.number = *value;
  return out;
}

std::optional<Name> Name::of_endpoint(std::string_view text) {
  while (!text.empty() && text.back() == ':') text.remove_suffix(1);  // as in giop:tcp::
  Name out;
  out.uid = ::geteuid();
  out.word = text.empty() ? random_word() : std::string(text);
  if (!good_word(out.word) || !give_number(&out)) return std::nullopt;
  return out;
}

std::string passing_address() {
  static std::atomic<std::uint32_t> count{0};
  return std::string(kPrefix) + std::string(kNumbered) + std::to_string(count++ % 65536);
}

std::uint64_t host_id() {
  static const std::uint64_t id = [] {
    char boot[64] = {};
    if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
      if (std::fgets(boot, sizeof boot, file) == nullptr) boot[0] = '\0';
      std::fclose(file);
    }
    std::uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
    for (const char* c = boot; *c != '\0'; ++c)
      hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100'0000'01b3;
    struct stat network {};
    if (::stat("/proc/self/ns/net", &network) == 0)
      hash = (hash ^ network.st_ino) * 0x100'0000'01b3;
    return hash;
  }();
  return id;
}

std::string service_name(std::string_view word) { return "giop." + std::string(word); }

std::string port_service_name(std::uint16_t port, std::uint64_t inode) {
  return "giop.tcp." + std::to_string(port) + "." + std::to_string(inode);
}

}  // namespace clan::orb
