#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "stat.h"

namespace clan::tool {
namespace {

std::string to_string(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (std::equal(kMapped.begin(), kMapped.end(), address.ip.begin())) {
    inet_ntop(AF_INET, address.ip.data() + 12, text, sizeof text);
    return text;
  }
  inet_ntop(AF_INET6, address.ip.data(), text, sizeof text);
  return text;
}

std::string with_port(const Address& address) {
  const std::string ip = to_string(address);
  const bool v6 = ip.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", ip, v6 ? "]" : "", address.port);
}

std::string command_name(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  return name;
}

/// 1234567 as "1.2M".
std::string short_number(double value) {
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  std::size_t unit = 0;
  for (; value >= 9999.5 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}{}", value, kUnits[unit]);
}

std::string both(double first, double second) { return short_number(first) + "/" + short_number(second); }

/// What a terminal or JSON cannot show as it is becomes '?': a process chooses its name itself.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text;
}

std::string processes_text(const EndView& end) {
  constexpr std::size_t kShown = 4;
  std::string text;
  std::size_t n = 0;
  for (const pid_t pid : end.processes) {
    if (n++ == kShown) {
      text += fmt::format(",+{}", end.processes.size() - kShown);
      break;
    }
    text += fmt::format("{}{}/{}", text.empty() ? "" : ",", pid, printable(command_name(pid)));
  }
  return text.empty() ? "?" : text;
}

/// Of both ends, once if they are in the same one.
std::string networks_text(const EndView& a, const EndView& b) {
  const auto text = [](std::uint64_t n) { return n != 0 ? fmt::format("{}", n) : std::string("?"); };
  return a.network == b.network ? text(a.network) : text(a.network) + "/" + text(b.network);
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string json_end(const Connection& connection, int which, const std::optional<Rate>& rate) {
  const EndView& end = connection.ends[which];
  std::string processes;
  for (const pid_t pid : end.processes) {
    processes += fmt::format("{}{{\"pid\": {}, \"comm\": {}}}", processes.empty() ? "" : ", ", pid,
                             json_string(command_name(pid)));
  }
  std::string text = fmt::format("{{\"address\": \"{}\", \"port\": {}, \"network\": {}, \"processes\": [{}]",
                                 to_string(end.address), end.address.port,
                                 end.network != 0 ? fmt::format("{}", end.network) : "null", processes);
  if (connection.in_pipe) {
    text +=
        fmt::format(", \"bytes\": {}, \"messages\": {}, \"sleeps\": {}, \"wakeups\": {}, \"tcp_bytes\": {}",
                    end.bytes, end.messages, end.sleeps, end.wakeups, end.tcp_bytes);
  }
  if (rate) {
    text += fmt::format(", \"bytes_per_s\": {:.1f}, \"messages_per_s\": {:.1f}", rate->bytes[which],
                        rate->messages[which]);
  }
  return text + "}";
}

}  // namespace

Row text_row(const Connection& connection, const std::optional<Rate>& rate, bool watch) {
  const EndView& a = connection.ends[0];
  const EndView& b = connection.ends[1];
  const auto counted = [&](std::uint64_t EndView::*counter) {
    const bool known = connection.in_pipe &&
                       !(connection.corba && (counter == &EndView::sleeps || counter == &EndView::wakeups));
    return known ? both(static_cast<double>(a.*counter), static_cast<double>(b.*counter)) : "-";
  };
  Row row{connection.corba ? "client" : with_port(a.address), connection.corba ? "server" : with_port(b.address),
          !connection.why.empty() ? fmt::format("{} ({})", connection.path, connection.why) : connection.path,
          counted(&EndView::bytes)};
  if (watch) row.push_back(rate ? both(rate->bytes[0], rate->bytes[1]) : "-");
  row.push_back(counted(&EndView::messages));
  if (watch) row.push_back(rate ? both(rate->messages[0], rate->messages[1]) : "-");
  row.push_back(counted(&EndView::sleeps));
  row.push_back(counted(&EndView::wakeups));
  row.push_back(networks_text(a, b));
  row.push_back(processes_text(a));
  row.push_back(processes_text(b));
  return row;
}

void print_text(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    fmt::print("{}{}\n", line, row.back());
  }
}

Row heading(bool watch) {
  if (!watch) {
    return {"LOCAL",  "PEER",     "PATH",    "SENT",    "MESSAGES",
            "SLEEPS", "WAKE-UPS", "NETWORK", "PROCESS", "PEER'S PROCESS"};
  }
  return {"LOCAL",      "PEER",   "PATH",     "SENT",    "SENT/S",  "MESSAGES",
          "MESSAGES/S", "SLEEPS", "WAKE-UPS", "NETWORK", "PROCESS", "PEER'S PROCESS"};
}

std::string json_object(const Connection& connection, const std::optional<Rate>& rate) {
  return fmt::format("{{\"local\": {}, \"peer\": {}, \"path\": \"{}\", \"why\": {}}}",
                     json_end(connection, 0, rate), json_end(connection, 1, rate), connection.path,
                     json_string(connection.why));
}

void print_json(const std::vector<std::string>& objects, bool one_line) {
  fmt::print("[");
  const char* comma = "";
  for (const std::string& object : objects) {
    fmt::print("{}{}", comma, object);
    comma = one_line ? ", " : ",\n";
  }
  fmt::print("]\n");
}

// --- Prometheus ---------------------------------------------------------------------------------------

namespace {

/// A reason without numbers of processes and users: there are few of them.
std::string reason_label(const std::string& why) {
  std::string label;
  for (const char c : printable(why)) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (digit && !label.empty() && label.back() == 'N') continue;
    if (c == '"' || c == '\\') label += '\\';
    label += digit ? 'N' : c;
  }
  return label;
}

std::string first_command(const EndView& end) {
  return end.processes.empty() ? "" : json_string(command_name(*end.processes.begin()));
}

void print_counter(const Look& seen, const char* name, const char* help, std::uint64_t EndView::*counter) {
  fmt::print("# HELP clan_{} {}\n# TYPE clan_{} counter\n", name, help, name);
  for (const Connection& connection : seen.connections) {
    if (!connection.in_pipe) continue;
    for (int end = 0; end < 2; ++end) {
      const EndView& here = connection.ends[end];
      const std::string command = first_command(here);
      fmt::print("clan_{}{{local=\"{}\",peer=\"{}\",network=\"{}\",command={}}} {}\n", name,
                 with_port(here.address), with_port(connection.ends[1 - end].address), here.network,
                 command.empty() ? "\"\"" : command, here.*counter);
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
    fmt::print("clan_connections{{path=\"{}\",reason=\"{}\"}} {}\n", labels.first, labels.second, count);
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
