// clan-bench: one subcommand per question, `all`, and `quick`.
#include <fmt/core.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "benchmarks.h"
#include "support/clock.h"
#include "support/load.h"

namespace clan::bench {

namespace {

struct Question {
  const char* name;
  const char* text;
  void (*run)(Context&);
};

constexpr Question kQuestions[] = {
    {"cacheline", "the bare cache-line round trip: the limit", cacheline},
    {"ring_bound", "one producer, one consumer, in-slot flag, no protocol", ring_bound},
    {"stream_latency", "round trip of a byte stream, 1 B to 1 MB", stream_latency},
    {"message_latency", "round trip of a record, 1 B to 1 MB", message_latency},
    {"bandwidth", "one-way bandwidth of a stream, 64 B to 1 MB", bandwidth},
    {"message_rate", "messages per second at 8 and 64 B", message_rate},
    {"pio_write", "64-byte stores into another process's memory", pio_write},
    {"wakeup", "from ringing to running, for a process that sleeps", wakeup},
    {"same_core", "ping-pong with both ends on one core", same_core},
    {"oversubscribed", "eight processes on two cores", oversubscribed},
    {"idle_endpoints", "round trip against number of idle endpoints (figure 5)", idle_endpoints},
    {"offered_load", "throughput against number of asking connections (figure 6)", offered_load},
    {"rdma_copy", "from one process's memory into another's", rdma_copy},
    {"rdma_fairness", "small RDMA users beside a greedy one", rdma_fairness},
    {"ucx", "UCX's own ucx_perftest, when installed", ucx},
    {"idle_cost", "memory of an idle connection, CPU time of an idle process", idle_cost},
#ifdef CLAN_VIA
    {"via", "the Virtual Interface Architecture (table 1, figures 6 and 7 of its paper)", via},
#endif
#ifdef CLAN_VMMC
    {"vmmc", "virtual memory-mapped communication (figure 1 of SHRIMP's paper)", vmmc_questions},
#endif
#ifdef CLAN_UNET
    {"unet", "U-Net endpoints, and table 1 of U-Net/MM", unet},
#endif
};

void run_question(Context& context, const Question& question) {
  fmt::print(stderr, "{}: {}\n", question.name, question.text);
  const auto& rows = context.results().rows();
  const auto& skips = context.results().skips();
  const std::size_t rows_before = rows.size(), skips_before = skips.size();
  question.run(context);
  std::vector<std::string> shown;
  const auto show = [&](const std::string& benchmark) {
    if (std::find(shown.begin(), shown.end(), benchmark) != shown.end()) return;
    shown.push_back(benchmark);
    fmt::print("\n{}\n{}", benchmark, context.results().table(benchmark));
  };
  for (std::size_t i = rows_before; i < rows.size(); ++i) show(rows[i].benchmark);
  for (std::size_t i = skips_before; i < skips.size(); ++i) show(skips[i].benchmark);
  std::fflush(stdout);
}

/// Has a script draw a plot per benchmark beside the file. False: it has failed, and says why.
bool draw_plots(const std::string& file) {
  std::error_code error;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  // Beside it where it is installed, in ../lib/clan in a build tree.
  auto script = here / "plots/plots.py";
  if (!std::filesystem::exists(script)) script = here.parent_path() / "lib/clan/plots/plots.py";
  const pid_t child = fork();
  if (child == 0) {
    execlp("python3", "python3", "-B", script.c_str(), file.c_str(), nullptr);
    _exit(127);
  }
  int status = -1;
  if (child > 0 && waitpid(child, &status, 0) == child && status == 0) return true;
  fmt::print(stderr, "clan-bench: no plots: python3 {} has failed\n", script.c_str());
  return false;
}

int finish(Context& context, const Machine& machine, const std::string& question) {
  int dropped = 0;
  for (const Row& r : context.results().rows()) dropped += r.dropped;
  fmt::print("\n{} samples were dropped and repeated because the cache-line probe changed.\n",
             dropped);
  std::fflush(stdout);
  const Options& options = context.options();
  if (!options.output.empty()) {
    const About about{question,
                      fmt::format("{} samples of {} ms", options.samples, options.sample_ms),
                      {options.core_a, options.core_b}};
    if (!context.results().write(options.output, machine, about)) {
      fmt::print(stderr, "clan-bench: cannot write to {}: {}\n", options.output,
                 std::strerror(errno));
      return 1;
    }
    if (!draw_plots(options.output + "/" + question + ".json")) return 1;
  }
  return context.failures() == 0 ? 0 : 1;
}

struct CommandLine {
  Options options;
  std::vector<int> cores;
  std::string question = "help";
};

void declare(CLI::App& app, CommandLine& line) {
  Options& options = line.options;
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.add_option("--cores", line.cores, "the two cores to use (default: the first two allowed)")
      ->delimiter(',')
      ->expected(2);
  app.add_option("--samples", options.samples, "samples kept per row")
      ->capture_default_str()
      ->check(CLI::Range(1, static_cast<int>(kMaxSamples)));
  app.add_option("--sample-ms", options.sample_ms, "length of one sample")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 10000.0));
  app.add_option("--deadline", options.deadline_s, "seconds after which a row is given up")
      ->capture_default_str();
  app.add_option("-o,--output", options.output, "directory for QUESTION.json and plots");
  app.add_flag("--smoke", options.smoke, "a few iterations: does everything run?");
  const auto add = [&](const char* name, const char* text) {
    app.add_subcommand(name, text)->callback([&line, name] { line.question = name; });
  };
  for (const Question& q : kQuestions) add(q.name, q.text);
  add("all", "every question above");
  add("bars", "what the bars need, and whether CLAN clears them");
  add("quick", "the comparison with TCP and UNIX sockets, in a minute");
  add("help", "this list");
  // after the questions, which take none: what nobody knows ends up in app.remaining()
  app.allow_extras();
}

