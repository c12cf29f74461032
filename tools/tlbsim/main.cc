// clan-tlbsim: how a NIC TLB does on a trace. `generate` makes traces, `replay` runs them through
// the engine's Tlb, `figure3` does both for the workloads of U-Net/MM's figure 3.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "generators.h"
#include "record.h"
#include "replay.h"
#include "trace.h"

namespace {

using namespace clan;
using namespace clan::tlbsim;

struct Sizes {
  std::vector<std::size_t> entries{1024, 256};
  std::size_t victims = 16;
};

int fail(const std::string& text) {
  fmt::print(stderr, "clan-tlbsim: {}\n", text);
  return 1;
}

// One trace, replayed with several sizes at once.
struct Row {
  std::string name;
  std::vector<Replay> replays;
  void access(const Access& access) {
    for (Replay& replay : replays) replay.access(access);
  }
};

Result<Row> make_row(std::string name, const Sizes& sizes) {
  Row row{std::move(name), {}};
  for (std::size_t entries : sizes.entries) {
    Result<Replay> replay = Replay::create(entries, sizes.victims);
    if (!replay) return replay.error();
    row.replays.push_back(std::move(*replay));
  }
  return row;
}

void print_table(const std::vector<Row>& rows) {
  fmt::print("{:<14} {:>7} {:>6} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>6}\n", "",
             "entries", "victim", "accesses", "hits", "comp r", "comp w", "comp rv", "non-c r",
             "non-c w", "evictions", "pinned");
  for (const Row& row : rows) {
    for (const Replay& replay : row.replays) {
      OpCounts total = replay.total();
      const OpCounts& read = replay.counts(Op::kRead);
      const OpCounts& write = replay.counts(Op::kWrite);
      const OpCounts& receive = replay.counts(Op::kReceive);
      fmt::print("{:<14} {:>7} {:>6} {:>9} {:>9} {:>7} {:>7} {:>7} {:>7} {:>7} {:>9} {:>6}\n",
                 row.name, replay.config().primary_entries, replay.config().victim_entries,
                 total.accesses, total.hits(), read.compulsory, write.compulsory,
                 receive.compulsory, read.non_compulsory,
                 write.non_compulsory + receive.non_compulsory, replay.stats().evictions,
                 replay.stats().pinned_high_water);
    }
  }
  fmt::print(
      "accesses: requests. All other columns count pages: a request over several pages is several "
      "look-ups, so\n"
      "hits can be more than accesses. comp: first touches of a page (r: sent from, w: RDMA "
      "target, rv: receive\n"
      "buffer). non-c: other misses (r; w with receive buffers). pinned: pages, high water.\n");
}

void print_json(const std::vector<Row>& rows) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Row& row : rows) {
    for (const Replay& replay : row.replays) {
      Json& json = list.emplace_back();
      json["trace"] = row.name;
      json["entries"] = replay.config().primary_entries;
      json["victim"] = replay.config().victim_entries;
      json["evictions"] = replay.stats().evictions;
      json["victim_hits"] = replay.stats().victim_hits;
      json["pinned_high_water"] = replay.stats().pinned_high_water;
      for (Op op : {Op::kRead, Op::kWrite, Op::kReceive}) {
        const OpCounts& counts = replay.counts(op);
        json[std::string(to_string(op))] = {{"accesses", counts.accesses},
                                            {"pages", counts.pages},
                                            {"hits", counts.hits()},
                                            {"compulsory_misses", counts.compulsory},
                                            {"non_compulsory_misses", counts.non_compulsory}};
      }
    }
  }
  fmt::print("{}\n", list.dump(2, ' ', false, Json::error_handler_t::replace));
}

int replay_files(const std::vector<std::string>& files, const Sizes& sizes, bool json) {
  std::vector<Row> rows;
  for (const std::string& file : files) {
    Result<Row> row = make_row(file, sizes);
    if (!row) return fail(row.error().message());
    std::ifstream opened;
    if (file != "-") opened.open(file);
    if (!(file == "-" ? std::cin : opened)) return fail(fmt::format("can't open {}", file));
    std::size_t line = 0;
    Status status = read_trace(
        file == "-" ? std::cin : opened, [&](const Access& access) { row->access(access); }, line);
    if (!status) return fail(fmt::format("{}:{}: {}", file, line, status.error().message()));
    rows.push_back(std::move(*row));
  }
  json ? print_json(rows) : print_table(rows);
  return 0;
}

