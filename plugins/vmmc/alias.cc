#include "alias.h"

#include <clan/detail/fork_lock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace clan::vmmc {
namespace {

std::uintptr_t number(const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p); }
const std::uintptr_t kPage = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));

// Held over fork: the child puts private memory in the place of each alias.
std::mutex mutex;
std::vector<Alias*>& aliases() {
  static std::vector<Alias*> all;
  return all;
}

struct Range {
  std::uintptr_t start = 0, end = 0;
  std::string file;  // device and inode
};

// The mappings that touch [start, end).
std::vector<Range> mappings(std::uintptr_t start, std::uintptr_t end) {
  std::vector<Range> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t from = 0, to = 0;
    char device[32] = {};
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*s %*x %31s %lu", &from, &to, device,
                    &inode) != 4) {
      continue;
    }
    if (from < end && to > start)
      found.push_back({std::max(from, start), std::min(to, end),
                       std::string(device) + " " + std::to_string(inode)});
  }
  return found;
}

// Puts private memory with the same contents in the place of a range, in one step.
void make_private(std::byte* at, std::size_t bytes) {
  void* copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return;
  std::memcpy(copy, at, bytes);
  if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED)
    ::munmap(copy, bytes);
}

}  // namespace

Result<std::unique_ptr<Alias>> Alias::map(std::byte* shared, std::byte* address,
                                          std::size_t bytes) {
  const std::size_t before = number(shared) % kPage;
  if (address != nullptr && (before != 0 || number(address) % kPage != 0 || bytes % kPage != 0))
    return Error{EINVAL, "an alias at an address has whole pages"};
  std::unique_ptr<Alias> alias(new Alias);
  alias->shared_ = shared;
  alias->pages_ = shared - before;
  alias->length_ = (before + bytes + kPage - 1) / kPage * kPage;
  alias->given_ = address != nullptr;
  const int fixed = address != nullptr ? MREMAP_FIXED : 0;
  std::lock_guard lock(mutex);
  // An old length of 0: a second mapping of shared pages, mremap(2).
  void* const at = ::mremap(alias->pages_, 0, alias->length_, MREMAP_MAYMOVE | fixed, address);
  if (at == MAP_FAILED) return errno_error("mremap of an alias");
  alias->base_ = static_cast<std::byte*>(at);
  // A child gets memory of its own there.
  (void)::madvise(at, alias->length_, MADV_DONTFORK);
  (void)hold_over_forks<mutex, in_child>();
  aliases().push_back(alias.get());
  return alias;
}

// Memory that the program has put in the place of an alias stays.
void Alias::in_child() {
  for (Alias* alias : aliases()) {
    const auto fill = [&](std::size_t offset, std::size_t bytes) {
      std::byte* const at = alias->base_ + offset;
      void* const got = ::mmap(at, bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (got != at) return false;
      std::memcpy(at, alias->pages_ + offset, bytes);
      return true;
    };
    if (fill(0, alias->length_)) continue;
    for (std::size_t offset = 0; offset < alias->length_; offset += kPage)
      (void)fill(offset, kPage);
  }
  aliases().clear();
}

Alias::~Alias() {
  std::lock_guard lock(mutex);
  std::erase(aliases(), this);
  const std::vector<Range> original = mappings(number(pages_), number(pages_) + 1);
  if (original.empty()) return;
  for (const Range& range : mappings(number(base_), number(base_) + length_)) {
    if (range.file != original.front().file) continue;
    std::byte* const at = base_ + (range.start - number(base_));
    given_ ? make_private(at, range.end - range.start)
           : (void)::munmap(at, range.end - range.start);
  }
}

}  // namespace clan::vmmc