// What `clan` runs by itself.
constexpr const char* kElsewhere =
    "`clan bench apps` measures redis, nginx and others under `clan run`, `clan bench ofi` the "
    "libfabric provider\n"
    "and Open MPI over it: see their --help.\n";

/// Says what of the command line is not understood. The exit code.
int complain_about(const CLI::App& app, const std::string& word) {
  if (word.starts_with("-")) {
    fmt::print(stderr, "clan bench: there is no option \"{}\". `clan bench help` lists them.\n",
               word);
    return 2;
  }
  fmt::print(stderr, "clan bench: there is no question \"{}\". There are:", word);
  for (const CLI::App* question : app.get_subcommands({})) {
    fmt::print(stderr, " {}", question->get_name());
  }
  fmt::print(stderr, ".\n`clan bench help` says what each asks.\n{}", kElsewhere);
  return 2;
}

int help(const CLI::App& app) {
  fmt::print(
      "{}\n`clan bench quick` is the one to begin with: a minute, CLAN beside TCP and UNIX "
      "sockets.\n",
      app.get_formatter()->make_help(&app, "clan bench", CLI::AppFormatMode::Normal));
  fmt::print("{}", kElsewhere);
  return 0;
}

int run(CommandLine& line) {
  Options& options = line.options;
  const auto allowed = allowed_cores();
  options.core_a = line.cores.empty() ? allowed.front() : line.cores[0];
  options.core_b = line.cores.empty() ? allowed[allowed.size() > 1 ? 1 : 0] : line.cores[1];
  for (int core : {options.core_a, options.core_b}) {
    if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) continue;
    fmt::print(stderr, "clan bench: there is no core {} for this process; it may use {}\n", core,
               fmt::join(allowed, ", "));
    return 2;
  }
  if (options.smoke) {
    options.samples = 1;
    options.sample_ms = 0.05;
    options.deadline_s = std::min(options.deadline_s, 20.0);
  }
  Clock::calibrate();
  const Machine machine = describe_machine();
  fmt::print(
      "{}cores     {} and {}{}\n", machine_report(machine), options.core_a, options.core_b,
      options.core_a == options.core_b ? " (only one core: nothing here is a peer's limit)" : "");
  // More than half of the cores' worth of other work in the last minute.
  if (std::strtod(machine.load_average.c_str(), nullptr) > 0.5 * machine.cores) {
    fmt::print("warning   other work is running here; rates and p99 will show it\n");
  }
  std::fflush(stdout);
  if (line.question == "quick" && !options.smoke) {
    options.quick = true;
    options.samples = 5;
    options.sample_ms = 10;
  }
  Context context(options);
  if (line.question == "quick") quick(context);
  for (const Question& q : kQuestions) {
    const bool wanted = line.question == "all" || line.question == q.name ||
                        (line.question == "bars" && bars_need(q.name));
    if (wanted) run_question(context, q);
  }
  if (line.question == "all" || line.question == "bars") {
    context.results().judge(bars(context.results()));
    fmt::print("\nbars\n{}", bars_table(context.results().verdicts()));
  }
  return finish(context, machine, line.question);
}

}  // namespace

}  // namespace clan::bench

// NOLINTNEXTLINE(bugprone-exception-escape): what nobody handles ends the program
int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  CLI::App app("Measures CLAN and what it is compared with, in one run on one machine.",
               "clan bench");
  clan::bench::CommandLine line;
  clan::bench::declare(app, line);
  CLI11_PARSE(app, argc, argv);
  if (const auto unknown = app.remaining(); !unknown.empty()) {
    return clan::bench::complain_about(app, unknown.front());
  }
  if (line.question == "help") return clan::bench::help(app);
  return clan::bench::run(line);
}
