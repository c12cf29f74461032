// Fuzzes what `clan stat` reads of other processes: pages of pipes, words of reasons, counters of
// MPI ranks and of remote calls, tables of CORBA connections, paths to other hosts. All of them lie
// in memfds that a hostile process may have made. Whatever is in them, it is read within bounds and
// can be printed in every form.
//
// Input: a byte for the kind of memfd, one for what is right about it, the file's size, patches (a
// place, a length, bytes).
#include <clan/face/gateway_face.h>
#include <clan/face/ip_face.h>
#include <clan/face/mpi_face.h>
#include <clan/face/path_page.h>
#include <clan/face/pipe_page.h>
#include <clan/face/reasons.h>
#include <clan/face/rpc_face.h>
#include <clan/face/socket_face.h>
#include <omniorb/traffic_page.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "clan/stat/look.h"
#include "clan/stat/pages/orb_tables.h"
#include "clan/stat/pipe_page.h"
#include "clan/stat/rates.h"
#include "clan/stat/reasons.h"
#include "clan/stat/write.h"
#include "input.h"

namespace {

using namespace clan::tool;
using clan::fuzz::Input;

void expect(bool holds) {
  if (!holds) std::abort();
}

/// A memfd that this process shows to itself.
class File {
 public:
  explicit File(const char* name) : fd_(::memfd_create(name, MFD_CLOEXEC)) {
    struct stat about {};
    if (fd_ < 0 || ::fstat(fd_, &about) != 0) std::abort();
    id_ = {about.st_dev, about.st_ino};
    link_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  void write(const std::vector<std::byte>& bytes) {
    const auto size = static_cast<ssize_t>(bytes.size());
    expect(::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, bytes.data(), bytes.size(), 0) == size);
  }
  const std::pair<dev_t, ino_t>& id() const { return id_; }
  const std::string& link() const { return link_; }

 private:
  int fd_;
  std::pair<dev_t, ino_t> id_;
  std::string link_;
};

template <typename T>
void put(std::vector<std::byte>& bytes, std::size_t at, const T& value) {
  if (at + sizeof value <= bytes.size()) std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// A file of the right size, or of another, of zeros that the input patches.
std::vector<std::byte> content(Input& in, std::size_t size, bool right_size) {
  std::vector<std::byte> bytes(right_size ? size : std::min<std::size_t>(in.number(), 2 * size));
  while (!in.empty()) {
    const std::size_t at = in.take<std::uint16_t>() * std::size_t{8};
    const auto patch = in.bytes(in.byte());
    if (at < bytes.size())
      std::memcpy(bytes.data() + at, patch.data(), std::min(patch.size(), bytes.size() - at));
  }
  return bytes;
}

/// A page with its magic and this process's number, unless the input chooses otherwise.
template <typename Page>
void write_page(Input& in, std::uint8_t right, File& file) {
  auto bytes = content(in, sizeof(Page), (right & 1) == 0);
  if ((right & 2) == 0) {
    put(bytes, offsetof(Page, magic), Page::kMagic);
    put(bytes, offsetof(Page, pid), static_cast<decltype(Page::pid)>(::getpid()));
  }
  file.write(bytes);
}

/// In one of the forms, which the input chooses.
void print(const Report& report, std::uint8_t form) {
  if (form % 2 == 0) {
    print_text(report, form / 2 % 2 == 0);
  } else {
    print_json(report, form / 2 % 2 == 0);
  }
}

void read_pipe(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::socket_face::kMemfdName);
  static Rates& rates = *new Rates;
  auto bytes = content(in, sizeof(clan::PipePage) + 64, (right & 1) == 0);
  if ((right & 2) == 0) {
    put(bytes, offsetof(clan::PipePage::Head, magic), clan::PipePage::kMagic);
    put(bytes, offsetof(clan::PipePage::Head, version), clan::PipePage::kVersion);
  }
  file.write(bytes);
  clan::PipePage page{};
  if (read_page(file.link(), file.id(), page) != PageState::kPipe) return;
  Report report;
  report.connections.push_back(describe(page, file.id()));
  static TcpTables& tables = *new TcpTables;
  Scan scan;
  const Scan::PipeFile found{file.link(), {::getpid()}};
  find_processes(scan, found, page, tables, report.connections.front());
  report.rates.push_back(rates.next(report.connections.front(), 0.5));
  print(report, right / 4);
  Look look;
  look.connections = report.connections;
  print_prometheus(look, {}, {}, {});
}

void read_reasons(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::reasons::kMemfdName);
  auto bytes = content(in, clan::reasons::kBytes, (right & 1) == 0);
  // Patches reach 512 KiB: words of the first buckets, which lie behind the slots.
  if (bytes.size() == clan::reasons::kBytes)
    std::memcpy(bytes.data() + clan::reasons::kSlotBytes, bytes.data(), 1024);
  file.write(bytes);
  Scan scan;
  scan.reasons[file.id()] = {file.link(), {::getpid()}};
  const ReasonPages pages(scan);
  static Processes& processes = *new Processes;
  (void)pages.has(::getpid());
  for (ino_t inode = 0; inode < 16; ++inode) {
    if (const auto said = pages.of_socket(inode, {::getpid()})) expect(!text_of(*said).empty());
  }
  if (const auto said = pages.of_processes({::getpid()}, processes)) (void)text_of(*said);
}

