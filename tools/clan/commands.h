// What the subcommands of `clan` do; the command line itself is main.cc's. One command per process.
#pragma once

#include <clan/context.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "faces.h"

namespace clan::tool {

/// `clan doctor [HOST]`: prints what this machine allows and what CLAN makes of it, and of the path
/// to HOST. The exit code.
int doctor(bool json, const std::string& host);

/// `clan ping HOST`: is there CLAN on that host, and how is the path? The exit code.
struct PingOptions {
  std::string host;
  std::string mode, key_file;  ///< empty: as the settings have them
  unsigned count = 10, interval_ms = 100, timeout_ms = 5000;
};
int ping(const PingOptions& asked);
/// "HOST:PORT" of HOST or HOST:PORT: without a port its directory's.
std::string host_and_port(const std::string& host);

/// `clan env`: prints the CLAN_* variables, their meaning, what they are set to and what is wrong
/// with that. False if something is.
bool print_environment();
/// The same as text for a help page: names and meanings only.
std::string environment_help();

/// The names of these variables.
std::vector<std::string> variable_names();

/// Why the value of a CLAN_* variable is wrong, by the rules of the library, as the end of a
/// sentence that begins with it. "" if it is not; for what is no such variable, too.
std::string why_wrong(const std::string& name, const std::string& value);
/// A sentence for each CLAN_* variable of this environment, and each line of the file CLAN_CONFIG
/// names, that the library would complain of; with CLAN_DISABLE or `log_alone` only of CLAN_LOG.
std::vector<std::string> wrong_settings(bool log_alone);
/// Why connections to other hosts are asked for and cannot move; empty: they are not, or can.
/// `library`: the preload library, which has libclan-net.so beside it.
std::string why_no_net(const std::string& library);
/// Other hosts by the settings of this environment and of the file that it names, whatever is wrong
/// with the others.
NetworkOptions network_settings();
/// A sentence for each CLAN_* variable of this environment that no part of CLAN knows.
std::vector<std::string> unknown_variables();
/// The text of a settings file. Otherwise `why` says why it cannot be had.
std::string read_settings_file(const std::string& path, std::string* why);

/// `clan bench …`: becomes the bench runner, clan-bench. Returns, with an exit code, only if that
/// could not be started.
int exec_bench(const std::vector<std::string>& arguments);
/// Becomes a program of ../lib/clan, as `clan ip` does. As exec_bench().
int exec_part(const char* name, const std::vector<std::string>& arguments);

/// Options of `clan run`. Empty: leave the variable as it is.
struct RunOptions {
  bool tcp = true;                 ///< the preload library
  std::vector<const Face*> faces;  ///< those besides
  std::string only;
  std::string except;
  std::string log;
  std::string config;
  bool disable = false;
  bool net = false;
};

/// `clan run COMMAND…`: becomes the command, with the faces that the options name. Returns, with an
/// exit code, only if that could not be done: 2 for wrong settings, 125 for a reason of our own,
/// 126 and 127 as env(1) has them.
int exec_under_clan(const RunOptions& options, const std::vector<std::string>& command);

/// `clan gateway …`: becomes clan-gateway under the interposer; `clan gateway reload`: has a
/// running one replaced by a new program. The exit code.
int gateway(const std::vector<std::string>& arguments);

struct StatOptions {
  bool json = false;
  /// also local TCP connections of programs under CLAN that have not moved
  bool all = false;
  bool prometheus = false;  ///< in Prometheus' text format; with `all`
  bool watch = false;       ///< again and again, with rates
  double interval_s = 1;    ///< between two looks
  std::vector<pid_t> pids;  ///< empty: every process
};

/// `clan stat`: lists the connections that go over CLAN. The exit code; with `watch`, returns only
/// when there is nobody left to tell.
int print_connections(const StatOptions& options);

}  // namespace clan::tool
