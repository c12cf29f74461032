// Endpoint: three queues that the program shares (unet_queues.h), its tags, and the port by which
// messages come and go.
//
// Files: channels.cc, tags; send.cc; receive.cc; memory.cc, what descriptors name; wait.cc.
#pragma once

#include <clan/detail/copy.h>
#include <clan/face/wait.h>
#include <clan/memory.h>
#include <clan/rdma.h>

#include <thread>
#include <unordered_map>

#include "port.h"

namespace clan::unet::library {

class Endpoint : public unet_endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> create(unet_node& node,
                                                  const unet_endpoint_options& wanted);
  ~Endpoint();

  unet_address address() const;
  unet_node& node() const { return port_->node; }
  Port& port() { return *port_; }
  UnetRow& row() { return *row_; }

  // Tags (channels.cc), with the port held.
  int accept(std::uint32_t tag, std::uint64_t key);
  int connect(std::uint32_t tag, Result<PeerIndex> peer, ConnectRecord record);
  int close(std::uint32_t tag);
  Channel* find(std::uint32_t tag);
  const RdmaCookie& area_cookie() const { return cookie_; }
  /// The peer has ended it: the program is to know.
  void over(Channel& channel, int reason);

  // Sends (send.cc), with the port held.
  int pump();
  bool sends_wait() const { return first_send_ != added(indices->send_added); }
  std::uint32_t sends_done() const { return first_send_; }

  // Receives (receive.cc), with the port held.
  void deliver(const Channel& channel, std::span<const std::byte> message);
  bool deliver_direct(const Channel& channel, std::uint64_t offset, std::uint32_t bytes);
  void tell_closed();
  bool has_received() const {
    return added(indices->receive_added) != added(indices->receive_taken);
  }

  /// Without the port: makes what lies in the free queue ready to be filled (memory.cc).
  void prepare_buffers();
  // Waiting (wait.cc), without.
  int poll();
  int wait(std::int64_t timeout_ms);
  int fd();
  int arm();
  int on_receive(void (*arrived)(unet_endpoint*, void*), void* context);
  /// The thread of another endpoint has taken something for this one.
  void wake();

 private:
  /// kStuck: later sends of the channel wait; kDeferred: those of the endpoint.
  enum class Outcome : std::uint8_t { kDone, kStuck, kDeferred };
  struct Queues {  ///< the memory that the program shares
    unet_indices indices{};
    std::vector<unet_send> sends;
    std::vector<std::uint64_t> frees;
    std::vector<unet_receive> receives;
  };
  struct Notifier {  ///< the thread of unet_on_receive()
    std::atomic<bool> ends{false};
    std::thread thread;
  };

  Endpoint(std::shared_ptr<Port> port, const unet_endpoint_options& wanted);
  Status make_area(const unet_endpoint_options& wanted);

  static std::uint32_t added(const unet_index& index) {
    return __atomic_load_n(&index.at, __ATOMIC_ACQUIRE);
  }
  static void publish(unet_index& index, std::uint32_t value) {
    __atomic_store_n(&index.at, value, __ATOMIC_RELEASE);
  }

  // send.cc, direct.cc
  Outcome start(unet_send& d, int* status);
  Outcome put(Channel& channel, std::span<const std::byte> head, std::span<const std::byte> data,
              std::size_t bytes, int* status);
  Outcome start_message(const unet_send& d, Channel& channel, std::size_t bytes, int* status);
  Outcome start_direct(const unet_send& d, Channel& channel, std::size_t bytes, int* status);
  Outcome write_area(const unet_send& d, Channel& channel, std::size_t bytes, int* status);
  Outcome fly(const unet_send& d, Channel& channel, int* status);
  Outcome land(const unet_send& d, Channel& channel, std::size_t bytes, int* status);
  Outcome tell_direct(const unet_send& d, Channel& channel, std::size_t bytes, int* status);
  Outcome stick(Channel& channel);
  Outcome defer();
  int gather(const unet_send& d, std::byte* to);
  int import_area(Channel& channel);
  void abandon_flight();
  void count_sent(std::size_t bytes);

  // receive.cc
  std::uint32_t places() const {
    return receive_entries - (receives_added_ - added(indices->receive_taken));
  }
  void push(const unet_receive& d);
  void finish(std::uint32_t bytes);
  void give_back(std::uint64_t buffer, int status);
  bool fill_buffers(std::span<const std::byte> message,
                    std::array<std::uint64_t, UNET_BUFFERS>& filled, std::uint16_t& n);

  // memory.cc
  /// Where a piece is in this process. EFAULT: not in the area.
  int locate(const unet_piece& piece, const void** at) const;
  int fetch(std::byte* to, std::uint64_t at, std::size_t bytes);
  int store(std::uint64_t at, const std::byte* from, std::size_t bytes);

  // wait.cc
  bool something();
  int wait(std::uint64_t deadline_ns, const std::atomic<bool>& ends);
  bool sleep(std::uint64_t deadline_ns, const std::atomic<bool>& ends, int* error);
  bool make_armed();
  void disarm();

  std::shared_ptr<Port> port_;
  const std::uint32_t mode_, flags_;
  std::uint32_t number_ = 0;
  bool added_ = false;  ///< to the port
  std::unique_ptr<Queues> queues_;
  std::optional<Memory> memory_;
  std::optional<Aperture> aperture_;
  RdmaCookie cookie_;
  std::unordered_map<std::uint32_t, std::unique_ptr<Channel>> channels_;
  Channel* last_ = nullptr;  ///< found last
  std::size_t untold_ = 0;   ///< channels that are over and not reported

  std::uint32_t first_send_ = 0;  ///< that is not done
  std::uint32_t flyer_ = 0;       ///< that is under way by RDMA, or whose peer is to be notified
  std::uint64_t round_ = 0;
  bool deferred_ = false;  ///< a send waits for a page
  std::optional<RdmaQueue> rdma_;
  /// The send that is under way by RDMA: its requests, and what has become of them.
  struct Flight {
    std::uint32_t requests = 0;
    int status = 0;
  } flight_;
  bool flies_ = false;

  std::uint32_t receives_added_ = 0, frees_taken_ = 0, frees_ready_ = 0;
  UnetRow* row_ = nullptr;
  Waiter waiter_;
  int own_fd_ = -1, both_fd_ = -1;  ///< of one that shares its port
  bool armed_ = false;              ///< a thread sleeps until something arrives
  std::unique_ptr<Notifier> notifier_;
};

inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) {
  // relaxed: for people; one writer, with the port held
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace clan::unet::library
