// What the subcommands of `clan` do; the command line itself is main.cc's. One command per process.
#pragma once

#include <string>
#include <vector>

namespace clan::tool {

/// `clan doctor`: prints what this machine allows and what CLAN makes of it. The exit code.
int doctor(bool json);

/// `clan env`: prints the CLAN_* variables, their meaning and what they are set to.
void print_environment();

/// `clan bench …`: becomes the bench runner, clan-bench. Returns, with an exit code, only if that
/// could not be started.
int exec_bench(const std::vector<std::string>& arguments);

}  // namespace clan::tool
