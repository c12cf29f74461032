#include <clan/face/settings.h>
#include <clan/version.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.h"
#include "help.h"

namespace {

/// Wraps what CLI11 lays out at the terminal's width.
class WrappedFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return clan::tool::wrapped(CLI::Formatter::make_help(app, std::move(name), mode),
                               clan::tool::terminal_width());
  }
};

#ifdef CLAN_PRELOAD
/// "" if `text` is what CLAN_ONLY and CLAN_EXCEPT want: "80,8000-8010".
std::string check_ports(const std::string& text) {
  clan::Ports ports;
  clan::SettingFault fault;
  if (text.empty()) return "an empty list of ports";
  return clan::parse_ports(text.c_str(), &ports, &fault) ? ""
                                                         : text.substr(0, 120) + " " + fault.text;
}

std::string check_pid(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const bool pid = digits && text.size() < 10 && std::stol(text) > 0;
  return pid ? "" : text.substr(0, 40) + " is not a process id";
}

/// True if `list`, words between commas, has this one.
bool names_face(const std::string& list, const std::string& face) {
  return ("," + list + ",").find("," + face + ",") != std::string::npos;
}

/// "" if `text` names faces of CLAN, each once.
std::string check_faces(const std::string& text) {
  std::vector<std::string> known = {"tcp"};
  for (const clan::tool::Face& face : clan::tool::faces()) {
    if (!face.carries.empty()) known.push_back(face.name);
  }
  std::size_t length = 0, found = 0;
  std::string all;
  for (const std::string& face : known) {
    all += (all.empty() ? "" : ", ") + face;
    if (names_face(text, face)) length += face.size() + (found++ > 0 ? 1 : 0);
  }
  return found > 0 && length == text.size()
             ? ""
             : text.substr(0, 40) + " is none of " + all + ", nor a list of them";
}

/// CLI11 does not know that a prefix command wants a command.
class RunFormatter : public WrappedFormatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: clan run [OPTIONS] COMMAND [ARGUMENT]...\n";
  }
};

std::string about_run() {
  return "The command runs as it always does, with libclan-preload.so added to LD_PRELOAD. TCP "
         "connections to other programs on this machine that run under CLAN too move to shared "
         "memory once they are in use. A peer without CLAN, on this machine or another, notices "
         "nothing: the connection stays on TCP. `clan stat` shows which have moved.\n\n"
         "With `--with ofi` the command runs without that library; libfabric finds CLAN's provider "
         "and takes it alone, and Open MPI takes libfabric (FI_PROVIDER_PATH, FI_PROVIDER, "
         "OMPI_MCA_pml, OMPI_MCA_mtl, OMPI_MCA_btl): `clan run --with ofi mpirun -n 2 "
         "PROGRAM`.\n\n"
         "With `--with orb` omniORB's programs call each other over CLAN and everybody else by "
         "TCP: servers get an endpoint giop:clan: beside theirs. `--log info` says by which path "
         "each connection goes.\n"
         "With `--with rpc` remote calls of libtirpc go over CLAN to servers of this machine that "
         "run so, too.\n"
         "With `--with mpi` ranks of Open MPI send to each other by CLAN's byte transfer layer.\n"
         "ofi, orb, rpc and mpi reach other hosts, too, where both have the same CLAN_KEY.\n\n"
         "What the libraries read from the environment; the options above set it, and the "
         "command's children inherit it:\n" +
         clan::tool::environment_help() +
         "\nExit code: the command's; 127 if there is no such command, 126 if it cannot be "
         "started, 2 for options or settings that are wrong, 125 if `clan run` itself failed. A "
         "setuid program, a static one and one of another architecture run without CLAN.";
}

void add_faces(CLI::App& run, clan::tool::RunOptions& options) {
  std::string about = "What goes over CLAN: local TCP connections (tcp, the default), ";
  for (const clan::tool::Face& face : clan::tool::faces()) {
    if (!face.carries.empty()) about += fmt::format("{} ({}), ", face.carries, face.name);
  }
  run.add_option_function<std::string>(
         "--with",
         [&options](const std::string& faces) {
           options.tcp = names_face(faces, "tcp");
           options.faces.clear();
           for (const clan::tool::Face& face : clan::tool::faces()) {
             if (names_face(faces, face.name)) options.faces.push_back(&face);
           }
         },
         about + "or several (tcp,ofi)")
      ->type_name("FACE,...")
      ->check(check_faces);
}

