// Event queues: what happens besides transfers. Entries are kept in order, errors among them; a
// queue of the fabric, it has a lock of its own.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "system/provider.h"
#include "wait/wait.h"

namespace clan::ofi {

class Eq final : public fid_eq, public Waitable {
 public:
  using Face = fid_eq;
  static int open(fid_fabric* fabric, fi_eq_attr* attr, fid_eq** eq, void* context);

  References& references() { return references_; }
  const WaitPlace& wait_place() const { return wait_; }

  /// What an entry of FI_CONNREQ points to, until the program has got it.
  class Request {
   public:
    virtual ~Request() = default;
    virtual void take() = 0;
  };

  // Any thread. Where there is no memory the event is lost, and the queue says so.
  void write(std::uint32_t event, const void* entry, std::size_t length) noexcept;
  /// Where there is no memory: std::bad_alloc, and nothing has been written.
  void try_write(std::uint32_t event, const void* entry, std::size_t length,
                 std::unique_ptr<Request> request = {});
  /// Data that the entry points to is copied.
  void write_error(const fi_eq_err_entry& error) noexcept;
  /// An event has been lost.
  void lose() noexcept;
  /// The objects that make events when they make progress.
  int add_source(Source& source);
  void remove_source(Source& source);
  /// Takes out events that name an object which is about to go.
  void forget(fid_t object);

  // Waitable
  bool pending() override;

 private:
  struct Entry {
    bool error = false;
    std::uint32_t event = 0;
    std::vector<char> bytes;
    fi_eq_err_entry failure{};
    std::unique_ptr<Request> request;  ///< FI_CONNREQ: the program's, once it has read it
  };
  Eq() = default;
  void make_progress();
  ssize_t take(std::uint32_t* event, void* buffer, std::size_t length, std::uint64_t flags);
  static ssize_t read(fid_eq* eq, std::uint32_t* event, void* buffer, std::size_t length,
                      std::uint64_t flags);
  static ssize_t read_error(fid_eq* eq, fi_eq_err_entry* buffer, std::uint64_t flags);
  static ssize_t user_write(fid_eq* eq, std::uint32_t event, const void* buffer, std::size_t length,
                            std::uint64_t flags);
  static ssize_t sread(fid_eq* eq, std::uint32_t* event, void* buffer, std::size_t length,
                       int timeout, std::uint64_t flags);
  static const char* error_text(fid_eq* eq, int prov_errno, const void* data, char* buffer,
                                std::size_t length);
  static fi_ops ops_;
  static fi_ops_eq eq_ops_;

  Held fabric_;
  References references_;
  bool writable_ = false;
  ForkMutex mutex_;
  std::deque<Entry> entries_;
  bool overrun_ = false;
  std::vector<char> last_error_data_;
  ForkMutex sources_mutex_;
  std::vector<Source*> sources_;
  WaitPlace wait_;
};

}  // namespace clan::ofi
