#include "support/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

namespace clan::bench {

namespace {

constexpr double kWidth = 900;
constexpr double kHeight = 540;
constexpr double kTop = 76;
constexpr double kBottom = 64;
constexpr double kLeft = 84;
constexpr double kLegendWidth = 150;
constexpr const char* kInk = "#1f2933";
constexpr const char* kFaint = "#7b8794";
constexpr const char* kGrid = "#e4e7eb";

std::string escaped(const std::string& s) {
  std::string out;
  for (char c : s) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

/// The same variant has the same colour in every plot; CLAN's is the most visible.
std::string colour_of(const std::string& variant, std::size_t index) {
  if (variant.rfind("clan", 0) == 0) {
    static constexpr std::array<const char*, 4> kClan = {"#d64545", "#e66a00", "#ba2525",
                                                         "#f0a202"};
    std::size_t h = 0;
    for (char c : variant) h = h * 31 + static_cast<unsigned char>(c);
    return variant == "clan" ? kClan[0] : kClan[1 + h % 3];
  }
  static const std::map<std::string, const char*> kKnown = {
      {"bare", "#3e4c59"},           {"tcp", "#2186eb"},       {"tcp-poll", "#7fb8f0"},
      {"unix", "#199473"},           {"unix-poll", "#7bd0b4"}, {"seqpacket", "#7c5cbf"},
      {"seqpacket-poll", "#bda7e6"}, {"ucx", "#b8860b"}};
  const auto known = kKnown.find(variant);
  if (known != kKnown.end()) return known->second;
  static constexpr std::array<const char*, 6> kOthers = {"#0e7c86", "#8719e0", "#a0522d",
                                                         "#52606d", "#c13584", "#5c8001"};
  return kOthers[index % kOthers.size()];
}

std::string text(double x, double y, const std::string& s, const char* anchor, double size,
                 const char* colour, const char* more = "") {
  return fmt::format(
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{}\" {}>{}"
      "</text>\n",
      x, y, anchor, size, colour, more, escaped(s));
}

std::string line(double x1, double y1, double x2, double y2, const std::string& colour,
                 double width, const char* more = "") {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
      "stroke-width=\"{}\" {}/>\n",
      x1, y1, x2, y2, colour, width, more);
}

std::string frame(const std::string& title, const std::string& subtitle, double height) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  out += text(24, 32, title, "start", 18, kInk, "font-weight=\"bold\"");
  return out + text(24, 52, subtitle, "start", 11, kFaint);
}

/// Maps values to pixels on a logarithmic axis of whole decades, or near enough for short ranges.
class LogAxis {
 public:
  LogAxis(double low, double high, double from, double to) : from_(from), to_(to) {
    low_ = std::floor(std::log10(low) * 2) / 2;
    high_ = std::ceil(std::log10(high) * 2) / 2;
    if (high_ - low_ < 1) high_ = low_ + 1;
  }
  double operator()(double v) const {
    return from_ + (std::log10(v) - low_) / (high_ - low_) * (to_ - from_);
  }
  /// 1, 2 and 5 of each decade where there is room, else the decades.
  std::vector<double> ticks() const {
    std::vector<double> out;
    const bool dense = high_ - low_ <= 3;
    for (int e = static_cast<int>(std::floor(low_)); e <= static_cast<int>(high_); ++e) {
      for (double m : dense ? std::vector<double>{1, 2, 5} : std::vector<double>{1}) {
        const double v = m * std::pow(10.0, e);
        const double l = std::log10(v);
        if (l >= low_ - 1e-9 && l <= high_ + 1e-9) out.push_back(v);
      }
    }
    return out;
  }

 private:
  double low_ = 0, high_ = 1, from_, to_;
};

std::string tick_label(double v) {
  if (v >= 1e6) return fmt::format("{:g}M", v / 1e6);
  if (v >= 1e4) return fmt::format("{:g}k", v / 1e3);
  return fmt::format("{:g}", v);
}

std::string axis_title(const Row& row) {
  return row.unit + (row.higher_is_better ? "  (more is better)" : "  (less is better)");
}

std::vector<std::string> variants_of(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& r : rows) {
    if (std::find(names.begin(), names.end(), r.variant) == names.end()) {
      names.push_back(r.variant);
    }
  }
  return names;
}

std::vector<double> xs_of(const std::vector<Row>& rows) {
  std::vector<double> xs;
  for (const Row& r : rows) xs.push_back(r.x);
  std::sort(xs.begin(), xs.end());
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  return xs;
}

std::string draw_grid(const std::vector<Row>& rows, const std::vector<double>& xs,
                      const LogAxis& ax, const LogAxis& ay, double right, double base) {
  std::string out;
  for (double v : ay.ticks()) {
    out += line(kLeft, ay(v), right, ay(v), kGrid, 1);
    out += text(kLeft - 8, ay(v) + 4, tick_label(v), "end", 11, kFaint);
  }
  double last = -1e9;
  for (double x : xs) {
    out += line(ax(x), kTop, ax(x), base, kGrid, 1);
    constexpr double kLabelRoom = 42;
    if (ax(x) - last < kLabelRoom) continue;
    last = ax(x);
    out += text(ax(x), base + 18, format_x(x, rows.front().x_name), "middle", 11, kFaint);
  }
  out += line(kLeft, base, right, base, kInk, 1.2);
  out += line(kLeft, kTop, kLeft, base, kInk, 1.2);
  out += text((kLeft + right) / 2, base + 42, rows.front().x_name, "middle", 12, kInk);
  const double mid = (kTop + base) / 2;
  const std::string turn = fmt::format("transform=\"rotate(-90 22 {:.1f})\"", mid);
  return out + text(22, mid, axis_title(rows.front()), "middle", 12, kInk, turn.c_str());
}

