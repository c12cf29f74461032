// Completion queues. A ring that grows: what has been accepted is always completed, however slowly
// the program reads. Errors stand beside it and remember where in the ring they belong.
#pragma once

#include <clan/face/wait.h>

#include <array>
#include <deque>
#include <vector>

#include "system/provider.h"
#include "system/transport_list.h"
#include "wait/wait.h"

namespace clan::ofi {

class Domain;

/// Begins as fi_cq_tagged_entry.
struct Completion {
  void* context = nullptr;
  std::uint64_t flags = 0;
  std::size_t length = 0;
  void* buffer = nullptr;
  std::uint64_t data = 0;
  std::uint64_t tag = 0;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
};

class Cq final : public fid_cq, public Waitable {
 public:
  using Face = fid_cq;
  static int open(fid_domain* domain, fi_cq_attr* attr, fid_cq** cq, void* context);

  References& references() { return references_; }
  const WaitPlace& wait_place() const { return wait_; }
  Domain& domain() { return domain_; }

  // Under the domain's lock. Where there is no memory the entry is lost, and the queue says so.
  void write(const Completion& completion) {
    if (tail_ - head_ == ring_.size() && !grow()) [[unlikely]]
      return;
    ring_[tail_++ & (ring_.size() - 1)] = completion;
    wait_.signal();
  }
  /// `olen`: bytes that did not fit. `raw`: an address for FI_SOURCE_ERR.
  void write_error(const Completion& completion, int err, std::size_t olen = 0,
                   const void* raw = nullptr, std::size_t raw_bytes = 0);
  /// Those whose progress may fill the queue.
  TransportList& transports() { return transports_; }
  void progress();
  bool empty() const { return head_ == tail_ && errors_.empty(); }
  /// Entries have been lost, for want of memory: -FI_EOVERRUN behind those that are there.
  bool overrun() const { return overrun_; }

  // Waitable
  bool pending() override;

 private:
  struct ErrorEntry {
    std::uint64_t position = 0;  ///< in the ring: comes before this entry
    fi_cq_err_entry entry{};
    std::vector<char> data;
  };
  Cq(Domain& domain, std::size_t size);
  bool grow();
  void lose(const char* what);
  ssize_t take(void* buffer, std::size_t count, fi_addr_t* source);
  ssize_t wait_and_take(void* buffer, std::size_t count, fi_addr_t* source, const void* cond,
                        int timeout_ms);
  static ssize_t read(fid_cq* cq, void* buffer, std::size_t count);
  static ssize_t read_from(fid_cq* cq, void* buffer, std::size_t count, fi_addr_t* source);
  static ssize_t read_error(fid_cq* cq, fi_cq_err_entry* buffer, std::uint64_t flags);
  static ssize_t sread(fid_cq* cq, void* buffer, std::size_t count, const void* cond, int timeout);
  static ssize_t sread_from(fid_cq* cq, void* buffer, std::size_t count, fi_addr_t* source,
                            const void* cond, int timeout);
  static int signal(fid_cq* cq);
  static const char* error_text(fid_cq* cq, int prov_errno, const void* data, char* buffer,
                                std::size_t length);
  static fi_ops ops_;
  static fi_ops_cq cq_ops_;

  Domain& domain_;
  Held domain_held_;
  References references_;
  fi_cq_format format_ = FI_CQ_FORMAT_CONTEXT;
  fi_cq_wait_cond condition_ = FI_CQ_COND_NONE;
  std::vector<Completion> ring_;
  std::uint64_t head_ = 0, tail_ = 0;
  std::deque<ErrorEntry> errors_;
  std::vector<char> last_error_data_;
  TransportList transports_;
  unsigned empty_reads_ = 0;  ///< in a row
  bool overrun_ = false;
  std::atomic<bool> signalled_{false};
  WaitPlace wait_;
  Waiter waiter_;
};

}  // namespace clan::ofi
