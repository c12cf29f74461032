#include "support/results.h"

#include <fmt/chrono.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/clock.h"
#include "support/load.h"

namespace clan::bench {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;  ///< VERSION of report.py

/// What is not finite is null, as JSON has it.
Json number(double v) { return std::isfinite(v) ? Json(v) : Json(); }
Json number_above_zero(double v) { return v > 0 ? number(v) : Json(); }

Json json_of(const Machine& m, const About& about) {
  return {{"cpu", m.cpu_model},     {"cores", m.cores},
          {"used", about.cores},    {"kernel", m.kernel},
          {"governor", m.governor}, {"date", m.date},
          {"commit", m.commit},     {"compiler", m.compiler},
          {"load", m.load_average}, {"others", {{"clock", m.clock}}}};
}

/// Times are microseconds.
Json json_of(const Row& r) {
  const bool is_time = r.unit == "ns";
  const double scale = is_time ? 1000 : 1;
  return {{"series", r.variant},
          {"benchmark", r.benchmark},
          {"variant", r.variant},
          {"x", number(r.x)},
          {"value", number(r.stats.p50 / scale)},
          {"unit", is_time ? "us" : r.unit},
          {"x_name", r.x_name},
          {"higher", r.higher_is_better},
          {"low", number(r.stats.min / scale)},
          {"high", number(r.stats.p99 / scale)},
          {"probe_us", number_above_zero(r.probe_ns / 1000)},
          {"trips", number_above_zero(r.to_probe())},
          {"note", r.note},
          {"text", fmt::format("{}, {}", r.benchmark, format_x(r.x, r.x_name))},
          {"cpu", number_above_zero(r.cpu_ns / 1000)},
          {"samples", Json::array()}};
}

Json json_of(const Verdict& v) {
  Json more = Json::object();
  for (const auto& [heading, text] : v.more) more[heading] = text;
  return {{"text", v.text},     {"wanted", v.wanted},       {"verdict", v.verdict},
          {"figure", v.figure}, {"ratios", Json::object()}, {"more", more}};
}

Json item(const std::string& title) {
  return {{"title", title},
          {"state", "measured"},
          {"said", Json::array()},
          {"rows", Json::array()},
          {"lines", Json::array()}};
}

/// The first line of a file that begins so, without the beginning.
std::string line_of(const char* path, std::string_view begins = "") {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(begins)) return line.substr(begins.size());
  }
  return "";
}

}  // namespace

Machine describe_machine() {
  Machine m;
  m.cpu_model = line_of("/proc/cpuinfo", "model name\t: ");
  if (m.cpu_model.empty()) m.cpu_model = "unknown CPU";
  m.cores = static_cast<int>(allowed_cores().size());
  utsname u{};
  uname(&u);
  m.kernel = fmt::format("{} {}", u.sysname, u.release);
  m.governor = line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (m.governor.empty()) m.governor = "none";
  m.clock = Clock::uses_tsc() ? "invariant tsc" : "CLOCK_MONOTONIC";
  m.date = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time(nullptr)));
  m.commit = CLAN_BENCH_COMMIT;
#if defined(__clang__)
  m.compiler = "clang " __clang_version__ ", " CLAN_BENCH_BUILD_TYPE;
#else
  m.compiler = "gcc " __VERSION__ ", " CLAN_BENCH_BUILD_TYPE;
#endif
  m.load_average = line_of("/proc/loadavg");
  return m;
}

std::string machine_report(const Machine& m) {
  return fmt::format(
      "machine   {} · {} cores · governor {}\n"
      "system    {} · clock {} · load {}\n"
      "build     {} · commit {} · {}\n",
      m.cpu_model, m.cores, m.governor, m.kernel, m.clock, m.load_average, m.compiler, m.commit,
      m.date);
}

