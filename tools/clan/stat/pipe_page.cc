#include "pipe_page.h"

#include <arpa/inet.h>
#include <clan/face/socket_face.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

namespace clan::tool {
namespace {

// The page is our copy: nobody else reads it, so every load may be relaxed.
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
    connection.path = any(socket_face::kFar) ? "net" : "shm";
    if (any(socket_face::kLeaving)) connection.why = "going back";
  } else {
    connection.path = "tcp";
    connection.why = "about to move";
    connection.about_to_move = true;
  }
}

}  // namespace

PageState read_page(const std::string& link, const std::pair<dev_t, ino_t>& expected,
                    PipePage& page) {
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

void find_processes(const Scan& scan, const Scan::PipeFile& file, const PipePage& page,
                    TcpTables& tables, Connection& connection) {
  const TcpPair pair{connection.ends[0].address, connection.ends[1].address};
  for (int end = 0; end < 2; ++end) {
    auto& processes = connection.ends[end].processes;
    for (const pid_t holder : file.holders) {
      const TcpTable& table = tables.of(holder);
      const auto socket = table.find(end == 0 ? pair : pair.mirrored());
      if (socket == table.end()) continue;
      connection.ends[end].owner = socket->second.owner;
      connection.ends[end].socket = socket->second.inode;
      const auto holders = scan.sockets.find(socket->second.inode);
      if (holders != scan.sockets.end()) processes = holders->second;
      if (!processes.empty()) break;
    }
    if (!processes.empty()) continue;
    // The socket is gone, or in a namespace we cannot see: the process that moved it here, if it
    // still holds the pipe.
    const auto mover =
        static_cast<pid_t>(load(page.ends[end].face.words[socket_face::kProcess]) >> 32);
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

}  // namespace clan::tool
