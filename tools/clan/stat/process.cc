#include "process.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "../commands.h"
#include "clan/face/pipe_memory.h"
#include "clan/face/socket_face.h"

namespace clan::tool {
namespace {

constexpr std::string_view kLibrary = "/libclan-preload.so";

void look_for_library(pid_t pid, ProcessFacts& facts) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  std::string line;
  facts.ended = true;
  while (!facts.has_library && std::getline(maps, line)) {
    facts.ended = false;
    facts.has_library = line.find(kLibrary) != std::string::npos;
  }
}

void read_status(pid_t pid, ProcessFacts& facts) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  std::string line;
  while (std::getline(status, line)) {
    uid_t effective = 0;
    int filter = 0;
    // "NSpid: 4711 12 1", from our namespace inwards
    if (line.rfind("NSpid:", 0) == 0)
      facts.own_pid = std::atoi(line.c_str() + line.find_last_of(" \t") + 1);
    if (std::sscanf(line.c_str(), "Uid: %*u %u", &effective) == 1) facts.user = effective;
    if (std::sscanf(line.c_str(), "Seccomp: %d", &filter) == 1) facts.filtered = filter != 0;
  }
}

bool has_small_files(pid_t pid) {
  std::ifstream limits(fmt::format("/proc/{}/limits", pid));
  std::string line;
  while (std::getline(limits, line)) {
    char text[32];
    if (std::sscanf(line.c_str(), "Max file size %31s", text) != 1) continue;
    const std::string_view soft = text;
    std::uint64_t bytes = kFileBytes;  // "unlimited"
    std::from_chars(soft.data(), soft.data() + soft.size(), bytes);
    return bytes < kFileBytes;
  }
  return false;
}

bool same_ipc(pid_t pid) {
  std::error_code none;
  const auto link = [&](const std::string& of) {
    return std::filesystem::read_symlink("/proc/" + of + "/ns/ipc", none);
  };
  return link("self") == link(std::to_string(pid));
}

bool has_many_pipes(pid_t pid, const ProcessFacts& facts) {
  std::error_code none;
  std::uint64_t pipes = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), none)) {
    const auto link = std::filesystem::read_symlink(entry.path(), none);
    if (!none && link.native().find(socket_face::kMemfdName) != std::string::npos) ++pipes;
  }
  // As the process counts: its user's, where the kernel lets us see, and its own at least.
  const PipeBounds bounds = pipe_bounds(facts.settings ? facts.settings->memory : 0, pid);
  const auto reached = [&](std::uint64_t bytes, std::uint64_t group) {
    const int counters = facts.user ? pipe_counters(*facts.user, group, false) : -1;
    const std::int64_t counted = counters >= 0 && same_ipc(pid) ? counted_pipes(counters) : 0;
    return std::max(pipes, counted < 0 ? 0 : static_cast<std::uint64_t>(counted)) + 1 >
           bytes / kLeastPipeBytes;
  };
  return reached(bounds.user, 0) ||
         (bounds.group.name != 0 && reached(bounds.group.bytes, bounds.group.name));
}

/// The CLAN_* variables a process began with. None if they are not there any more: programs write
/// what `ps` is to show over them, from the first on. With LD_PRELOAD.
std::optional<std::map<std::string, std::string>> variables_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::map<std::string, std::string> variables;
  bool preloads = false;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\0');
    const std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    const std::string name(entry.substr(0, equals)), value(entry.substr(equals + 1));
    if (name == "LD_PRELOAD" && entry.find(kLibrary) != std::string_view::npos) preloads = true;
    if (name.rfind("CLAN_", 0) == 0 || name == "LD_PRELOAD")
      variables.try_emplace(name, value);  // getenv() finds the first
  }
  if (!preloads) return std::nullopt;
  return variables;
}

/// The first of the libraries that LD_PRELOAD names before ours, without its folders.
std::string library_in_front(std::string_view preload) {
  const std::size_t first = preload.find_first_not_of(": ");
  if (first == std::string_view::npos) return "";
  preload.remove_prefix(first);
  preload = preload.substr(0, preload.find_first_of(": "));
  preload.remove_prefix(preload.rfind('/') + 1);  // npos + 1 is 0
  return "/" + std::string(preload) == kLibrary ? "" : std::string(preload);
}

void read_users(pid_t pid, ProcessFacts& facts) {
  std::ifstream map(fmt::format("/proc/{}/uid_map", pid));
  for (ProcessFacts::Users users{}; map >> users.inside >> users.outside >> users.count;) {
    facts.users.push_back(users);
  }
}

void find_settings(pid_t pid, ProcessFacts& facts) {
  const auto variables = variables_of(pid);
  if (!variables) return;
  facts.in_front = library_in_front(variables->at("LD_PRELOAD"));
  const auto environment = [&](const char* name) -> const char* {
    const auto found = variables->find(name);
    return found == variables->end() ? nullptr : found->second.c_str();
  };
  std::string text;
  const char* config = environment("CLAN_CONFIG");
  const bool has_file = config != nullptr && *config != 0;
  if (has_file) {
    // It may have been there, and another, when the process read it.
    const char* from = *config == '/' ? "root" : "cwd/";
    std::string why;
    text = read_settings_file(fmt::format("/proc/{}/{}{}", pid, from, config), &why);
    if (!why.empty()) return;
  }
  Settings settings;
  settings.looks_at_key = false;  // not ours to read
  const auto ignore = [](const WrongSetting&) {};
  facts.misunderstood =
      take_settings(has_file ? text.data() : nullptr, environment, &settings, ignore);
  facts.settings = settings;
}

}  // namespace

bool ProcessFacts::has_user(uid_t uid) const {
  return users.empty() || std::any_of(users.begin(), users.end(), [uid](const Users& u) {
           return uid >= u.outside && uid - u.outside < u.count;
         });
}

const ProcessFacts& Processes::of(pid_t pid) {
  const auto [place, fresh] = known_.try_emplace(pid);
  ProcessFacts& facts = place->second;
  if (!fresh) return facts;
  facts.own_pid = pid;
  look_for_library(pid, facts);
  if (!facts.has_library) return facts;
  read_status(pid, facts);
  read_users(pid, facts);
  facts.small_files = has_small_files(pid);
  find_settings(pid, facts);
  facts.many_pipes = has_many_pipes(pid, facts);
  return facts;
}

}  // namespace clan::tool