CLI::App* add_run(CLI::App& app, clan::tool::RunOptions& options, int& exit_code) {
  auto* run = app.add_subcommand(
      "run", "Run a program with its local TCP connections, or libfabric, over CLAN");
  run->formatter(std::make_shared<RunFormatter>());
  run->prefix_command();  // from the command's name on, everything is the command's
  add_faces(*run, options);
  run->add_option("--only", options.only, "Only connections with one of these ports (CLAN_ONLY)")
      ->type_name("PORT,...")
      ->check(check_ports);
  run->add_option("--except", options.except, "No connection with one of these ports (CLAN_EXCEPT)")
      ->type_name("PORT,...")
      ->check(check_ports);
  run->add_option("--log", options.log, "How much to say on stderr (CLAN_LOG)")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"off", "error", "warn", "info", "debug"}));
  run->add_option("--config", options.config, "A file with settings (CLAN_CONFIG)")
      ->type_name("FILE");
  run->add_flag("--disable", options.disable,
                "Load the library, but leave all on TCP (CLAN_DISABLE=1)");
  run->add_flag("--net", options.net,
                "Connections to other hosts move, too (experimental; CLAN_NET=1)");
  run->footer(about_run);
  run->callback([=, &options, &exit_code] {
    exit_code = clan::tool::exec_under_clan(options, run->remaining());
  });
  return run;
}

/// Takes the "--" of `clan run OPTIONS -- COMMAND` out: CLI11 would hand the command to the main
/// program.
void drop_mark(const CLI::App& run, int& argc, char** argv) {
  if (argc < 2 || run.get_name() != argv[1]) return;
  for (int i = 2; i < argc && argv[i][0] == '-'; ++i) {
    if (std::string_view(argv[i]) == "--") {
      std::copy(argv + i + 1, argv + argc + 1, argv + i);  // with the null at the end
      --argc;
      return;
    }
    const CLI::Option* option = run.get_option_no_throw(argv[i]);
    if (option != nullptr && option->get_expected_min() > 0) ++i;  // its value
  }
}
#endif

/// The command of this name, null if there is none.
const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

/// Says that there is no such command. The exit code.
int complain_about(const CLI::App& app, const std::string& word) {
  fmt::print(stderr, "clan: there is no command \"{}\". There are:", word);
  for (const CLI::App* command : app.get_subcommands({}))
    fmt::print(stderr, " {}", command->get_name());
  fmt::print(stderr, ".\n`clan help` says what each does.\n");
  return 2;
}

#ifdef CLAN_PRELOAD
void add_stat(CLI::App& app, clan::tool::StatOptions& options, int& exit_code) {
  auto* stat = app.add_subcommand("stat", "The connections that go over CLAN now, of any process");
  stat->add_flag("--json", options.json, "An array of objects; with --watch one array per line");
  stat->add_flag("--all", options.all,
                 "Also local TCP connections of programs under CLAN, and with --net those to other "
                 "hosts, that have not moved, and why");
  auto* prometheus = stat->add_flag(
      "--prometheus", options.prometheus,
      "Prometheus' text format, of all connections, for node_exporter's textfile collector");
  auto* watch = stat->add_option("--watch", options.interval_s,
                                 "Again every so many seconds (1), with rates, until interrupted")
                    ->type_name("[SECONDS]")
                    ->expected(0, 1)
                    ->check(CLI::Range(0.1, 3600.0))
                    ->excludes(prometheus);
  stat->add_option("PID", options.pids, "Only connections of these processes")->check(check_pid);
  stat->footer(
      "A line is a connection. SENT, MESSAGES, SLEEPS and WAKE-UPS are those of the local end, a "
      "slash, and those of the other end; bytes that went by TCP before the connection moved are "
      "not among them. NETWORK is the number of the network namespace, as in /proc/PID/ns/net; two "
      "if the ends differ.\n"
      "The command takes nothing from the processes that it reads. It needs the right to read "
      "/proc/PID/fd: your own processes, or all of them as root.");
  stat->callback([=, &options, &exit_code] {
    options.watch = watch->count() > 0;
    options.all = options.all || options.prometheus;
    exit_code = clan::tool::print_connections(options);
  });
}
#endif

/// Adds a command whose arguments are all `run`'s, --help too.
void add_passing_on(CLI::App& app, const char* name, const char* about, int& exit_code,
                    int (*run)(const std::vector<std::string>&)) {
  auto* command = app.add_subcommand(name, about);
  command->prefix_command();
  command->set_help_flag();
  command->callback([=, &exit_code] { exit_code = run(command->remaining()); });
}

int run_ip(const std::vector<std::string>& arguments) {
  return clan::tool::exec_part("ip/clan-ip", arguments);
}

void add_doctor(CLI::App& app, std::string& host, int& exit_code) {
  auto* doctor =
      app.add_subcommand("doctor", "What this machine allows, and what CLAN makes of it");
  doctor->add_flag("--json")->description("The same as JSON");
  doctor->add_option(
      "HOST", host,
      "Another host: also whether CLAN answers there, and packets could go by AF_XDP");
  doctor->callback([=, &host, &exit_code] {
    exit_code = clan::tool::doctor(doctor->count("--json") > 0, host);
  });
}

/// What makes programs find a face. The exit code.
int print_face(const std::string& name) {
  constexpr int kWrong = 2;
  if (name.empty()) return clan::tool::print_environment() ? 0 : kWrong;
  const clan::tool::Face* face = clan::tool::find_face(name);
  if (face == nullptr) return kWrong;
  const auto wrong = clan::tool::wrong_settings(face->reads_log_alone);
  for (const std::string& sentence : wrong) fmt::print(stderr, "clan env: {}\n", sentence);
  return wrong.empty() ? clan::tool::print_environment(*face) : kWrong;
}

