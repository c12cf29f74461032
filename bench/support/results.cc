#include "support/results.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/plot.h"

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

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text;
  return static_cast<bool>(out.flush());
}

}  // namespace

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
      const bool last_text = c + 1 == row.size();
      if (c < left || last_text) {
        line += fmt::format(" {:<{}} ", row[c], width[c]);
      } else {
        line += fmt::format(" {:>{}} ", row[c], width[c]);
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string format_x(double x, const std::string& x_name) {
  if (x_name == "bytes") {
    if (x >= 1048576 && std::fmod(x, 1048576) == 0) return fmt::format("{:.0f} MB", x / 1048576);
    if (x >= 1024 && std::fmod(x, 1024) == 0) return fmt::format("{:.0f} KB", x / 1024);
    return fmt::format("{:.0f} B", x);
  }
  return fmt::format("{:.0f}", x);
}

std::string format_value(double value) {
  const double a = std::fabs(value);
  if (a >= 1000) return fmt::format("{:.0f}", value);
  if (a >= 100) return fmt::format("{:.1f}", value);
  if (a >= 10) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::optional<CpuTime> cpu_time(const Row& row) {
  if (row.cpu_ns <= 0) return std::nullopt;
  // Nanoseconds of a byte are seconds of a gigabyte.
  if (row.unit == "GB/s" && row.x_name == "bytes") return CpuTime{row.cpu_ns / row.x, "s/GB"};
  return CpuTime{row.cpu_ns, "ns"};
}

std::string format_cpu_time(const Row& row) {
  const auto cpu = cpu_time(row);
  return cpu ? fmt::format("{} {}", format_value(cpu->value), cpu->unit) : "-";
}

void Results::skip(Skip skip) {
  for (const Skip& s : skips_) {
    if (s.benchmark == skip.benchmark && s.variant == skip.variant && s.reason == skip.reason) {
      return;
    }
  }
  skips_.push_back(std::move(skip));
}

const Row* Results::find(const std::string& benchmark, const std::string& variant, double x) const {
  for (const Row& r : rows_) {
    if (r.benchmark == benchmark && r.variant == variant && r.x == x) return &r;
  }
  return nullptr;
}

std::vector<std::string> Results::benchmarks() const {
  std::vector<std::string> names;
  for (const Row& r : rows_) {
    if (std::find(names.begin(), names.end(), r.benchmark) == names.end()) {
      names.push_back(r.benchmark);
    }
  }
  return names;
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
  for (const std::string& name : benchmarks()) items[name] = item(name);
  for (const Row& r : rows_) items[r.benchmark]["rows"].push_back(json_of(r));
  if (!verdicts_.empty()) items["bars"] = item("what CLAN has to reach");
  for (const Verdict& v : verdicts_) items["bars"]["lines"].push_back(json_of(v));
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool Results::write(const std::string& directory, const Machine& machine,
                    const About& about) const {
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return false;
  if (!write_file(directory + "/" + about.name + ".json", json(machine, about))) return false;
  for (const std::string& name : benchmarks()) {
    std::vector<Row> rows;
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(rows),
                 [&](const Row& r) { return r.benchmark == name; });
    const std::string svg = plot_svg(name, rows, machine_line(machine));
    if (!write_file(directory + "/" + name + ".svg", svg)) return false;
  }
  return true;
}

}  // namespace clan::bench
