// The server's side: one Hub per process, beside the transports that the program has.
//
//   poll() -> hub's descriptor -> Hub::serve(): while there are messages:
//                peer -> ServiceTransport (its client's) -> svc_getreq_common(fd)
//                  -> ServiceTransport::receive() takes the message, libtirpc dispatches as ever
//   poll() -> the socket ------> ServiceTransport::receive(): the hub's, then the stock one's
//
// So a service is called with the transport that its client connected to: its descriptor, addresses
// and credentials are what the kernel says, and nothing the client has written. The library
// replaces the operations of a transport of either kind when it meets a client there.
//
// Threads: the loop that polls is one thread, as libtirpc wants it. Replies may come from others:
// the endpoint is used under Hub::mutex. Arguments are decoded without it: the peer whose message
// is being taken apart stays until let_go(), whichever thread drops it.
#pragma once

#include <clan/message.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "process.h"
#include "server/peer_state.h"
#include "server/wait_budget.h"
#include "wire.h"
#include "xdr_streams.h"

namespace clan::rpc {

class Hub;
class ServiceTransport;

/// A stock transport whose operations are ours.
class ServiceTransport {
 public:
  ServiceTransport(Hub& hub, SVCXPRT* xprt);
  static ServiceTransport* of(SVCXPRT* xprt);  ///< null: not one that CLAN serves
  static ServiceTransport& known(SVCXPRT* xprt);

  // What libtirpc asks of a transport.
  bool receive(rpc_msg* message);
  enum xprt_stat state();
  bool arguments(xdrproc_t proc, void* to);
  bool reply(rpc_msg* message);
  void destroy();

  bool is_datagram() const { return datagram_; }

 private:
  friend class Hub;
  class Life;
  void fill(rpc_msg* message, const PeerState& peer, const CallHead& head);
  bool decode(XDR* xdrs, xdrproc_t proc, void* to);
  void forget_arguments();
  void keep_arguments();
  bool encode(XDR* xdrs, rpc_msg* message, bool plain, xdrproc_t results, caddr_t where);
  bool send_reply(rpc_msg* message, bool plain, xdrproc_t results, caddr_t where);
  bool reply_by_socket(rpc_msg* message, xdrproc_t results, caddr_t where);

  TransportOps operations_;  // first: found again from xprt->xp_ops
  const TransportOps* stock_;
  Hub* hub_;
  SVCXPRT* xprt_;
  bool datagram_;
  std::uint32_t generation_;
  Life* life_ = nullptr;  ///< the innermost function of it that has others dispatched

  bool from_clan_ = false;          ///< the request that is being served
  PeerIndex peer_ = 0;              ///< that sent it
  const void* receiver_ = nullptr;  ///< the thread that has taken it, by an address of its own
  std::uint32_t xid_ = 0;
  std::size_t hint_ = 512;
  std::vector<PeerIndex> clients_;  ///< that have come by it, under the hub's mutex
  // Its arguments: copied, in the ring, in the ring as far as they have come, or in kept_.
  enum class Where { kNowhere, kCopied, kInRing, kFragments, kKept };
  Where where_ = Where::kNowhere;
  std::vector<std::byte> kept_;  ///< for a child of the service; in the ring as well where kInRing
  std::span<const std::byte> in_ring_;
  static constexpr std::size_t kCopied = 1024;
  std::size_t copied_bytes_ = 0;
  alignas(8) std::byte copied_[kCopied];
};

class Hub {
 public:
  /// The process's, made when first asked for. Null: there cannot be one now.
  static Hub* get();
  /// The process's, if it has been made and is not a parent's.
  static Hub* present();

  /// Answers a client that asks for us by `xprt`.
  MeetResults meet(SVCXPRT* xprt, const MeetArguments& arguments);
  FarResults meet_far(SVCXPRT* xprt, const MeetArguments& arguments);
  LeaveResults leave(SVCXPRT* xprt, const LeaveArguments& arguments);
  /// Serves what is there, and for a while what comes next. From the thread that polls.
  void serve();
  /// Serves what is there now.
  void drain();
  /// The service that this thread is in may be about to fork.
  void before_fork();

