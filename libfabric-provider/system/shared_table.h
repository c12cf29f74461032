// A table of addresses in shared memory: what is behind an address vector with a name.
//
// It is a memfd that every process has open which has opened the vector. There is no file: a
// process looks for the name among the descriptors of its user's processes (/proc), so any one that
// has it open can be found, and it is gone with the last of them, however that ends. Names are per
// user and network namespace, as ports are.
//
//   Header (64 bytes) | fi_addr_t numbers[capacity] | Line lines[capacity]
//
// A process that changes it holds a lock of the file, which the kernel releases when the process
// dies. A line is written before it is marked as used, so a writer's death leaves a whole table.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "system/address.h"
#include "system/provider.h"

namespace clan::ofi {

class SharedTable {
 public:
  /// Opens the table of this name, or makes it. `read_only`: -FI_ENOENT where there is none.
  /// `count`: addresses that are expected. -ENAMETOOLONG, -FI_ETIMEDOUT (somebody else is opening
  /// all the time), -FI_ENOSYS (no /proc).
  static int open(const std::string& name, bool read_only, std::size_t count,
                  std::unique_ptr<SharedTable>* table);
  ~SharedTable();
  SharedTable(const SharedTable&) = delete;
  SharedTable& operator=(const SharedTable&) = delete;

  bool read_only() const { return read_only_; }
  /// The numbers that have been given, in their order: what fi_av_attr::map_addr shows.
  void* numbers() const { return map_ + sizeof(Header); }
  /// Changes after each insertion and removal, by any process.
  const std::atomic<std::uint32_t>& generation() const { return header().generation; }

  /// -FI_ENOSPC, -FI_EIO (the file cannot be locked).
  int insert(const SocketAddress& address, fi_addr_t* number);
  /// -FI_EINVAL: it is not used.
  int remove(fi_addr_t number);
  /// Calls f with each line that has changed after generation `seen`, under the lock. Null: it is
  /// not used any more. The generation that has been seen then.
  std::uint32_t changes(std::uint32_t seen,
                        const std::function<void(fi_addr_t, const SocketAddress*)>& f) const;

 private:
  struct Header {
    std::uint64_t magic;
    std::uint64_t capacity;
    std::atomic<std::uint64_t> count;  ///< lines that have ever been used
    std::atomic<std::uint32_t> generation;
    std::atomic<std::uint32_t> freed;  ///< of those lines, that are not used now
    std::uint64_t reserved[4];
  };
  static_assert(sizeof(Header) == 64);
  struct Line {
    std::atomic<std::uint32_t> used;
    std::uint32_t length;
    std::uint32_t changed;  ///< the generation that it was changed by
    char address[28];
  };
  static_assert(sizeof(Line) == 40 && sizeof(sockaddr_in6) == 28);

  SharedTable() = default;
  static std::size_t bytes_for(std::uint64_t capacity) {
    return sizeof(Header) + capacity * (sizeof(fi_addr_t) + sizeof(Line));
  }
  static int make(const std::string& name, std::size_t count);
  int map(int fd, bool read_only);
  Header& header() const { return *reinterpret_cast<Header*>(map_); }
  Line& line(std::uint64_t i) const {
    return reinterpret_cast<Line*>(map_ + sizeof(Header) + capacity_ * sizeof(fi_addr_t))[i];
  }
  std::uint64_t lines() const;

  int fd_ = -1;
  bool read_only_ = false;
  char* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::uint64_t capacity_ = 0;  ///< ours: the header's is anybody's to write
};

}  // namespace clan::ofi
