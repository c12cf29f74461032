// One endpoint of libfabric with what it needs, and the calls that the loops are made of.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "channel.h"
#include "order.h"

namespace clan::bench::ofi {

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

  void post_receive(std::size_t bytes, int slot = 0);
  void post_send(std::size_t bytes, int slot = 0);
  bool injects(std::size_t bytes) const { return bytes < info_->tx_attr->inject_size; }
  void inject(std::size_t bytes);
  void inject_write(std::size_t bytes);
  /// Injected, or posted and waited for.
  void send(std::size_t bytes);
  void access(bool write, std::size_t bytes, int slot = 0);
  // Notes are messages of the loops' own.
  void post_note();
  void send_note();
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
