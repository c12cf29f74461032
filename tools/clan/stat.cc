// `clan stat`: the connections that go over CLAN, of every process we may look at, as `ss` lists sockets.
//
// A connection is a memfd named clan-pipe that the processes at both ends hold. Its first page has all
// counters (clan/pipe.h), its Face words say which TCP connection it stands for (clan/socket_face.h). Who
// sits at which end is the kernel's word: /proc/<pid>/net/tcp tells the inode of the TCP socket between two
// addresses, /proc/<pid>/fd who holds that socket.
//
// Nothing is written, no process is stopped, no lock of theirs taken. The page is copied with pread() and not
// mapped: what is in it and how long the file is are the word of processes that may be hostile.
#include "stat.h"

#include <arpa/inet.h>
#include <clan/pipe.h>
#include <clan/socket_face.h>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "commands.h"
#ifdef CLAN_OMNIORB
#include "orb_traffic.h"
#endif
#include "process.h"

namespace clan::tool {
namespace {

// --- addresses ----------------------------------------------------------------------------------------

Address make_address(const void* ip, bool v4, std::uint16_t port) {
  Address address;
  address.port = port;
  std::memcpy(address.ip.data() + (v4 ? 12 : 0), ip, v4 ? 4 : 16);
  if (v4) std::copy(kMapped.begin(), kMapped.end(), address.ip.begin());
  return address;
}

// --- what /proc says ----------------------------------------------------------------------------------

/// One pass over /proc.
struct Scan {
  struct PipeFile {
    std::string link;  // /proc/<pid>/fd/<n>
    std::set<pid_t> holders;
  };
  std::map<std::pair<dev_t, ino_t>, PipeFile> pipes;
  std::map<ino_t, std::set<pid_t>> sockets;
  std::map<ino_t, std::set<pid_t>> standard;  // sockets that are a standard stream of these
  std::set<pid_t> rings;                      // processes with an io_uring
#ifdef CLAN_OMNIORB
  std::map<std::pair<dev_t, ino_t>, OrbTable> orb_tables;
#endif
  std::set<pid_t> seen;
  std::size_t refused = 0;
};

std::optional<pid_t> pid_of(const char* name) {
  pid_t pid = 0;
  const char* end = name + std::strlen(name);
  const auto [rest, error] = std::from_chars(name, end, pid);
  if (error != std::errc() || rest != end) return std::nullopt;
  return pid;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};
using Directory = std::unique_ptr<DIR, CloseDirectory>;

std::string read_link(const std::string& path) {
  char text[256];
  const ssize_t n = readlink(path.c_str(), text, sizeof text);
  return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : "";
}

bool is_kernel_thread(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  // Behind the name, which may contain anything: state, ppid, pgrp, session, tty, tpgid, flags.
  const std::size_t name_end = line.rfind(')');
  unsigned long flags = 0;
  if (name_end == std::string::npos ||
      std::sscanf(line.c_str() + name_end + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) != 1) {
    return false;
  }
  constexpr unsigned long kKernelThread = 0x00200000;  // PF_KTHREAD
  return (flags & kKernelThread) != 0;
}

void scan_descriptors(pid_t pid, Scan& scan) {
  static const std::string kPipeLink = fmt::format("/memfd:{} (deleted)", socket_face::kMemfdName);
  const std::string path = fmt::format("/proc/{}/fd", pid);
  const Directory directory(opendir(path.c_str()));
  if (!directory) {
    if ((errno == EACCES || errno == EPERM) && !is_kernel_thread(pid)) ++scan.refused;
    return;
  }
  errno = 0;
  while (const dirent* entry = readdir(directory.get())) {
    if (entry->d_name[0] == '.') continue;
    std::string link = path + "/" + entry->d_name;
    const std::string target = read_link(link);
    ino_t inode = 0;
    if (std::sscanf(target.c_str(), "socket:[%lu]", &inode) == 1) {
      scan.sockets[inode].insert(pid);
      if (std::strlen(entry->d_name) == 1 && entry->d_name[0] <= '2') scan.standard[inode].insert(pid);
    } else if (target == "anon_inode:[io_uring]") {
      scan.rings.insert(pid);
    } else if (target == kPipeLink) {
      struct stat about {};
      if (stat(link.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) continue;
      auto& file = scan.pipes[{about.st_dev, about.st_ino}];
      file.link = std::move(link);
      file.holders.insert(pid);
    }
#ifdef CLAN_OMNIORB
    static const std::string kTable = orb_table_link();
    if (target == kTable) {
      struct stat about{};
      if (stat(link.c_str(), &about) == 0) scan.orb_tables[{about.st_dev, about.st_ino}] = {pid, link};
    }
#endif
  }
  if (errno == EACCES || errno == EPERM) ++scan.refused;
}

Scan scan_processes() {
  Scan scan;
  const Directory proc(opendir("/proc"));
  if (!proc) return scan;
  while (const dirent* entry = readdir(proc.get())) {
    const auto pid = pid_of(entry->d_name);
    if (!pid) continue;
    scan.seen.insert(*pid);
    scan_descriptors(*pid, scan);
  }
  return scan;
}

struct TcpSocket {
  ino_t inode;
  uid_t owner;
};

/// The TCP connections of one network namespace: the socket of each end.
using TcpTable = std::map<TcpPair, TcpSocket>;

std::optional<Address> parse_address(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return std::nullopt;
  std::array<std::uint32_t, 4> words{};  // each printed as a number, but in network order in memory
  for (std::size_t i = 0; i < colon / 8; ++i) {
    const char* digits = text.data() + 8 * i;
    if (std::from_chars(digits, digits + 8, words[i], 16).ec != std::errc()) return std::nullopt;
  }
  std::uint16_t port = 0;
  const auto port_text = text.substr(colon + 1);
  if (std::from_chars(port_text.data(), port_text.data() + port_text.size(), port, 16).ec != std::errc()) {
    return std::nullopt;
  }
  return make_address(words.data(), colon == 8, port);
}

void read_tcp_table(const std::string& path, TcpTable& table) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    char local[48];
    char remote[48];
    unsigned state = 0;
    uid_t owner = 0;
    ino_t inode = 0;
    // "sl: local remote st tx:rx tr:when retransmits uid timeout inode …"
    if (std::sscanf(line.c_str(), " %*[^:]: %47s %47s %x %*s %*s %*s %u %*s %lu", local, remote, &state,
                    &owner, &inode) != 5) {
      continue;
    }
    constexpr unsigned kListen = 10;
    const auto from = parse_address(local);
    const auto to = parse_address(remote);
    if (from && to && inode != 0 && state != kListen) table[{*from, *to}] = {inode, owner};
  }
}

/// Reads each network namespace's table when it is first asked for.
class TcpTables {
 public:
  /// The one `pid` is in.
  const TcpTable& of(pid_t pid) {
    const std::string name_space = name_of(pid);
    const auto [place, fresh] = tables_.try_emplace(name_space);
    if (fresh) {
      read_tcp_table(fmt::format("/proc/{}/net/tcp", pid), place->second);
      read_tcp_table(fmt::format("/proc/{}/net/tcp6", pid), place->second);
    }
    return place->second;
  }
  /// The number of that namespace, 0: not known.
  static std::uint64_t number_of(pid_t pid) {
    std::uint64_t number = 0;
    return std::sscanf(name_of(pid).c_str(), "net:[%lu]", &number) == 1 ? number : 0;
  }
  const std::map<std::string, TcpTable>& all() const { return tables_; }

