#include <clan/version.h>

#include <CLI/CLI.hpp>
#include <string>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app{"CLAN: user-level networking. Looks at this machine and measures the engine on it."};
  app.name("clan");
  app.set_version_flag("--version", std::string("clan ") + clan::version());
  app.require_subcommand(1);
  int exit_code = 0;

  auto* doctor =
      app.add_subcommand("doctor", "What this machine allows, and what CLAN makes of it");
  doctor->add_flag("--json")->description("The same as JSON");
  doctor->callback([&] { exit_code = clan::tool::doctor(doctor->count("--json") > 0); });

  app.add_subcommand("env", "The CLAN_* variables and what they are set to")
      ->callback(clan::tool::print_environment);

  auto* bench =
      app.add_subcommand("bench", "Measure CLAN beside the kernel: see `clan bench help`");
  bench->prefix_command();  // everything after `bench` is the runner's,
  bench->set_help_flag();   // --help too
  bench->callback([&] { exit_code = clan::tool::exec_bench(bench->remaining()); });

  CLI11_PARSE(app, argc, argv);
  return exit_code;
}
