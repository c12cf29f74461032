// ConnectAttempt: a connection to a service that nobody waits for.
//
//   dialling ──accept──> asking ──kAccept──> open
//       └────────────────┴── refused, dead, too late, cancelled ──> failed
//
// Dialling is skipped where a link with the service's process exists. The driver thread takes each
// step and notifies the owner at the end, which then asks for the result. Any thread.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/connection/connection.h"

namespace clan::engine {

class ConnectAttempt final : public Pollable,
                             public AnswerSink,
                             public std::enable_shared_from_this<ConnectAttempt> {
 public:
  /// Begins. `greetings` are the first records, of type kMessage. `owner` is notified of the end
  /// unless begin() saw it. ECONNREFUSED: nobody offers the service; EAGAIN: the peer has no room.
  static Result<std::shared_ptr<ConnectAttempt>> begin(
      std::shared_ptr<ContextCore> context, const std::string& service, uid_t uid,
      ConnectionKind kind, const Address& from,
      std::span<const std::span<const std::byte>> greetings, std::uint64_t deadline_ns,
      std::weak_ptr<AnswerSink> owner);

  /// EAGAIN: it has not ended.
  Result<std::shared_ptr<Connection>> result();
  /// Sleeps until it has ended. False: it has not.
  bool wait(std::uint64_t deadline_ns);
  /// It ends without a result, and `owner` is not notified.
  void cancel();
  /// The same, but the greetings go if the peer accepts in time; then the connection is closed.
  void let_go();

  // Pollable, driver thread: the peer's answer to hello.
  void on_ready(std::uint32_t events) override;
  void abandon_after_fork() override;
  // AnswerSink, driver thread: the connection's.
  void on_answer() override;

 private:
  ConnectAttempt(std::shared_ptr<ContextCore> context, std::string service, uid_t uid,
                 ConnectionKind kind, const Address& from, std::weak_ptr<AnswerSink> owner)
      : context_(std::move(context)),
        service_(std::move(service)),
        uid_(uid),
        kind_(kind),
        from_(from),
        owner_(std::move(owner)) {}
  Status dial();
  void on_dialled(Result<std::shared_ptr<nic::Link>> link, std::uint32_t endpoint);
  Status ask(std::shared_ptr<nic::Link> link, std::uint32_t endpoint);
  void take_answer();
  int greet();
  void hang_up();
  void end(int err);
  void fail_to_link(const Error& why);
  template <typename Step>
  void go_on(const Step& step);
  void expire();

  const std::shared_ptr<ContextCore> context_;
  const std::string service_;
  const uid_t uid_;
  const ConnectionKind kind_;
  const Address from_;
  const std::weak_ptr<AnswerSink> owner_;

  std::mutex mutex_;
  std::condition_variable ended_changed_;
  bool ended_ = false;
  int err_ = 0;
  bool remembered_ = false;  ///< the link was there, and its endpoint may not be any more
  std::vector<std::vector<std::byte>> greetings_;
  std::optional<link::ShmPeer> dialling_;
  std::shared_ptr<udp::Dialling> far_dialling_;  ///< the same on another host
  std::shared_ptr<Connection> connection_;
  int timer_ = -1;       ///< ends the attempt; the reactor holds it, and it us
  bool let_go_ = false;  ///< nobody asks for the result
};

}  // namespace clan::engine
