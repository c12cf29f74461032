// One endpoint of libfabric with what it needs, and the calls that the loops are made of; the
// socket between client and server.
#pragma once

#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <string>

#include "support/load.h"

namespace clan::bench::ofi {

constexpr std::size_t kMostBytes = 4u << 20;
constexpr int kWindow = 64;
constexpr double kPatience = 20;  ///< seconds

/// What the client tells the server to do together.
struct Order {
  int entry = -1;  ///< of Side::kEntries; below 0: the end
  std::uint64_t bytes = 0;
  std::uint64_t times = 0;  ///< 0: check that the bytes arrive, all of them
};

template <typename T>
T must(T rc, const char* what) {
  if (rc < 0) give_up(what, fi_strerror(static_cast<int>(-rc)));
  return rc;
}
#define MUST(call) must((call), #call)

inline double now() { return static_cast<double>(now_ns()) / 1e9; }

/// Ends a loop whose event does not come; reads the clock only now and then.
class Patience {
 public:
  explicit Patience(const char* what) : what_(what) {}
  void operator()() {
    if ((++turns_ & 0xfffff) != 0) return;
    const double t = now();
    if (since_ == 0) since_ = t;
    if (t - since_ > kPatience) give_up(what_, "has not come in time");
  }

 private:
  const char* what_;
  std::uint32_t turns_ = 0;
  double since_ = 0;
};

/// The socket between the two: set-up and orders, nothing that is measured.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  void send(const void* data, std::size_t bytes) const {
    if (::send(fd_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
      give_up("channel", "closed");
  }
  void receive(void* data, std::size_t bytes) const {
    if (::recv(fd_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
      give_up("channel", "closed");
  }
  bool ready() const {
    pollfd p{fd_, POLLIN, 0};
    return ::poll(&p, 1, 0) != 0;
  }

 private:
  int fd_;
};

struct RemoteRegion {
  std::uint64_t address = 0;
  std::uint64_t key = 0;
};

/// An endpoint, and buffers that are the same for every measurement.
class Endpoint {
 public:
  explicit Endpoint(const Channel& channel);

  /// Empty, or why this provider cannot do it.
  std::string open(const char* provider, std::string_view family);
  void close();

  void progress() {
    (void)fi_cq_read(sent_, nullptr, 0);
    (void)fi_cq_read(received_, nullptr, 0);
  }
  /// Calls until the provider takes it.
  template <typename F>
  void post(F&& call, const char* what) {
    Patience patience(what);
    for (;;) {
      const ssize_t rc = call();
      if (rc == 0) return;
      if (rc != -FI_EAGAIN) must(rc, what);
      progress();
      patience();
    }
  }
  bool take(fid_cq* cq, const char* what);
  void wait(fid_cq* cq, int count, const char* what);

  void post_receive(std::size_t bytes, int slot = 0) { receive(in_, bytes, &receives_[slot]); }
  void post_send(std::size_t bytes, int slot = 0);
  bool injects(std::size_t bytes) const { return bytes < info_->tx_attr->inject_size; }
  void inject(std::size_t bytes) { inject(out_, bytes); }
  void inject_write(std::size_t bytes);
  /// Injected, or posted and waited for.
  void send(std::size_t bytes);
  void access(bool write, std::size_t bytes, int slot = 0);
  // Notes are messages of the loops' own.
  void post_note() { receive(&note_in_, sizeof note_in_, &note_context_); }
  void send_note() { inject(&note_out_, sizeof note_out_); }
  /// Both have come here. `prepare` receives before the other side can send.
  template <typename F>
  void meet(F&& prepare) {
    post_note();
    prepare();
    send_note();
    wait(received_, 1, "a message");
  }
  void meet() {
    meet([] {});
  }

 protected:
  void receive(void* to, std::size_t bytes, fi_context2* context);
  void inject(const void* from, std::size_t bytes);
  std::string open_queues(bool waits);
  void exchange_names();
  void register_regions();

  Channel channel_;
  bool tagged_ = false;
  fi_info* info_ = nullptr;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_av* av_ = nullptr;
  fid_cq *sent_ = nullptr, *received_ = nullptr;
  fid_ep* ep_ = nullptr;
  fid_mr *out_mr_ = nullptr, *in_mr_ = nullptr;
  void* desc_ = nullptr;
  int fd_ = -1;  ///< of received_, in the family that waits
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  RemoteRegion remote_;
  /// in_ is also the region for the other side's accesses
  std::uint8_t *out_ = nullptr, *in_ = nullptr;
  std::uint32_t note_in_ = 0, note_out_ = 0;
  fi_context2 sends_[kWindow] = {}, receives_[kWindow] = {}, note_context_ = {};
};

}  // namespace clan::bench::ofi
