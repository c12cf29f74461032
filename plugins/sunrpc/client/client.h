// Client: the CLIENT that a program gets instead of libtirpc's, which it keeps inside.
//
//   program -> CLIENT (ours) --+-- CLAN: a message endpoint of its own, once the server is met
//                              +-- the stock CLIENT: everything else, and always before that
//
// The first call that waits for an answer asks the server over the stock handle whether it has this
// library (wire.h); a server of another host, where CLAN_KEY is set, for its UDP link. Calls go
// over CLAN from the moment its loop has said Welcome; nothing waits for that longer than
// kWelcomeMs, once. Calls stay with the stock handle that CLAN does not serve: other flavours of
// authentication than NONE, SYS and SHORT; those sent without waiting whose answer the program may
// read from the socket by itself; and all that follow such a one until an answer has come.
//
// A call's time-out bounds all of it: asking, encoding, what the server sends and nobody wants, a
// reply in fragments. A reply that makes no sense fails the call (RPC_CANTDECODERES), and later
// ones go by the stock handle. For a while they do so after two time-outs in a row, and after a
// reply that lay in the ring without waking the thread that slept: where a child of this process
// has written over its memory, no reply does.
//
// Signals are blocked while a call sleeps, as libtirpc does for the whole call. A thread is
// cancelled where its call waits; the handle goes on, as another thread's.
//
// A datagram's call that is not answered is sent again, as libtirpc does: the same bytes, so that
// its arguments are encoded once. A server that has answered it passes over it.
//
// Files: client.cc, its life; client_meet.cc, its server; client_call.cc, client_reply.cc, a call.
//
// Thread-safety: as the stock handle: any thread, calls of one handle exclude each other. A signal
// handler that interrupts a call and calls the same handle goes by the stock handle.
#pragma once

#include <clan/detail/clock.h>
#include <clan/message.h>
#include <netinet/in.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "client/cancel.h"
#include "process.h"
#include "stock_socket.h"
#include "wire.h"
#include "xdr_streams.h"

namespace clan::rpc {

constexpr std::uint64_t kMs = 1'000'000;  ///< in nanoseconds
/// Messages taken between two reads of the clock: their sender may never stop.
constexpr int kMostMessages = 256;

extern "C" bool_t clan_rpc_xdr_kept(XDR* xdrs, void* client);

class Client {
 public:
  /// Takes the stock handle; gives back the one for the program. `server`: its address. On failure
  /// (no memory) the stock handle itself.
  static CLIENT* around(CLIENT* stock, int fd, int socket_type, const netbuf& server,
                        rpcprog_t prog, rpcvers_t vers);

  enum clnt_stat call(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                      timeval timeout);
  bool control(u_int request, void* info);
  void error(rpc_err* to) const { *to = error_; }
  void destroy();
  /// Encodes the arguments of the call that was lost, as they were.
  bool put_kept(XDR* xdrs);

 private:
  enum class State {
    kFresh,    ///< the server has not been asked
    kOffered,  ///< we have said Hello
    kMet,      ///< it has said Welcome
    kStock,    ///< it has not this library, or we cannot use ours
  };
  struct Call {
    rpcproc_t proc;
    xdrproc_t xargs;
    void* args;
    xdrproc_t xres;
    void* res;
    bool wait;               ///< for a reply
    std::uint64_t deadline;  ///< monotonic ns
  };
  struct Nap {
    std::uint64_t ns;                      ///< the next lasts at most
    bool over;                             ///< nothing ended the last one before
    std::uint64_t ends_at = 0;             ///< the one under way; 0: none is
    std::uint64_t again_at = kNoDeadline;  ///< the call is sent again
  };
  /// What has become of an attempt to go over CLAN.
  enum class Outcome { kDone, kNotSent, kLost };

  Client(CLIENT* stock, int fd, bool datagram, rpcprog_t prog, rpcvers_t vers);
  void set_server(const netbuf& server);
  bool serves(bool wait, std::uint64_t deadline);
  bool serves_or_not(bool wait, std::uint64_t deadline);
  void meet(std::uint64_t deadline);
  void stays(const char* why);
  void late();
  void rest(const char* why);
  bool ask(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
           std::uint64_t deadline);
  void refused(std::uint32_t status);
  void meet_near(std::uint64_t deadline);
  void meet_far(std::uint64_t deadline);
  void offer(Result<PeerIndex> peer, std::uint64_t token);
  bool was_not_taken(std::uint64_t deadline);
  bool is_at_a_record(std::uint64_t deadline, int cancel_state);
  void await_welcome(std::uint64_t deadline);
  void look_for_welcome();
  void leave(State next);
  void after_fork();