  MessageEndpoint& endpoint() { return *endpoint_; }
  std::mutex& mutex() { return mutex_; }
  /// The next fragment of the call with `xid` from `peer`, whose last one lies at the front. Those
  /// of others are held back, and noted in `held`. False: there is none within what patience_ has
  /// left.
  bool await_more(PeerIndex peer, std::uint32_t xid, std::vector<PeerIndex>* held, GoOn* go_on,
                  std::span<const std::byte>* bytes);
  /// Sleeps a while for a client that does not read its replies, with the mutex free. False: it has
  /// had two seconds since then.
  bool await_room(PeerIndex peer, std::uint64_t since);
  /// The message at the front has been taken apart, or nobody wants it. The caller has the mutex.
  void let_go();
  /// The one that serves a transport; null: none does. The caller's thread has it to itself.
  static Hub* of(SVCXPRT* xprt);
  /// One of its transports has been registered with libtirpc. From any thread.
  void registered();
  /// The transport goes.
  void forget(ServiceTransport* transport);
  PeerState* peer(PeerIndex index) { return index < peers_.size() ? peers_[index].get() : nullptr; }

 private:
  struct Expected {
    std::uint64_t token;
    ServiceTransport* transport;
    sockaddr_storage from;
    socklen_t from_length;
    bool far;
  };
  static constexpr std::size_t kMostExpected = 1024;
  static constexpr std::uint64_t kPatienceNs = 5'000'000'000;
  /// A call, or its first fragment, without its heads.
  struct Front {
    PeerIndex peer;
    CallHead head;
    std::span<const std::byte> bytes;
  };
  /// A client of another host that has gone, and may ask yet.
  struct Departed {
    std::uint64_t token;
    std::optional<std::uint32_t> last_xid;
  };

  Hub() = default;
  bool start();
  std::uint32_t expect(SVCXPRT* xprt, const MeetArguments& arguments, bool far,
                       std::uint64_t* token);
  bool has_state(PeerIndex index);
  bool serve_one();
  enum class Taken { kNothing, kOther, kCall };
  Taken take_one(Front* front);
  void dispatch(int fd);
  // relaxed: see Dispatching
  bool is_dispatching() const { return dispatcher_.load(std::memory_order_relaxed) != nullptr; }
  bool is_gathered_first(const PeerState& peer);
  void begin_gathering(PeerIndex from, const Front& front);
  bool gather(PeerIndex from, std::span<const std::byte> bytes, Front* front);
  void welcome(PeerIndex index, std::span<const std::byte> bytes);
  void drop_peer(PeerIndex index, bool hostile);
  void drop_peer_later(PeerIndex index);
  void bury_departed();
  void defer(std::uint64_t registrations);
  void hold(PeerState* from);
  void take_up();
  bool take_ready(Front* front);
  ServiceTransport* transport_of(SVCXPRT* xprt);

  std::mutex mutex_;
  std::optional<MessageEndpoint> endpoint_;
  std::uint32_t generation_ = 0;
  SVCXPRT xprt_{};
  SVCXPRT_EXT extension_{};
  std::uint64_t service_ = 0;  ///< far_service(); 0: other hosts cannot reach us
  std::deque<Expected> expected_;
  std::deque<Departed> departed_;
  std::vector<std::unique_ptr<PeerState>> peers_;
  std::size_t live_ = 0;  ///< of all of them
  std::uint64_t registrations_ = 0;
  bool some_deferred_ = false, some_ready_ = false;  ///< false: none is
  std::optional<PeerIndex> taken_apart_;             ///< whose message is at the front
  std::atomic<const void*> dispatcher_{nullptr};     ///< the thread, by an address of its own
  ServiceTransport* current_ = nullptr;              ///< has taken the last request
  friend class ServiceTransport;
  std::optional<Front> front_;  ///< the call that the transport just called is to take
  /// How long the clients of the process may hold it up by messages that are not whole, all of them
  /// together.
  WaitBudget patience_{kPatienceNs};
};

/// A server's transport has been made: a client that connects to it can find that out.
void announce(SVCXPRT* xprt);

}  // namespace clan::rpc