void read_mpi(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::mpi::kMpiMemfdName);
  write_page<clan::mpi::MpiPage>(in, right, file);
  Report report;
  report.mpi_pairs = read_mpi_pages({::getpid()});
  expect(report.mpi_pairs.size() <= clan::mpi::MpiPage::kPeers);
  report.mpi_pairs.resize(std::min<std::size_t>(report.mpi_pairs.size(), 4));  // all print alike
  print(report, right / 4);
}

void read_calls(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::kRpcMemfdName);
  write_page<clan::RpcPage>(in, right, file);
  Report report;
  report.remote_calls = own_pages<clan::RpcPage>({::getpid()}, clan::kRpcMemfdName);
  print(report, right / 4);
}

void read_orb(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::orb::kTrafficName);
  auto bytes = content(in, sizeof(clan::orb::TrafficHead) + 32 * sizeof(clan::orb::TrafficRow),
                       (right & 1) == 0);
  if ((right & 2) == 0) {
    put(bytes, offsetof(clan::orb::TrafficHead, magic), clan::orb::kTrafficMagic);
    put(bytes, offsetof(clan::orb::TrafficHead, pid), static_cast<std::uint32_t>(::getpid()));
  }
  file.write(bytes);
  const OrbTable table{{::getpid(), file.link()}};
  const auto rows = read_orb_tables({{file.id(), table}});
  expect(rows.size() <= bytes.size() / sizeof(clan::orb::TrafficRow));
}

void read_paths(Input& in, std::uint8_t right) {
  static File& file = *new File(clan::kPathMemfdName);
  write_page<clan::PathPage>(in, right, file);
  Report report;
  report.hosts = read_path_pages({::getpid()});
  expect(report.hosts.paths.size() <= clan::PathPage::kRows);
  for (const HostPath& path : report.hosts.paths) expect(path.values.port != 0);
  report.hosts.paths.resize(std::min<std::size_t>(report.hosts.paths.size(), 4));
  print(report, right / 4);
  print_prometheus({}, report.hosts, {}, {});
}

void read_gateway(Input& in, std::uint8_t right) {
  using clan::gateway::GatewayPage;
  static File& file = *new File(clan::gateway::kGatewayMemfdName);
  write_page<GatewayPage>(in, right, file);
  Report report;
  report.gateways = own_pages<GatewayPage>({::getpid()}, clan::gateway::kGatewayMemfdName);
  for (const auto& one : report.gateways)
    expect(targets_of(*one).size() <= GatewayPage::kMostTargets);
  print(report, right / 4);
  print_prometheus({}, {}, report.gateways, {});
}

void read_ip(Input& in, std::uint8_t right) {
  using clan::ip::IpPage;
  static File& file = *new File(clan::ip::kIpMemfdName);
  write_page<IpPage>(in, right, file);
  Report report;
  report.devices = read_ip_pages({::getpid()});
  for (const auto& one : report.devices) expect(one->peers <= IpPage::kRows);
  print(report, right / 4);
  print_prometheus({}, {}, {}, report.devices);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (std::freopen("/dev/null", "w", stdout) == nullptr) std::abort();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  const std::uint8_t kind = in.byte(), right = in.byte();
  switch (kind % 8) {
    case 0: read_pipe(in, right); break;
    case 1: read_reasons(in, right); break;
    case 2: read_mpi(in, right); break;
    case 3: read_calls(in, right); break;
    case 4: read_orb(in, right); break;
    case 5: read_paths(in, right); break;
    case 6: read_gateway(in, right); break;
    default: read_ip(in, right);
  }
  return 0;
}