std::string aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool to_the_left = c < left || c + 1 == row.size();
      line += to_the_left ? fmt::format(" {:<{}} ", row[c], width[c])
                          : fmt::format(" {:>{}} ", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string format_x(double x, const std::string& x_name) {
  const auto in = [&](double unit) { return x >= unit && std::fmod(x, unit) == 0; };
  if (x_name != "bytes") return fmt::format("{:.0f}", x);
  if (in(1048576)) return fmt::format("{:.0f} MB", x / 1048576);
  return in(1024) ? fmt::format("{:.0f} KB", x / 1024) : fmt::format("{:.0f} B", x);
}

std::string format_value(double value) {
  const double a = std::fabs(value);
  return fmt::format("{:.{}f}", value, a >= 1000 ? 0 : a >= 100 ? 1 : a >= 10 ? 2 : 3);
}

double times_better(const Row& mine, const Row& other) {
  return mine.higher_is_better ? mine.stats.p50 / other.stats.p50
                               : other.stats.p50 / mine.stats.p50;
}

std::string format_cpu_time(const Row& row) {
  if (row.cpu_ns <= 0) return "-";
  // Nanoseconds of a byte are seconds of a gigabyte.
  if (row.unit == "GB/s" && row.x_name == "bytes")
    return fmt::format("{} s/GB", format_value(row.cpu_ns / row.x));
  return fmt::format("{} ns", format_value(row.cpu_ns));
}

void Results::skip(Skip skip) {
  const bool known = std::any_of(skips_.begin(), skips_.end(), [&](const Skip& s) {
    return s.benchmark == skip.benchmark && s.variant == skip.variant && s.reason == skip.reason;
  });
  if (!known) skips_.push_back(std::move(skip));
}

const Row* Results::best(const std::string& benchmark, const std::vector<std::string>& variants,
                         double x) const {
  const Row* found = nullptr;
  for (const std::string& variant : variants) {
    const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) {
      return r.benchmark == benchmark && r.variant == variant && r.x == x;
    });
    if (row != rows_.end() && (found == nullptr || times_better(*row, *found) > 1)) found = &*row;
  }
  return found;
}

std::string Results::table(const std::string& benchmark) const {
  std::vector<std::vector<std::string>> cells;
  for (const Row& r : rows_) {
    if (r.benchmark != benchmark) continue;
    if (cells.empty()) {
      cells.push_back({r.x_name, "variant", "min", "p50", "p99", "max", "MAD", "unit", "CPU time",
                       "runs", "dropped", "probe ns", "x probe", ""});
    }
    cells.push_back(
        {format_x(r.x, r.x_name), r.variant, format_value(r.stats.min), format_value(r.stats.p50),
         format_value(r.stats.p99), format_value(r.stats.max), format_value(r.stats.mad), r.unit,
         format_cpu_time(r), fmt::format("{}", r.stats.runs), fmt::format("{}", r.dropped),
         r.probe_ns > 0 ? fmt::format("{:.0f}", r.probe_ns) : "-",
         r.to_probe() > 0 ? fmt::format("{:.2f}", r.to_probe()) : "-", r.note});
  }
  std::string out = aligned(cells, 2);
  for (const Skip& s : skips_) {
    if (s.benchmark == benchmark) {
      out += fmt::format("  {} {}: {}\n", s.failed ? "failed" : "skipped", s.variant, s.reason);
    }
  }
  return out;
}

std::string Results::json(const Machine& machine, const About& about) const {
  Json json{
      {"version", kVersion},      {"bench", about.name},       {"machine", json_of(machine, about)},
      {"how", about.how},         {"warnings", Json::array()}, {"failed", Json::object()},
      {"skipped", Json::object()}};
  for (const Skip& s : skips_) {
    json[s.failed ? "failed" : "skipped"][s.benchmark + ", " + s.variant] = s.reason;
  }
  for (const char* verdict : {"met", "missed", "not judged"}) {
    json[verdict] = std::count_if(verdicts_.begin(), verdicts_.end(),
                                  [=](const Verdict& v) { return v.verdict == verdict; });
  }
  Json& items = json["items"] = Json::object();
  for (const Row& r : rows_) {
    if (!items.contains(r.benchmark)) items[r.benchmark] = item(r.benchmark);
    items[r.benchmark]["rows"].push_back(json_of(r));
  }
  if (!verdicts_.empty()) items["bars"] = item("what CLAN has to reach");
  for (const Verdict& v : verdicts_) items["bars"]["lines"].push_back(json_of(v));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool Results::write(const std::string& directory, const Machine& machine,
                    const About& about) const {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return false;
  std::ofstream out(directory + "/" + about.name + ".json", std::ios::trunc);
  out << json(machine, about);
  return static_cast<bool>(out.flush());
}

}  // namespace clan::bench
