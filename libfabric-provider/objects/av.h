// Address vectors: a table of addresses. What fi_av_insert() returns is the index, for both types
// of vector.
//
// One with a name has its table in shared memory; what is here then is a copy, which follows it by
// its generation.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "system/address.h"
#include "system/provider.h"
#include "system/shared_table.h"

namespace clan::ofi {

class Domain;
class Eq;
class Transport;

class Av final : public fid_av {
 public:
  using Face = fid_av;
  static int open(fid_domain* domain, fi_av_attr* attr, fid_av** av, void* context);

  References& references() { return references_; }
  Domain& domain() { return domain_; }

  // Under the domain's lock.
  /// The address behind a fi_addr_t, null when there is none.
  const Name* find(fi_addr_t address) {
    follow();
    return address < entries_.size() && entries_[address].used ? &entries_[address].name : nullptr;
  }
  /// FI_ADDR_NOTAVAIL when it has not been inserted.
  fi_addr_t find(const Name& name) {
    follow();
    auto it = by_name_.find(name);
    return it == by_name_.end() ? FI_ADDR_NOTAVAIL : it->second;
  }
  /// Changes with each insertion and removal. What find() answers is as of now or later.
  std::uint32_t generation() const {
    // relaxed: what it announces is read under a lock
    return generation_->load(std::memory_order_relaxed);
  }
  /// Bits of a fi_addr_t that say which address; those above say which receive context.
  std::uint64_t address_mask() const { return context_bits_ == 0 ? ~0ULL : ~0ULL >> context_bits_; }
  unsigned context_of(fi_addr_t address) const {
    return context_bits_ == 0 ? 0 : static_cast<unsigned>(address >> (64 - context_bits_));
  }

 private:
  struct Entry {
    Name name;
    SocketAddress address;
    bool used = false;
  };
  /// One call that inserts.
  struct Insertion {
    fi_addr_t* indices;  ///< or null, as errors
    int* errors;
    std::size_t inserted = 0, failed_at = 0;
    int err = 0;
  };
  explicit Av(Domain& domain) : domain_(domain) {}
  /// `address`: invalid where there is none. Under the lock.
  void insert_one(const SocketAddress& address, std::size_t i, Insertion& insertion);
  /// 0, or an error number of libfabric's.
  int find_place(const SocketAddress& address, fi_addr_t* index);
  void put(fi_addr_t index, const SocketAddress& address);
  void take_out(fi_addr_t index);
  void follow() {
    if (shared_ != nullptr && followed_ != generation()) follow_slowly();
  }
  void follow_slowly();
  int finish(const Insertion& insertion, std::size_t count, void* context);
  static int insert(fid_av* av, const void* addresses, std::size_t count, fi_addr_t* fi_addr,
                    std::uint64_t flags, void* context);
  static int insert_service(fid_av* av, const char* node, const char* service, fi_addr_t* fi_addr,
                            std::uint64_t flags, void* context);
  static int insert_symmetric(fid_av* av, const char* node, std::size_t nodes, const char* service,
                              std::size_t services, fi_addr_t* fi_addr, std::uint64_t flags,
                              void* context);
  static int remove(fid_av* av, fi_addr_t* fi_addr, std::size_t count, std::uint64_t flags);
  static int lookup(fid_av* av, fi_addr_t fi_addr, void* address, std::size_t* length);
  static const char* to_string(fid_av* av, const void* address, char* buffer, std::size_t* length);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static fi_ops ops_;
  static fi_ops_av av_ops_;

  Domain& domain_;
  Held domain_held_;
  References references_;
  unsigned context_bits_ = 0;
  bool asynchronous_ = false;
  Eq* eq_ = nullptr;
  Held eq_held_;
  std::vector<Entry> entries_;
  std::vector<fi_addr_t> free_;
  std::unordered_map<Name, fi_addr_t, NameHash> by_name_;
  std::atomic<std::uint32_t> own_generation_{1};
  const std::atomic<std::uint32_t>* generation_ = &own_generation_;
  std::unique_ptr<SharedTable> shared_;  ///< of a vector with a name
  std::uint32_t followed_ = 0;           ///< its generation that the copy is of
};

}  // namespace clan::ofi
