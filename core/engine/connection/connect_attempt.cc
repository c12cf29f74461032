#include "engine/connection/connect_attempt.h"

#include <algorithm>
#include <utility>

#include "base/wait_call.h"
#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "engine/context/network.h"

namespace clan::engine {

Result<std::shared_ptr<ConnectAttempt>> ConnectAttempt::begin(
    std::shared_ptr<ContextCore> context, const std::string& service, uid_t uid,
    ConnectionKind kind, const Address& from, std::span<const std::span<const std::byte>> greetings,
    std::uint64_t deadline_ns, std::weak_ptr<AnswerSink> owner) {
  if (!context->usable()) return unusable_error();
  std::shared_ptr<ConnectAttempt> attempt(
      new ConnectAttempt(context, service, uid, kind, from, std::move(owner)));
  for (std::span<const std::byte> g : greetings)
    attempt->greetings_.emplace_back(g.begin(), g.end());
  std::lock_guard lock(attempt->mutex_);
  auto timer = context->reactor().call_at(std::min(deadline_ns, monotonic_ns() + kAcceptTimeoutNs),
                                          [attempt] { attempt->expire(); });
  if (!timer) return timer.error();
  attempt->timer_ = *timer;
  std::uint32_t endpoint = 0;
  auto link = context->links().known(service_name(uid, service), &endpoint);
  attempt->remembered_ = link != nullptr;
  Status begun = link ? attempt->ask(std::move(link), endpoint) : attempt->dial();
  if (!begun) {
    attempt->end(begun.error().err);
    return begun.error();
  }
  return attempt;
}

// The functions from here to go_on(): under the mutex.

Status ConnectAttempt::dial() {
  if (!Network::is_remote(service_)) {
    auto peer = context_->begin_dial(service_, uid_);
    if (!peer) return peer.error();
    dialling_ = std::move(*peer);
    return context_->reactor().add(dialling_->socket.get(), shared_from_this());
  }
  auto begun =
      context_->begin_far_dial(service_, uid_,
                               [attempt = weak_from_this()](Result<std::shared_ptr<nic::Link>> link,
                                                            std::uint32_t endpoint) {
                                 if (auto self = attempt.lock())
                                   self->on_dialled(std::move(link), endpoint);
                               });
  if (!begun) return begun.error();
  far_dialling_ = std::move(*begun);
  return {};
}

Status ConnectAttempt::ask(std::shared_ptr<nic::Link> link, std::uint32_t endpoint) {
  auto connection = Connection::ask(context_, std::move(link), endpoint, kind_, from_);
  if (!connection) return connection.error();
  connection_ = std::move(*connection);
  take_answer();
  return {};
}

// The answer to kConnect, if it is there.
void ConnectAttempt::take_answer() {
  const Status answer = connection_->answer(weak_from_this());
  if (answer) return end(greet());
  const int err = answer.error().err;
  if (err == EAGAIN) return;
  connection_.reset();
  // A name that we asked for long ago: its owner may have died, or offer another endpoint now.
  if (std::exchange(remembered_, false) && (err == ECONNREFUSED || err == ECONNRESET)) {
    if (auto again = dial(); !again) end(again.error().err);
    return;
  }
  end(err);
}

// Nobody else has the connection yet, so it is this thread that produces.
int ConnectAttempt::greet() {
  for (const auto& greeting : greetings_) {
    if (!connection_->append(greeting, {}, RecordType::kMessage))
      return connection_->peer_gone() ? ECONNRESET : EMSGSIZE;
  }
  return 0;
}

void ConnectAttempt::hang_up() {
  if (auto far = std::exchange(far_dialling_, nullptr)) context_->network()->node().give_up(*far);
  if (!dialling_) return;
  context_->reactor().remove(dialling_->socket.get());
  context_->end_dial(*dialling_);
  dialling_.reset();
}

void ConnectAttempt::end(int err) {
  hang_up();
  if (err != 0 || let_go_) connection_.reset();
  if (timer_ >= 0) context_->reactor().remove(std::exchange(timer_, -1));
  err_ = err;
  ended_ = true;
  ended_changed_.notify_all();
}

// One step, unless it has ended. The owner is notified when it was the last.
template <typename Step>
void ConnectAttempt::go_on(const Step& step) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    step();
    if (!ended_) return;
  }
  if (auto owner = owner_.lock()) owner->on_answer();
}

void ConnectAttempt::on_ready(std::uint32_t) {
  go_on([this] {
    if (!dialling_) return;
    std::uint32_t endpoint = 0;
    Status accepted = link::finish_dial(*dialling_, &endpoint);
    if (!accepted && accepted.error().err == EAGAIN) return;
    if (accepted) {
      context_->reactor().remove(dialling_->socket.get());
      auto link = context_->dialled(std::move(*dialling_), service_, endpoint);
      dialling_.reset();
      accepted = link ? ask(std::move(*link), endpoint) : Status(link.error());
    }
    if (!accepted) fail_to_link(accepted.error());
  });
}

// Driver thread: the other host has answered, or it never will.
void ConnectAttempt::on_dialled(Result<std::shared_ptr<nic::Link>> link, std::uint32_t endpoint) {
  go_on([&] {
    if (!far_dialling_) return;
    far_dialling_.reset();
    const Status asked = link ? ask(std::move(*link), endpoint) : Status(link.error());
    if (!asked) fail_to_link(asked.error());
  });
}

void ConnectAttempt::fail_to_link(const Error& why) {
  CLAN_INFO("no link to service \"%s\" of user %u: %s", service_.c_str(),
            static_cast<unsigned>(uid_), why.message().c_str());
  end(why.err);
}

void ConnectAttempt::on_answer() {
  go_on([this] {
    if (connection_) take_answer();
  });
}

void ConnectAttempt::expire() {
  go_on([this] {
    CLAN_INFO("service \"%s\" of user %u did not answer in time", service_.c_str(),
              static_cast<unsigned>(uid_));
    end(ETIMEDOUT);
  });
}

void ConnectAttempt::abandon_after_fork() {
  if (dialling_) dialling_->socket.reset();
}

Result<std::shared_ptr<Connection>> ConnectAttempt::result() {
  if (!context_->usable()) return unusable_error();
  std::lock_guard lock(mutex_);
  if (!ended_) return Error{EAGAIN, "the peer has not answered yet"};
  if (err_ != 0) return Error{err_, "the peer could not be connected to"};
  return connection_;
}

bool ConnectAttempt::wait(std::uint64_t deadline_ns) {
  if (!context_->usable()) return false;
  std::unique_lock lock(mutex_);
  (void)sys::wait_until(ended_changed_, lock, deadline_ns,
                        [&] { return ended_ || !context_->usable(); });
  return ended_;
}

void ConnectAttempt::cancel() {
  // In a forked child the mutex may be the driver thread's, which is not there.
  if (!context_->usable()) return;
  std::lock_guard lock(mutex_);
  if (!ended_) end(ECANCELED);
}

void ConnectAttempt::let_go() {
  if (!context_->usable()) return;
  std::lock_guard lock(mutex_);
  let_go_ = true;
}

}  // namespace clan::engine
