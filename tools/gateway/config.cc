#include "config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

namespace clan::gateway {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::stringstream text(list);
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

bool begins(const std::string& text, std::string_view with) { return text.rfind(with, 0) == 0; }

/// A target or a listener: "clan:NAME", "service:NAME", "HOST:PORT".
std::string read_name(const std::string& text, TargetName& name) {
  constexpr std::string_view kClan = "clan:", kService = "service:";
  std::string error;
  name.text = text;
  if (begins(text, kService)) {
    name.service = text.substr(kService.size());
    return name.service.empty() ? "service: has no name" : "";
  }
  if (!begins(text, kClan))
    name.addresses = Address::all_of(text, error);
  else if (const auto named = Address::of_name(text.substr(kClan.size()), error))
    name.addresses = {*named};
  return error;
}

std::string read_targets(const std::string& list, Rule& rule) {
  for (const std::string& text : split(list)) {
    TargetName target;
    if (std::string error = read_name(text, target); !error.empty()) return error;
    rule.targets.push_back(target);
  }
  return rule.targets.size() > kMostTargets ? fmt::format("at most {} targets", kMostTargets) : "";
}

std::string read_proxies(const std::string& list, Rule& rule) {
  rule.accepts_proxy = true;
  for (const std::string& text : split(list)) {
    const auto network = Network::parse(text);
    if (!network) return fmt::format("{} is no network, as 10.0.0.0/8 is", text);
    rule.proxies.push_back(*network);
  }
  return rule.proxies.empty() ? "accept-proxy names networks" : "";
}

std::string read_seconds(const std::string& text, std::uint64_t& ms) {
  double seconds = -1;
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (err != std::errc() || end != text.data() + text.size() || !(seconds >= 0 && seconds < 1e9))
    return fmt::format("{} is no number of seconds", text);
  ms = static_cast<std::uint64_t>(std::ceil(seconds * 1e3));
  return "";
}

std::string read_count(const std::string& text, std::uint32_t& count) {
  const auto [end, err] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool whole = err == std::errc() && end == text.data() + text.size();
  return whole && count <= 1'000'000'000 ? "" : fmt::format("{} is no number", text);
}

template <typename T>
std::string read_word(const std::string& text, const std::vector<std::pair<const char*, T>>& words,
                      T& to) {
  std::string known;
  for (const auto& [word, value] : words) {
    if (text == word) {
      to = value;
      return "";
    }
    known += known.empty() ? word : fmt::format(", {}", word);
  }
  return fmt::format("{} is none of {}", text, known);
}

std::string read_text_of(const std::string& text, std::string& to) {
  constexpr std::string_view kEscapes = "nrt\\", kMeanings = "\n\r\t\\";
  to.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      to += text[i];
      continue;
    }
    const char escape = ++i < text.size() ? text[i] : '\0';
    unsigned value = 0;
    if (const auto at = kEscapes.find(escape); escape != '\0' && at != std::string_view::npos) {
      to += kMeanings[at];
    } else if (escape == 'x' && i + 2 < text.size() &&
               std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2) {
      to += static_cast<char>(value);
      i += 2;
    } else {
      return fmt::format("{}: \\n, \\r, \\t, \\\\ and \\xHH are known", text);
    }
  }
  return "";
}

struct Key {
  const char* name;
  const char* value;
  const char* help;
  std::function<std::string(const std::string&, Rule&)> read;
};

auto seconds(std::uint64_t Rule::*to) {
  return [to](const std::string& text, Rule& rule) { return read_seconds(text, rule.*to); };
}
auto count(std::uint32_t Rule::*to) {
  return [to](const std::string& text, Rule& rule) { return read_count(text, rule.*to); };
}

const std::vector<Key>& keys() {
  static const std::vector<Key> kKeys{
      {"listen", "WHERE", "ADDRESS:PORT, *:PORT for all addresses, or clan:NAME",
       [](const std::string& text, Rule& rule) {
         TargetName name;
         std::string error = read_name(text, name);
         if (!name.service.empty()) error = "a listener is ADDRESS:PORT or clan:NAME";
         rule.listen_text = text;
         if (!name.addresses.empty()) rule.listen = name.addresses[0];
         return error;
       }},
      {"to", "TARGET,...", "clan:NAME, HOST:PORT, or service:NAME (a native one)", read_targets},
      {"balance", "HOW", "round-robin, least (connections), first (that works)",
       [](const std::string& text, Rule& rule) {
         return read_word<Balance>(text,
                                   {{"round-robin", Balance::kRoundRobin},
                                    {"least", Balance::kLeast},
                                    {"first", Balance::kFirst}},
                                   rule.balance);
       }},
      {"send-proxy", "VERSION", "say the client's address to targets: v1 or v2",
       [](const std::string& text, Rule& rule) {
         return read_word<ProxyVersion>(
             text, {{"v1", ProxyVersion::kV1}, {"v2", ProxyVersion::kV2}}, rule.sends_proxy);
       }},
      {"accept-proxy", "NETWORK,...", "clients are proxies there, which send PROXY headers",
       read_proxies},
      {"connect-timeout", "SECONDS", "for each target (5)", seconds(&Rule::connect_ms)},
      {"idle-timeout", "SECONDS", "ends a connection on which nothing moves (never)",
       seconds(&Rule::idle_ms)},
      {"header-timeout", "SECONDS", "until a PROXY header has come (3)", seconds(&Rule::header_ms)},
      {"keep-alive", "SECONDS", "of silence before TCP asks a client (the kernel's)",
       count(&Rule::keep_alive_s)},
      {"check", "SECONDS", "how often to see whether targets work (never)",
       seconds(&Rule::check_ms)},
      {"check-send", "TEXT", "what a check sends; \\n, \\r, \\t and \\xHH as in C",
       [](const std::string& text, Rule& rule) { return read_text_of(text, rule.check_send); }},
      {"check-expect", "TEXT", "how the answer to a check begins (any connection will do)",
       [](const std::string& text, Rule& rule) { return read_text_of(text, rule.check_expect); }},
      {"retry", "SECONDS", "a target that has failed comes last so long (2)",
       seconds(&Rule::retry_ms)},
      {"max", "N", "connections at a time; more wait in the backlog", count(&Rule::most)},
      {"max-per-source", "N", "connections of one address; more are reset",
       count(&Rule::most_of_source)},
      {"backlog", "N", "connections that wait to be accepted (1024)", count(&Rule::backlog)},
      {"log", "on|off", "a line for each connection that has ended (on)",
       [](const std::string& text, Rule& rule) {
         return read_word<bool>(text, {{"on", true}, {"off", false}}, rule.logs);
       }},
  };
  return kKeys;
}

