// `clan doctor`: asks the kernel by trying, not by reading version numbers, and says for each
// answer what CLAN does with it. Changes nothing.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "../commands.h"
#include "../faces.h"
#include "finding.h"

namespace clan::tool {
namespace {

std::string_view to_string(State state) {
  switch (state) {
    case State::kOk: return "ok";
    case State::kLimited: return "limited";
    case State::kAbsent: return "absent";
  }
  return "";
}

void print_json(const std::vector<Finding>& findings, bool usable) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Finding& f : findings) {
    list.push_back(
        {{"name", f.name}, {"state", to_string(f.state)}, {"seen", f.seen}, {"effect", f.effect}});
  }
  const Json report{{"usable", usable}, {"findings", std::move(list)}};
  fmt::print("{}\n", report.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_text(const std::vector<Finding>& findings, bool usable) {
  for (const Finding& f : findings) {
    fmt::print("{:<14} {:<8} {}\n{:<23} {}\n", f.name, to_string(f.state), f.seen, "", f.effect);
  }
  fmt::print("\n{}\n", usable ? "CLAN can be used on this machine."
                              : "CLAN cannot be used on this machine: see what is absent above.");
}

}  // namespace

int doctor(bool json, const std::string& host) {
  std::vector<Finding> findings{check_memfd(),        check_unix_sockets(), check_membarrier(),
                                check_process_vm(),   check_cpus(),         check_scheduler(),
                                check_ptrace_scope(), check_memlock(),      check_max_map_count(),
                                check_huge_pages(),   check_userfaultfd(),  check_af_xdp(host),
                                check_tun()};
  if (!host.empty()) {
    findings.push_back(check_far_host(host));
    findings.push_back(check_network_port());
  }
  for (const Face& face : faces()) {  // whether this machine's libraries can load it
    const FaceState state = state_of(face);
    findings.push_back({.name = face.title,
                        .state = state.found ? State::kOk : State::kAbsent,
                        .seen = state.seen,
                        .effect = state.effect});
  }
  const bool usable =
      std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.fatal; });
  json ? print_json(findings, usable) : print_text(findings, usable);
  return usable ? 0 : 1;
}

}  // namespace clan::tool
