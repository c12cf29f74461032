#include <clan/reason_text.h>
#include <fmt/core.h>

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "proc.h"
#include "write.h"

namespace clan::tool {
namespace {

/// A reason without numbers of processes, calls and users: there are few of them.
std::string reason_label(std::string_view why) {
  constexpr std::string_view kProcess = "process ";
  const std::string_view unused = reasons::text_of(reasons::Why::kUnused);
  std::size_t number = kProcess.size();
  if (why.substr(0, number) == kProcess) {
    while (number < why.size() && std::isdigit(static_cast<unsigned char>(why[number])) != 0)
      ++number;
    if (why.substr(number, 2) == ": ") why.remove_prefix(number + 2);
  }
  if (why.substr(0, unused.size()) == unused) return std::string(unused);
  std::string label;
  for (const char c : printable(std::string(why))) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !label.empty() && label.back() == 'N') continue;
    if (c == '"' || c == '\\') label += '\\';
    label += digit ? 'N' : c;
  }
  return label;
}

/// As a label's value: backslash and quote are escaped.
std::string first_command(const EndView& end) {
  std::string label;
  if (end.processes.empty()) return label;
  for (const char c : command_name(*end.processes.begin())) {
    if (c == '"' || c == '\\') label += '\\';
    label += c;
  }
  return label;
}

void print_counter(const Look& seen, const char* name, const char* help,
                   std::uint64_t EndView::*counter) {
  fmt::print("# HELP clan_{} {}\n# TYPE clan_{} counter\n", name, help, name);
  for (const Connection& connection : seen.connections) {
    if (!connection.in_pipe) continue;
    for (int end = 0; end < 2; ++end) {
      const EndView& here = connection.ends[end];
      fmt::print("clan_{}{{local=\"{}\",peer=\"{}\",network=\"{}\",command=\"{}\"}} {}\n", name,
                 with_port(here.address), with_port(connection.ends[1 - end].address), here.network,
                 first_command(here), here.*counter);
    }
  }
}

}  // namespace

void print_prometheus(const Look& seen) {
  std::map<std::pair<std::string, std::string>, std::size_t> counts;
  for (const char* path : {"shm", "tcp"}) counts[{path, ""}] = 0;
  for (const Connection& connection : seen.connections) {
    ++counts[{connection.path, reason_label(connection.why)}];
  }
  fmt::print(
      "# HELP clan_connections Connections of programs under CLAN now, by path and reason.\n"
      "# TYPE clan_connections gauge\n");
  for (const auto& [labels, count] : counts) {
    fmt::print("clan_connections{{path=\"{}\",reason=\"{}\"}} {}\n", labels.first, labels.second,
               count);
  }
  fmt::print(
      "# HELP clan_refused_processes Processes that may not be looked into.\n"
      "# TYPE clan_refused_processes gauge\nclan_refused_processes {}\n",
      seen.refused);
  print_counter(seen, "sent_bytes_total", "Bytes sent through shared memory.", &EndView::bytes);
  print_counter(seen, "messages_total", "Calls that sent them.", &EndView::messages);
  print_counter(seen, "sleeps_total", "Sleeps of readers and writers.", &EndView::sleeps);
  print_counter(seen, "wakeups_total", "Wake-ups that this end was sent.", &EndView::wakeups);
}

}  // namespace clan::tool