 private:
  static std::string name_of(pid_t pid) { return read_link(fmt::format("/proc/{}/ns/net", pid)); }

  std::map<std::string, TcpTable> tables_;
};

// --- from a page to a connection ----------------------------------------------------------------------

enum class PageState { kPipe, kOtherVersion, kNotOne };

PageState read_page(const std::string& link, const std::pair<dev_t, ino_t>& expected, PipePage& page) {
  // The descriptor may have become another file since: O_NONBLOCK for a FIFO, fstat() for all else.
  const int fd = open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return PageState::kNotOne;
  struct stat about {};
  const bool same = fstat(fd, &about) == 0 && std::pair(about.st_dev, about.st_ino) == expected;
  const ssize_t got = same ? pread(fd, static_cast<void*>(&page), sizeof page, 0) : -1;
  close(fd);
  if (got < static_cast<ssize_t>(sizeof page.head) || page.head.magic != PipePage::kMagic) {
    return PageState::kNotOne;
  }
  if (page.head.version != PipePage::kVersion) return PageState::kOtherVersion;
  return got == sizeof page ? PageState::kPipe : PageState::kNotOne;
}

// The page is our copy: nobody else looks at it, so every load may be relaxed.
template <typename T>
T load(const std::atomic<T>& word) {
  return word.load(std::memory_order_relaxed);
}

std::optional<TcpPair> pair_of(const PipePage::Face& face) {
  const std::uint64_t ports = load(face.words[socket_face::kPorts]);
  const std::uint64_t family = ports >> 32;
  if (family != AF_INET && family != AF_INET6) return std::nullopt;
  const auto ip = [&](int first) {
    return std::array<std::uint64_t, 2>{load(face.words[first]), load(face.words[first + 1])};
  };
  const auto address = [&](int first, std::uint64_t port) {
    return make_address(ip(first).data(), family == AF_INET, static_cast<std::uint16_t>(port));
  };
  return TcpPair{address(socket_face::kLocalAddress, ports >> 16),
                 address(socket_face::kRemoteAddress, ports)};
}

void say_path(const PipePage& page, Connection& connection) {
  const std::uint64_t states[2] = {connection.ends[0].state, connection.ends[1].state};
  const auto any = [&](std::uint64_t bit) { return ((states[0] | states[1]) & bit) != 0; };
  if (load(page.head.broken) != 0) {
    connection.path = "tcp";
    connection.why = "broken";
  } else if (any(socket_face::kGone)) {
    connection.path = "tcp";
    connection.why = "gone back";
  } else if (any(socket_face::kSending)) {
    connection.path = "shm";
    if (any(socket_face::kLeaving)) connection.why = "going back";
  } else {
    connection.path = "tcp";
    connection.why = "about to move";
    connection.about_to_move = true;
  }
}

/// Who holds the TCP socket of each end.
void find_processes(const Scan& scan, const Scan::PipeFile& file, const PipePage& page, TcpTables& tables,
                    Connection& connection) {
  const TcpPair pair{connection.ends[0].address, connection.ends[1].address};
  for (int end = 0; end < 2; ++end) {
    auto& processes = connection.ends[end].processes;
    for (const pid_t holder : file.holders) {
      const TcpTable& table = tables.of(holder);
      const auto socket = table.find(end == 0 ? pair : pair.mirrored());
      if (socket == table.end()) continue;
      connection.ends[end].owner = socket->second.owner;
      const auto holders = scan.sockets.find(socket->second.inode);
      if (holders != scan.sockets.end()) processes = holders->second;
      if (!processes.empty()) break;
    }
    if (!processes.empty()) continue;
    // The socket is gone, or in a namespace we cannot see: who moved it here, if it is still there.
    const auto mover = static_cast<pid_t>(load(page.ends[end].face.words[socket_face::kProcess]) >> 32);
    if (file.holders.count(mover) > 0) processes.insert(mover);
  }
}

Connection describe(const PipePage& page, const std::pair<dev_t, ino_t>& file) {
  Connection connection;
  connection.in_pipe = true;
  connection.id = {file.first, file.second, page.head.created_ns};
  const auto first = pair_of(page.ends[0].face);
  const auto second = pair_of(page.ends[1].face);
  const TcpPair pair = first ? *first : second ? second->mirrored() : TcpPair{};
  connection.ends[0].address = pair.local;
  connection.ends[1].address = pair.remote;
  for (int i = 0; i < 2; ++i) {
    const PipePage::End& from = page.ends[i];
    const auto& words = from.face.words;
    EndView& end = connection.ends[i];
    end.bytes = load(from.sender.bytes);
    end.messages = load(from.sender.messages);
    end.sleeps = load(words[socket_face::kSleeps]);
    end.wakeups = load(words[socket_face::kWakeups]);
    end.tcp_bytes = load(words[socket_face::kSwitchAt]);
    end.state = load(words[socket_face::kState]);
  }
  say_path(page, connection);
  return connection;
}

// --- --all --------------------------------------------------------------------------------------------

/// Those of the end's processes that have the library.
std::vector<pid_t> under_clan(const EndView& end, Processes& processes) {
  std::vector<pid_t> under;
  std::copy_if(end.processes.begin(), end.processes.end(), std::back_inserter(under),
               [&](pid_t pid) { return processes.of(pid).has_library; });
  return under;
}

/// What keeps this process from moving a connection with these ports, whoever is at the other end; null:
/// nothing that is known here.
const char* obstacle(const ProcessFacts& facts, std::uint16_t local, std::uint16_t remote) {
  if (facts.small_files) return "the limit of file sizes (ulimit -f)";
  if (facts.many_pipes) return "the memory for connections (CLAN_MEMORY)";
  if (!facts.settings) return nullptr;
  if (facts.misunderstood) return "a setting that is not understood";
  if (facts.settings->disable) return "CLAN_DISABLE";
  if (facts.settings->excepts(local, remote)) return "CLAN_EXCEPT";
  if (facts.settings->leaves_out(local, remote)) return "CLAN_ONLY";
  return nullptr;
}

/// A filter of system calls may keep this end from moving; only the process knows what it lets pass.
std::string perhaps_filtered(const EndView& end, Processes& processes) {
  const auto under = under_clan(end, processes);
  const bool all = !under.empty() && std::all_of(under.begin(), under.end(),
                                                 [&](pid_t pid) { return processes.of(pid).filtered; });
  return all ? fmt::format(
                   "perhaps the filter of system calls (seccomp) of process {}; CLAN_LOG=info says which "
                   "call",
                   under[0])
             : "";
}

/// Why a connection will not move; "" if nothing is known that keeps it. What holds for one of several
/// processes that have the same end does not count: another may move it.
std::string why_not_moved(const Connection& connection, Processes& processes) {
  std::vector<pid_t> under[2];
  for (int end = 0; end < 2; ++end) {
    under[end] = under_clan(connection.ends[end], processes);
    const auto& there = connection.ends[end].processes;
    if (there.empty()) return "the other end's process cannot be looked into";
    if (under[end].empty()) {
      return fmt::format("the other end, process {}, runs without CLAN", *there.begin());
    }
  }
  for (int end = 0; end < 2; ++end) {
    const EndView& here = connection.ends[end];
    const EndView& there = connection.ends[1 - end];
    const char* why = nullptr;
    for (const pid_t pid : under[end]) {
      why = obstacle(processes.of(pid), here.address.port, there.address.port);
      if (why == nullptr) break;
    }
    if (why != nullptr) return fmt::format("{} of process {}", why, under[end][0]);
  }
  bool may_be_user = false;
  const auto owners = std::minmax(connection.ends[0].owner, connection.ends[1].owner);
  if (!owners.first || !owners.second) return "";
  const std::string users = fmt::format("users {} and {}, see CLAN_UIDS", *owners.first, *owners.second);
  for (int end = 0; end < 2; ++end) {
    const uid_t own = *connection.ends[end].owner;
    const uid_t other = *connection.ends[1 - end].owner;
    bool all_refuse = true;
    bool all_changed = true;
    for (const pid_t pid : under[end]) {
      const ProcessFacts& facts = processes.of(pid);
      if (!facts.has_user(other)) {
        return fmt::format("user {} is not in the user namespace of process {}", other, pid);
      }
      const bool same = !facts.user || *facts.user == other;
      all_refuse = all_refuse && !same && facts.settings && !facts.settings->names_uid(other);
      all_changed = all_changed && facts.user && *facts.user != own;
      may_be_user = may_be_user || (!same && !facts.settings);
    }
    if (all_refuse) return users;
    if (all_changed) {
      return fmt::format("process {} is not of user {}, who made its socket", under[end][0], own);
    }
  }
  return may_be_user ? "perhaps " + users : "";
}

/// What descriptors tell of an end: all of its processes have an io_uring, or the connection as a standard
/// stream.
std::string by_descriptors(const Scan& scan, const EndView& end, ino_t socket, Processes& processes) {
  const auto under = under_clan(end, processes);
  const auto all_in = [&](const std::set<pid_t>& pids) {
    return !under.empty() &&
           std::all_of(under.begin(), under.end(), [&](pid_t pid) { return pids.count(pid) > 0; });
  };
  if (all_in(scan.rings)) return fmt::format("an io_uring of process {}", under[0]);
  const auto standard = scan.standard.find(socket);
  if (standard != scan.standard.end() && all_in(standard->second)) {
    return fmt::format("it is standard input or output of process {}", under[0]);
  }
  return "";
}

/// Local TCP connections with a program under CLAN at one end at least, that are in none of `listed`.
void add_unmoved(const Scan& scan, TcpTables& tables, Processes& processes, std::vector<Connection>& listed) {
  std::set<TcpPair> known;
  for (const Connection& connection : listed) {
    known.insert({connection.ends[0].address, connection.ends[1].address});
    known.insert({connection.ends[1].address, connection.ends[0].address});
  }
  std::set<const TcpTable*> to_search;
  std::set<pid_t> with_sockets;
  for (const auto& [inode, holders] : scan.sockets) with_sockets.insert(holders.begin(), holders.end());
  for (const pid_t pid : with_sockets) {
    if (processes.of(pid).has_library) to_search.insert(&tables.of(pid));
  }
  for (const TcpTable* table : to_search) {
    for (const auto& [pair, socket] : *table) {
      const auto other = table->find(pair.mirrored());
      if (other == table->end() || known.count(pair) > 0) continue;
      Connection connection;
      const TcpSocket sockets[2] = {socket, other->second};
      bool served = false;
      for (int i = 0; i < 2; ++i) {
        EndView& end = connection.ends[i];
        end.address = i == 0 ? pair.local : pair.remote;
        end.owner = sockets[i].owner;
        const auto holders = scan.sockets.find(sockets[i].inode);
        if (holders != scan.sockets.end()) end.processes = holders->second;
        served = served || !under_clan(end, processes).empty();
      }
      if (!served) continue;
      connection.why = why_not_moved(connection, processes);
      for (int i = 0; i < 2 && connection.why.empty(); ++i) {
        connection.why = by_descriptors(scan, connection.ends[i], sockets[i].inode, processes);
      }
      for (int i = 0; i < 2 && connection.why.empty(); ++i) {
        connection.why = perhaps_filtered(connection.ends[i], processes);
      }
      // Too few calls, or what only the process knows: RTLD_DEEPBIND, MSG_ZEROCOPY.
      if (connection.why.empty()) connection.why = "not used enough yet, or CLAN_LOG=info says why";
      known.insert(pair.mirrored());
      listed.push_back(connection);
    }
  }
}

// --- one look -----------------------------------------------------------------------------------------

#ifdef CLAN_OMNIORB
Connection describe(const OrbRow& row) {
  Connection connection;
  // The same process may have many: the number of the row tells them apart.
  connection.id = {row.table.first, row.table.second * 65536 + row.number, row.created_ns};
  connection.in_pipe = connection.corba = true;
  connection.path = "shm";
  connection.why = "CORBA";
  const int mine = row.client ? 0 : 1;
  connection.ends[mine].processes = {row.pid};
  connection.ends[1 - mine].processes = {row.peer};
  for (const int end : {0, 1}) {
    connection.ends[end].bytes = row.bytes[end == mine ? 0 : 1];
    connection.ends[end].messages = row.messages[end == mine ? 0 : 1];
  }
  return connection;
}
#endif

bool wanted(const Connection& connection, const std::vector<pid_t>& pids) {
  return pids.empty() || std::any_of(pids.begin(), pids.end(), [&](pid_t pid) {
           return connection.ends[0].processes.count(pid) + connection.ends[1].processes.count(pid) > 0;
         });
}

/// Local connections that nobody has whom we may look into.
std::size_t count_unseen(const Scan& scan, const TcpTables& tables) {
  std::size_t count = 0;
  for (const auto& [name, table] : tables.all()) {
    for (const auto& [pair, socket] : table) {
      const auto other = table.find(pair.mirrored());
      if (other == table.end() || pair.mirrored() < pair) continue;
      count += scan.sockets.count(socket.inode) + scan.sockets.count(other->second.inode) == 0 ? 1 : 0;
    }
  }
  return count;
}

Look look(const StatOptions& options) {
  const Scan scan = scan_processes();
  Look result;
  result.refused = scan.refused;
  TcpTables tables;
  Processes processes;
  for (const auto& [id, file] : scan.pipes) {
    PipePage page{};
    const PageState state = read_page(file.link, id, page);
    if (state == PageState::kOtherVersion) ++result.other_versions;
    if (state != PageState::kPipe) continue;
    Connection connection = describe(page, id);
    find_processes(scan, file, page, tables, connection);
    // One end has made the pipe, and the other may never take it.
    const std::uint64_t differ = connection.ends[0].state ^ connection.ends[1].state;
    if (connection.about_to_move && (differ & socket_face::kAttached) != 0) {
      const std::string why = why_not_moved(connection, processes);
      if (!why.empty()) connection.why = why;
    }
    result.connections.push_back(std::move(connection));
  }
#ifdef CLAN_OMNIORB
  for (const OrbRow& row : read_orb_tables(scan.orb_tables)) result.connections.push_back(describe(row));
#endif
  if (options.all) add_unmoved(scan, tables, processes, result.connections);
  for (Connection& connection : result.connections) {
    for (EndView& end : connection.ends) {
      if (!end.processes.empty()) end.network = TcpTables::number_of(*end.processes.begin());
    }
  }
  if (scan.refused > 0) {
    (void)tables.of(getpid());
    result.unseen = count_unseen(scan, tables);
  }
  std::erase_if(result.connections, [&](const Connection& c) { return !wanted(c, options.pids); });
  for (Connection& connection : result.connections) {
    // The process that was asked for sits at the local end.
    const bool local = std::any_of(options.pids.begin(), options.pids.end(),
                                   [&](pid_t pid) { return connection.ends[0].processes.count(pid) > 0; });
    if (!options.pids.empty() && !local) std::swap(connection.ends[0], connection.ends[1]);
  }
  const auto order = [](const Connection& a, const Connection& b) {
    return std::tie(a.ends[0].address, a.ends[1].address, a.id) <
           std::tie(b.ends[0].address, b.ends[1].address, b.id);
  };
  std::sort(result.connections.begin(), result.connections.end(), order);
  for (const pid_t pid : options.pids) {
    if (scan.seen.count(pid) == 0) result.absent.push_back(pid);
  }
  return result;
}

// --- rates --------------------------------------------------------------------------------------------

/// What the counters were at the last look, by connection and local address.
class Rates {
 public:
  /// Rates since the last call with this connection; nothing at the first.
  std::optional<Rate> next(const Connection& connection, double elapsed_s) {
    const auto key = std::pair(connection.id, connection.ends[0].address);
    const Counters now{{connection.ends[0].bytes, connection.ends[1].bytes},
                       {connection.ends[0].messages, connection.ends[1].messages}};
    const auto before = last_.find(key);
    current_[key] = now;
    if (before == last_.end() || elapsed_s <= 0) return std::nullopt;
    Rate rate;
    for (int end = 0; end < 2; ++end) {
      rate.bytes[end] = static_cast<double>(now.bytes[end] - before->second.bytes[end]) / elapsed_s;
      rate.messages[end] = static_cast<double>(now.messages[end] - before->second.messages[end]) / elapsed_s;
    }
    return rate;
  }
  /// A look is complete.
  void turn() {
    last_ = std::move(current_);
    current_.clear();
  }