std::string draw_series(const std::vector<const Row*>& series, const std::string& colour,
                        const LogAxis& ax, const LogAxis& ay, bool emphasised) {
  std::string points, marks;
  for (const Row* r : series) {
    const double x = ax(r->x), y = ay(r->stats.p50);
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    if (r->stats.min > 0) {
      marks += line(x, ay(r->stats.min), x, ay(r->stats.p99), colour, 1, "opacity=\"0.35\"");
    }
    marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", x, y,
                         emphasised ? 4 : 3, colour);
  }
  return fmt::format(
             "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
             "stroke-linejoin=\"round\"/>\n",
             points, colour, emphasised ? 2.8 : 1.6) +
         marks;
}

std::string line_plot(const std::string& title, const std::vector<Row>& rows,
                      const std::string& subtitle) {
  const double right = kWidth - kLegendWidth - 16;
  const double base = kHeight - kBottom;
  const auto xs = xs_of(rows);
  double low = 1e300, high = 0;
  for (const Row& r : rows) {
    low = std::min({low, r.stats.p50, r.stats.min > 0 ? r.stats.min : r.stats.p50});
    high = std::max({high, r.stats.p50, r.stats.p99});
  }
  const LogAxis ax(std::max(xs.front(), 1e-9), xs.back(), kLeft, right);
  const LogAxis ay(low, high, base, kTop);
  std::string out = frame(title, subtitle, kHeight);
  out += draw_grid(rows, xs, ax, ay, right, base);
  const auto names = variants_of(rows);
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<const Row*> series;
    for (const Row& r : rows) {
      if (r.variant == names[i]) series.push_back(&r);
    }
    std::sort(series.begin(), series.end(), [](const Row* a, const Row* b) { return a->x < b->x; });
    const std::string colour = colour_of(names[i], i);
    const bool emphasised = names[i].rfind("clan", 0) == 0;
    out += draw_series(series, colour, ax, ay, emphasised);
    const double y = kTop + 12 + static_cast<double>(i) * 20;
    out += line(right + 18, y, right + 42, y, colour, emphasised ? 3 : 2);
    out += text(right + 50, y + 4, names[i], "start", 12, kInk);
  }
  return out + "</svg>\n";
}

std::string bar_plot(const std::string& title, const std::vector<Row>& rows,
                     const std::string& subtitle) {
  constexpr double kBar = 24, kGap = 12, kLabels = 190, kValues = 110;
  const double height = kTop + static_cast<double>(rows.size()) * (kBar + kGap) + 40;
  const auto names = variants_of(rows);
  double low = 1e300, high = 0;
  for (const Row& r : rows) {
    low = std::min(low, r.stats.p50);
    high = std::max(high, r.stats.p50);
  }
  const bool logarithmic = low > 0 && high / low > 50;
  const double room = kWidth - kLabels - kValues;
  const auto length = [&](double v) {
    if (!logarithmic) return high > 0 ? v / high * room : 0;
    const double floor = std::log10(low) - 0.5;
    return (std::log10(v) - floor) / (std::log10(high) - floor) * room;
  };
  std::string out = frame(title, subtitle, height);
  double y = kTop;
  const bool several_x = xs_of(rows).size() > 1;
  for (const Row& r : rows) {
    const auto i =
        static_cast<std::size_t>(std::find(names.begin(), names.end(), r.variant) - names.begin());
    const std::string label = several_x ? r.variant + ", " + format_x(r.x, r.x_name) : r.variant;
    out += text(kLabels - 10, y + kBar / 2 + 4, label, "end", 12, kInk);
    out += fmt::format(
        "<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" rx=\"3\" fill=\"{}\"/>\n",
        kLabels, y, std::max(length(r.stats.p50), 1.0), kBar, colour_of(r.variant, i));
    out += text(kLabels + length(r.stats.p50) + 8, y + kBar / 2 + 4,
                format_value(r.stats.p50) + " " + r.unit, "start", 12, kInk);
    y += kBar + kGap;
  }
  const std::string scale = logarithmic ? ", logarithmic bars" : "";
  return out + text(kLabels, y + 14, axis_title(rows.front()) + scale, "start", 11, kFaint) +
         "</svg>\n";
}

}  // namespace

std::string plot_svg(const std::string& title, const std::vector<Row>& rows,
                     const std::string& subtitle) {
  const auto xs = xs_of(rows);
  const bool positive = std::all_of(rows.begin(), rows.end(),
                                    [](const Row& r) { return r.x > 0 && r.stats.p50 > 0; });
  if (xs.size() > 2 && positive) return line_plot(title, rows, subtitle);
  return bar_plot(title, rows, subtitle);
}

}  // namespace clan::bench
