// UdpNode: one context on the network: a socket, the transport's endpoint over it, and the links.
//
//   application threads --put, get, progress()--> [ mutex: Endpoint, PacketPump, links ] <-- driver
//                                                            | out-of-band, completions, deaths
//                                                            v
//                             LinkSink, without the mutex: from the driver thread, or from fetch()
//
// A waiting thread makes progress: by fetch() and progress() while it polls, by sleep() while it
// sleeps; the driver thread where none has for half a millisecond.
//
// Any thread. Lock order: the engine's locks, the node's mutex, then the Nic's and
// ContextCore::mutex_, under which revocations are announced, and so only noted.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/event_count.h"
#include "base/reactor.h"
#include "link/udp/io/packet_io.h"
#include "link/udp/node/autocork.h"
#include "link/udp/node/udp_node_dial.h"
#include "link/udp/node/udp_node_sleep.h"
#include "link/udp/transport/endpoint.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::udp {

class PathStatsPage;

/// What a node needs of its context. All of it outlives shut_down().
struct NodeOwner {
  NodeId node;
  uid_t uid = 0;
  nic::Nic* nic = nullptr;
  nic::LinkSink* sink = nullptr;
  Reactor* reactor = nullptr;
  /// Where a service is, for a client that asks: fills endpoint or port. An errno: it is not here.
  std::function<int(const std::string& service, Greeting* answer)> find_service;
  /// A link that a peer has made. Under the node's mutex.
  std::function<void(std::shared_ptr<nic::Link>)> on_link;
  PathStatsPage* path_stats = nullptr;  ///< where paths are shown, if they are
};

class UdpNode final : public EndpointSink, public std::enable_shared_from_this<UdpNode> {
 public:
  static Result<std::shared_ptr<UdpNode>> create(NodeOwner owner, std::unique_ptr<PacketIo> io,
                                                 std::unique_ptr<Security> security,
                                                 const Options& options);

  /// A link with the node there. ECONNREFUSED: no such service; ETIMEDOUT: no answer, another key.
  Result<Dialled> dial(const SocketAddress& to, const std::string& service,
                       std::uint64_t deadline_ns);
  /// The same for a caller that does not wait: `ended` is called by the driver thread, once.
  Result<std::shared_ptr<Dialling>> begin_dial(const SocketAddress& to, const std::string& service,
                                               std::function<void(Result<Dialled>)> ended);
  /// `ended` is not called any more, unless it is being called.
  void give_up(Dialling& dialling);

  SocketAddress local_address() const { return io_->local_address(); }
  Mode mode() const { return mode_; }
  /// Takes what has come and sends what may be sent, unless another thread is at it.
  void progress();
  void fetch();  ///< the same, and reports transfers that have ended: without the engine's locks
  /// Sleeps, and fetches packets meanwhile unless another thread does. 0, ETIMEDOUT or EINTR.
  int sleep(const Sleep& what);
  /// A word that a thread may sleep on has changed, and not by a packet.
  void wake_sleepers();
  /// From now on the driver thread watches where no thread does: there are sleeps we do not see.
  void keep_watching();
  /// Readable when a packet has come, for threads that sleep elsewhere; they fetch as they wake.
  int descriptor() const { return abandoned() ? -1 : io_->descriptor(); }
  bool arm_descriptor();  ///< before each such sleep. False: there may be more packets
  /// Says good-bye to all peers once all is acknowledged, or nothing more has been for
  /// `patience_ns`. After the reactor has stopped: no up-calls.
  void shut_down(std::uint64_t patience_ns);
  void abandon_after_fork();

  void break_links(int err);  ///< for tests: as if the peers were dead
  // relaxed: a child has one thread
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  // EndpointSink, under the mutex.
  int on_request(const SocketAddress& from, std::span<const std::byte> greeting,
                 std::span<std::byte> answer, std::size_t* answer_bytes) override;
  void on_established(Connection& connection, std::span<const std::byte> greeting) override;
  void on_down(Connection& connection, int err) override;

 private:
  static constexpr unsigned kPolls = 4;
  friend class UdpLink;
  class Event;

  /// For the sink. By the driver thread, but for those of transfers: by any that has no locks.
  struct UpCall {
    std::function<void(nic::LinkSink&)> call;
    bool is_of_transfer = false;
  };
  enum class HandOut : std::uint8_t { kAll, kTransfers };
  Greeting own_greeting() const;
  Status ask(std::shared_ptr<Dialling> dialling);
  void end_dialling(Connection& connection, int err, Dialled found);
  void go_on_dialling(const std::shared_ptr<Dialling>& dialling);
  std::shared_ptr<UdpLink> make_link(Connection& connection, const Greeting& peer);