void add_env(CLI::App& app, std::string& face, int& exit_code) {
  auto* env = app.add_subcommand("env", "The CLAN_* variables and what they are set to");
  std::vector<std::string> faces;
  for (const clan::tool::Face& known : clan::tool::faces()) faces.push_back(known.name);
  if (!faces.empty()) {
    env->add_option(
           "FACE", face,
           "What makes programs find this part of CLAN, for the shell: eval \"$(clan env ofi)\"")
        ->check(CLI::IsMember(faces));
  }
  env->callback([&] { exit_code = print_face(face); });
}

void add_ping(CLI::App& app, clan::tool::PingOptions& asked, int& exit_code) {
  auto* ping = app.add_subcommand(
      "ping", "The path to CLAN programs of another host: round trips, packets, loss");
  ping->add_option("HOST", asked.host,
                   "HOST or HOST:PORT; without a port its directory, CLAN_NETWORK_PORT or 4790")
      ->required();
  ping->add_option("--key", asked.key_file,
                   "The file with the pre-shared key of both hosts (CLAN_KEY)");
  ping->add_option("--mode", asked.mode, "As the programs there (CLAN_NETWORK_MODE, else encrypt)")
      ->check(CLI::IsMember({"encrypt", "integrity", "off"}));
  ping->add_option("--count", asked.count, "Questions")
      ->check(CLI::Range(1u, 100'000u))
      ->capture_default_str();
  ping->add_option("--interval", asked.interval_ms, "Milliseconds between them")
      ->capture_default_str();
  ping->add_option("--timeout", asked.timeout_ms, "Milliseconds until the host has to answer")
      ->capture_default_str();
  ping->callback([&] { exit_code = clan::tool::ping(asked); });
}

/// `clan help`, `clan help COMMAND`. The exit code.
int print_help(const CLI::App& app, const std::string& about) {
  if (about.empty()) {
    fmt::print(
        "{}\n{}", app.get_formatter()->make_help(&app, "clan", CLI::AppFormatMode::Normal),
        clan::tool::wrapped("`clan doctor` is the one to begin with, `clan bench` what comes next.",
                            clan::tool::terminal_width()));
    return 0;
  }
  if (about == "bench") return clan::tool::exec_bench({"help"});
  if (about == "ip") return clan::tool::exec_part("ip/clan-ip", {"--help"});
#ifdef CLAN_PRELOAD
  if (about == "gateway") return clan::tool::gateway({"--help"});
#endif
  const CLI::App* command = find_command(app, about);
  if (command == nullptr) return complain_about(app, about);
  fmt::print("{}", command->help());
  return 0;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what nobody handles ends the program
int main(int argc, char** argv) {
  CLI::App app{
      "CLAN: user-level networking. `clan run COMMAND` runs a program with its TCP connections to "
      "others on this machine in shared memory; the other commands show what has moved, what this "
      "machine allows and how fast it is."};
  app.name("clan");
  app.formatter(std::make_shared<WrappedFormatter>());
  app.set_version_flag("--version", std::string("clan ") + clan::version());
  app.require_subcommand(0, 1);
  int exit_code = 0;

#ifdef CLAN_PRELOAD
  clan::tool::RunOptions run_options;
  drop_mark(*add_run(app, run_options, exit_code), argc, argv);
  clan::tool::StatOptions stat_options;
  add_stat(app, stat_options, exit_code);
  add_passing_on(app, "gateway", "Take TCP connections from outside to programs under CLAN",
                 exit_code, clan::tool::gateway);
#endif

  std::string face, other_host;
  add_doctor(app, other_host, exit_code);
  add_env(app, face, exit_code);
  clan::tool::PingOptions ping_options;
  add_ping(app, ping_options, exit_code);
  add_passing_on(app, "bench",
                 "Measure CLAN beside the kernel (`clan bench help`): programs (apps, crowd), its "
                 "faces (ofi, orb, rpc, mpi), other hosts (net), ip, gateway, and the five papers' "
                 "figures (paper)",
                 exit_code, clan::tool::exec_bench);
  add_passing_on(app, "ip",
                 "A network device whose packets go over CLAN links: up, down, status "
                 "(`clan ip --help`)",
                 exit_code, run_ip);

  std::string about;
  auto* help = app.add_subcommand("help", "This list, or what a command takes: `clan help run`");
  help->add_option("COMMAND", about);

  if (argc > 1 && argv[1][0] != '-' && find_command(app, argv[1]) == nullptr) {
    return complain_about(app, argv[1]);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kUsage = 2;  // CLI11 has a number of its own for each mistake
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (!app.get_subcommands().empty() && !help->parsed()) return exit_code;
  return print_help(app, about);
}