 private:
  struct Counters {
    std::uint64_t bytes[2];
    std::uint64_t messages[2];
  };
  std::map<std::pair<Identity, Address>, Counters> last_;
  std::map<std::pair<Identity, Address>, Counters> current_;
};

/// What could not be shown; on stderr, once.
void mention(const Look& seen) {
  if (seen.refused > 0 && seen.unseen > 0) {
    fmt::print(stderr,
               "clan stat: {} {} could not be looked into, and {} local {} between such; root sees {}\n",
               seen.refused, seen.refused == 1 ? "process" : "processes", seen.unseen,
               seen.unseen == 1 ? "connection is" : "connections are", seen.unseen == 1 ? "it" : "them");
  }
  if (seen.other_versions > 0) {
    fmt::print(stderr, "clan stat: {} {} of another version of CLAN\n", seen.other_versions,
               seen.other_versions == 1 ? "connection is" : "connections are");
  }
  for (const pid_t pid : seen.absent) fmt::print(stderr, "clan stat: there is no process {}\n", pid);
}

}  // namespace

int print_connections(const StatOptions& options) {
  const bool clear = options.watch && !options.json && isatty(STDOUT_FILENO) != 0;
  Rates rates;
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> before;
  for (bool first = true;; first = false) {
    const Look seen = look(options);
    const auto now = Clock::now();
    const double elapsed_s = before ? std::chrono::duration<double>(now - *before).count() : 0;
    before = now;

    std::vector<Row> rows{heading(options.watch)};
    std::vector<std::string> objects;
    for (const Connection& connection : seen.connections) {
      const bool rated = connection.in_pipe && options.watch;
      const auto rate = rated ? rates.next(connection, elapsed_s) : std::nullopt;
      if (options.json) {
        objects.push_back(json_object(connection, rate));
      } else {
        rows.push_back(text_row(connection, rate, options.watch));
      }
    }
    rates.turn();
    std::vector<std::string> remote_calls;
#ifdef CLAN_SUNRPC
    remote_calls = options.json ? remote_call_objects(options.pids) : remote_call_lines(options.pids);
    if (options.json) objects.insert(objects.end(), remote_calls.begin(), remote_calls.end());
#endif
    std::vector<std::string> mpi_ranks;
#ifdef CLAN_MPI
    mpi_ranks = options.json ? mpi_rank_objects(options.pids) : mpi_rank_lines(options.pids);
    if (options.json) objects.insert(objects.end(), mpi_ranks.begin(), mpi_ranks.end());
#endif

    if (options.prometheus) {
      print_prometheus(seen);
      const bool written = std::fflush(stdout) == 0;
      mention(seen);
      return written && seen.absent.empty() ? 0 : 1;
    }
    if (clear) fmt::print("\033[H\033[2J");
    if (!first && !options.json && !clear) fmt::print("\n");
    if (options.json) {
      print_json(objects, options.watch);
    } else {
      print_text(rows);
      if (!remote_calls.empty()) fmt::print("\nREMOTE CALLS\n");
      for (const std::string& line : remote_calls) fmt::print("{}\n", line);
      if (!mpi_ranks.empty()) fmt::print("\nMPI\n");
      for (const std::string& line : mpi_ranks) fmt::print("{}\n", line);
    }
    const bool written = std::fflush(stdout) == 0;
    if (first) mention(seen);
    if (!written) return 1;
    const bool all_absent = !options.pids.empty() && seen.absent.size() == options.pids.size();
    if (!options.watch || all_absent) return seen.absent.empty() ? 0 : 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
  }
}

}  // namespace clan::tool