std::string read_setting(const Setting& setting, Rule& rule) {
  for (const Key& key : keys()) {
    if (setting.first != key.name) continue;
    const std::string error = key.read(setting.second, rule);
    return error.empty() ? error : fmt::format("{}: {}", key.name, error);
  }
  return fmt::format("there is no option {}", setting.first);
}

Config failed(const std::string& error) {
  Config config;
  config.error = error;
  return config;
}

}  // namespace

std::string read_rule(const std::vector<Setting>& settings, Rule& rule) {
  for (const Setting& setting : settings) {
    if (std::string error = read_setting(setting, rule); !error.empty()) return error;
  }
  if (rule.listen_text.empty()) return "where to listen? listen=ADDRESS:PORT";
  return rule.targets.empty() ? "where to? to=TARGET" : "";
}

Config read_text(const std::string& text) {
  Config config;
  std::stringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::stringstream words(line.substr(0, line.find('#')));
    std::vector<Setting> settings;
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos)
        return failed(fmt::format("line {}: {} has no value", number, word));
      settings.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    }
    if (settings.empty()) continue;
    Rule rule;
    if (const std::string error = read_rule(settings, rule); !error.empty())
      return failed(fmt::format("line {}: {}", number, error));
    for (const Rule& other : config.rules) {
      if (other.listen.same_place(rule.listen))
        return failed(fmt::format("line {}: {} has a rule already", number, rule.listen_text));
    }
    config.rules.push_back(std::move(rule));
  }
  return config.rules.empty() ? failed("there is no rule") : config;
}

Config read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  Config config = file ? read_text(text.str()) : failed(std::strerror(errno != 0 ? errno : EINVAL));
  config.file = path;
  if (!config.error.empty()) config.error = fmt::format("{}: {}", path, config.error);
  return config;
}

Config read_arguments(const std::vector<std::string>& arguments) {
  std::vector<Setting> settings;
  std::string file;
  Config config;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string key = arguments[i], value;
    if (!begins(key, "--")) return failed(fmt::format("{} is no option", key));
    key.erase(0, 2);
    if (key == "check-config") {
      config.checks_only = true;
      continue;
    }
    if (const std::size_t equals = key.find('='); equals != std::string::npos) {
      value = key.substr(equals + 1);
      key.resize(equals);
    } else if (++i == arguments.size()) {
      return failed(fmt::format("--{} has no value", key));
    } else {
      value = arguments[i];
    }
    std::string error;
    if (key == "config")
      file = value;
    else if (key == "drain")
      error = read_seconds(value, config.drain_ms);
    else if (key == "exit-idle")
      error = read_seconds(value, config.exit_idle_ms);
    else
      settings.emplace_back(key, value);
    if (!error.empty()) return failed(error);
  }
  if (!file.empty() && !settings.empty())
    return failed("rules are in the file or on the command line");
  Config rules = file.empty() ? Config() : read_file(file);
  if (file.empty()) rules.error = read_rule(settings, rules.rules.emplace_back());
  rules.drain_ms = config.drain_ms;
  rules.exit_idle_ms = config.exit_idle_ms;
  rules.checks_only = config.checks_only;
  return rules;
}

std::string usage() {
  std::string text =
      "Usage: clan gateway --listen WHERE --to TARGET[,TARGET...] [OPTIONS]\n"
      "       clan gateway --config FILE [--drain SECONDS] [--exit-idle SECONDS] [--check-config]\n"
      "       clan gateway reload [PID]\n\n"
      "Takes TCP connections from outside to programs under CLAN, and back (docs/ip-gateway.md).\n"
      "A line of FILE is a rule: the same options without dashes, listen=*:80 to=clan:web.\n\n";
  for (const Key& key : keys())
    text += fmt::format("  --{:<26}{}\n", fmt::format("{} {}", key.name, key.value), key.help);
  text += fmt::format("  --{:<26}{}\n  --{:<26}{}\n  --{:<26}{}\n", "drain SECONDS",
                      "for connections of a replaced one (60; 0: no limit)", "exit-idle SECONDS",
                      "ends after so long without a connection (never)", "check-config",
                      "says what is wrong with the rules, and ends");
  return text +
         "\nSIGHUP reads FILE anew; SIGUSR2 or `clan gateway reload` starts a new program,\n"
         "and the old one serves its connections to the end; SIGQUIT drains, SIGTERM ends.\n";
}

}  // namespace clan::gateway