int figure3(const Workload& workload, const Sizes& sizes, bool json) {
  std::vector<Row> rows;
  for (const Kind& kind : kinds()) {
    Result<Row> row = make_row(std::string(kind.name), sizes);
    if (!row) return fail(row.error().message());
    Status status =
        run_workload(kind.name, workload, [&](const Access& access) { row->access(access); });
    if (!status) return fail(status.error().message());
    rows.push_back(std::move(*row));
  }
  json ? print_json(rows) : print_table(rows);
  return 0;
}

// "" if `text` is a number of primary entries.
std::string check_entries(const std::string& text) {
  std::size_t entries = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), entries);
  const bool number = error == std::errc() && end == text.data() + text.size();
  if (number && std::has_single_bit(entries) && entries <= kMostTlbEntries) return "";
  return fmt::format("{} is not a power of two from 1 to {}", text, kMostTlbEntries);
}

// "" if `text` is a workload.
std::string check_kind(const std::string& text) {
  std::string names;
  for (const Kind& each : kinds()) {
    if (each.name == text) return "";
    names += fmt::format(" {}", each.name);
  }
  return fmt::format("there is no workload \"{}\". There are:{}", text, names);
}

int write_trace(const std::string& kind, const Workload& workload, const std::string& path) {
  std::FILE* out = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (out == nullptr) return fail(errno_error("output file").message());
  bool begun = false;  // a workload whose sizes are refused writes nothing
  Status status = run_workload(kind, workload, [&](const Access& access) {
    if (!begun) fmt::print(out, "# {} seed {}: pid op vaddr len\n", kind, workload.seed);
    begun = true;
    std::string line = to_line(access) + '\n';
    std::fwrite(line.data(), 1, line.size(), out);
  });
  bool written = std::fflush(out) == 0 && std::ferror(out) == 0;
  if (out != stdout) written = std::fclose(out) == 0 && written;
  if (!status) return fail(status.error().message());
  return written ? 0 : fail("could not write the trace");
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what nobody handles ends the program
int main(int argc, char** argv) {
  CLI::App app("Simulates a NIC's translation look-aside buffer on traces of memory accesses");
  app.require_subcommand(1);
  Sizes sizes;
  Workload workload;
  bool json = false;
  auto add_sizes = [&](CLI::App* command) {
    command->add_option("--entries", sizes.entries, "Primary entries, powers of two")
        ->delimiter(',')
        ->check(check_entries)
        ->capture_default_str();
    command->add_option("--victim", sizes.victims, "Victim entries")
        ->check(CLI::Range(std::size_t{0}, kMostTlbEntries))
        ->capture_default_str();
    command->add_flag("--json", json, "JSON instead of a table");
  };
  auto add_workload = [&](CLI::App* command) {
    command->add_option("--seed", workload.seed, "Of the data")->capture_default_str();
    command->add_option("--keys", workload.keys_per_node, "Sorts: keys per node")
        ->capture_default_str();
    command->add_option("--nodes", workload.nodes, "Sorts: nodes")->capture_default_str();
    command->add_option("--processes", workload.processes, "Sockets: servers")
        ->capture_default_str();
    command->add_option("--concurrent", workload.concurrent, "Sockets: sessions at a time")
        ->capture_default_str();
  };

  std::vector<std::string> files;
  CLI::App* replay = app.add_subcommand("replay", "Replay traces");
  replay->add_option("FILE", files, "Traces; - is standard input")->required();
  add_sizes(replay);

  std::string kind;
  std::string output = "-";
  std::string kind_help = "One of:";
  for (const Kind& each : kinds()) kind_help += fmt::format("\n  {:<13} {}", each.name, each.what);
  CLI::App* make = app.add_subcommand("generate", "Run a workload and write its trace");
  make->add_option("KIND", kind, kind_help)->required()->check(check_kind);
  make->add_option("-o,--output", output, "File")->capture_default_str();
  add_workload(make);

  std::vector<std::string> command;
  CLI::App* recorded =
      app.add_subcommand("record", "Run a program, write the trace of its sockets");
  recorded->add_option("COMMAND", command, "The program, behind --")->required();
  recorded->add_option("-o,--output", output, "File")->capture_default_str();

  CLI::App* figure = app.add_subcommand("figure3", "All workloads of U-Net/MM's figure 3");
  add_workload(figure);
  add_sizes(figure);

  CLI11_PARSE(app, argc, argv);
  if (*replay) return replay_files(files, sizes, json);
  if (*make) return write_trace(kind, workload, output);
  if (*recorded) {
    const Status status = record(command, output);
    return status ? 0 : fail(status.error().message());
  }
  return figure3(workload, sizes, json);
}
