// The TCP connections that the kernel knows, of each network namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "address.h"

namespace clan::tool {

struct TcpSocket {
  ino_t inode;
  uid_t owner;
};

/// The TCP connections of one network namespace: the socket of each end.
using TcpTable = std::map<TcpPair, TcpSocket>;

/// Reads each network namespace's table when it is first asked for.
class TcpTables {
 public:
  /// The one `pid` is in.
  const TcpTable& of(pid_t pid);
  /// The number of that namespace, 0: not known.
  static std::uint64_t number_of(pid_t pid);
  const std::map<std::string, TcpTable>& all() const { return tables_; }

 private:
  std::map<std::string, TcpTable> tables_;
};

}  // namespace clan::tool