  enum clnt_stat by_stock(rpcproc_t proc, xdrproc_t xargs, void* args, xdrproc_t xres, void* res,
                          timeval timeout);
  Outcome by_clan(const Call& call);
  bool attempts(const Call& call);
  Outcome attempt(const Call& call);
  Outcome send_call(const Call& call);
  std::size_t put_heads(std::byte* to, const Call& call, bool new_caller) const;
  Outcome send_message(const Call& call, bool new_caller);
  bool encode(const Call& call, class OutMessage* to);
  void keep(std::span<const std::byte> message, std::size_t head_bytes);
  void send_again();
  bool is_in_time(std::uint64_t deadline);
  bool await_room(std::uint64_t deadline);
  bool await_more(std::uint64_t deadline, std::span<const std::byte>* bytes);
  Outcome await_reply(const Call& call);
  Outcome sleep(const Call& call, Nap* nap, bool* done);
  Outcome take_from_socket(const Call& call, bool* done);
  bool take_reply(const Call& call, bool* done);
  void makes_no_sense();
  void take_this(const Call& call, const ReplyHead& head, std::span<const std::byte> bytes);
  void decode_reply(const Call& call, const ReplyHead& head, XDR* xdrs);
  void decode_full(const Call& call, XDR* xdrs);
  void take_full(const Call& call, rpc_msg* reply, XDR* xdrs);
  void unwrap(const Call& call, XDR* xdrs);
  Outcome lost(const Call& call);
  bool set_timeout(const timeval& timeout);
  Caller caller_now() const;

  CLIENT handle_{};
  CLIENT* stock_;
  const int fd_;
  const bool datagram_;
  SocketReply socket_;  ///< what calls over CLAN have read from it
  sockaddr_storage server_{};
  socklen_t server_length_ = 0;
  std::string marker_;
  State state_ = State::kFresh;
  int attempts_ = 0;
  unsigned pause_s_ = 0;           ///< until the next, when those at once were in a row too many
  std::uint64_t again_at_ns_ = 0;  ///< in kStock: ask again then; 0: never
  bool waited_ = false;            ///< for Welcome, once
  std::uint32_t generation_;

  std::mutex mutex_;
  std::atomic<const void*> owner_{nullptr};  ///< the thread in call(), by an address of its own

  std::optional<MessageEndpoint> endpoint_;
  PeerIndex peer_ = 0;
  std::uint64_t token_ = 0;    ///< of a server on another host; 0: on this one
  CallerState known_;          ///< what the client has reported to the server
  std::size_t hint_ = 512;     ///< bytes that the next call may take
  bool more_follows_ = false;  ///< fragments of the reply that is being decoded
  bool nonsense_ = false;      ///< the server has sent it: nothing of it is read any more
  bool unheard_ = false;       ///< its last reply was found by looking, and did not wake us
  int timeouts_ = 0;           ///< the last calls over CLAN, in a row
  friend class CallOut;
  friend class ReplyIn;

  rpcprog_t prog_;
  rpcvers_t vers_;
  std::uint32_t xid_ = 0;       ///< of the last call
  bool xid_moved_ = false;      ///< since the stock handle last knew it
  bool stock_batched_ = false;  ///< calls without an answer have gone by the stock handle
  timeval wait_;
  bool wait_set_ = false;
  std::uint64_t retry_ns_ = 15'000 * kMs;  ///< a datagram's call is sent again that is not answered
  OutBuffer sent_;  ///< the call, if it may have to be; size 0: it is not kept
  std::size_t sent_heads_ = 0;
  int cancel_state_ = 0;  ///< of the thread in call()
  rpc_err error_{};
  bool refresh_ = false;
};

/// Nanoseconds until then, 0 if it is over; kNoDeadline: there is no end.
std::uint64_t left_ns(std::uint64_t deadline);
/// The same in milliseconds, rounded up, for sleeping on an endpoint; -1: there is no end.
std::int64_t left_ms(std::uint64_t deadline);
/// The same for libtirpc.
timeval until(std::uint64_t deadline);

}  // namespace clan::rpc