  UdpNode(NodeOwner owner, std::unique_ptr<PacketIo> io, std::unique_ptr<Security> security,
          const Options& options);
  Status start();
  bool on_driver_thread() const { return owner_.reactor->on_reactor_thread(); }
  void tell(std::function<void(nic::LinkSink&)> call);
  void tell_transfer(std::uint64_t token, int err, std::uint64_t bytes);
  void queue_up_call(UpCall call);
  std::size_t waiting_up_calls();
  void announce_revoked(std::shared_ptr<UdpLink> link, std::uint32_t aperture,
                        std::uint32_t generation);

  // Under the mutex.
  bool pump(std::uint64_t now), poll(), may_hold() const, put_off_tick(std::uint64_t now);
  void flush(std::uint64_t now), send_revocations();
  void set_timer(), note_timer(), start_ticks(std::uint64_t now, std::uint64_t first);
  void announce(), show_paths(), watch_socket(bool on), hand_to_driver(), keep_out();
  void kick(), wake_driver(), after_call(), rouse_sleeper();
  using Lock = std::unique_lock<std::recursive_mutex>;
  int sleep_aside(Lock& lock, const Sleep& what);
  int sleep_in_charge(Lock& lock);
  void tell_in_charge(Lock& lock);
  bool word_has_changed() const, left_to_others(bool tick, std::uint64_t now);
  bool hand_out(HandOut which);  ///< without the mutex

  // Driver thread.
  void drive(bool timer);

  const NodeOwner owner_;
  const Mode mode_;
  std::unique_ptr<Security> security_;
  std::unique_ptr<PacketIo> io_;
  Fd timer_, kick_;
  Fd wake_;  ///< rouses the thread that sleeps in charge
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;  ///< answers have come, a link has gone
  EventCount answers_;                   ///< the same, for threads in sleep()
  Endpoint endpoint_;
  PacketPump pump_;
  Autocork cork_;
  unsigned batch_ = 0;  ///< begin_batch() less end_batch(), of the thread that holds the mutex
  bool shut_down_ = false;
  std::atomic<bool> abandoned_{false};  ///< a forked child's: not even the mutex is touched
  bool watching_ = false;               ///< the driver thread watches the socket
  std::atomic<bool> kicked_{false};     ///< the driver thread will come for the up-calls
  std::uint64_t timer_at_ = kNever;
  std::uint64_t kept_out_since_ = 0, put_off_at_ = 0;  ///< while it ticks
  std::uint64_t polled_at_ = 0;  ///< when a thread last made progress while it waited
  unsigned polls_ = 0;  ///< how often since the driver thread looked, or the tick was put off
  std::atomic<bool> ticking_{false};  ///< the timer ticks: the driver thread looks now and then
  unsigned sleeps_ = 0;               ///< in charge, since the last tick
  const Sleep* in_charge_ = nullptr;  ///< of the thread that sleeps and fetches the packets
  std::uint64_t charge_until_ = 0;    ///< when it checks the timers
  std::atomic<bool> asleep_{false};
  unsigned others_asleep_ = 0;  ///< threads that the driver thread has to wake
  bool keep_watching_ = false;
  /// When a thread began to sleep on the descriptor elsewhere, as in poll(), and how often since
  /// the last tick. 0: it has come for packets.
  std::uint64_t armed_at_ = 0;
  unsigned armed_ = 0;
  bool told_ = false;  ///< up-calls that the driver thread has not been kicked for
  std::unordered_map<Connection*, std::shared_ptr<Dialling>> dialling_;
  std::unordered_map<Connection*, std::shared_ptr<UdpLink>> links_;

  std::mutex told_mutex_;  ///< a leaf, of up_calls_: taken while another thread has the mutex
  std::deque<UpCall> up_calls_;
  struct Revoked {
    std::weak_ptr<UdpLink> link;
    std::uint32_t aperture, generation;
  };
  std::mutex revoked_mutex_;  ///< a leaf: taken under ContextCore::mutex_
  std::vector<Revoked> revoked_;
  std::atomic<bool> any_revoked_{false};
};

}  // namespace clan::udp
