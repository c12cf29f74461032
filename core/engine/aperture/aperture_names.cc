#include "engine/aperture/aperture_names.h"

#include <algorithm>
#include <cstring>

#include "clan/detail/clock.h"

namespace clan::engine {
namespace {

constexpr std::uint64_t kAnswerTimeoutNs = 10'000'000'000u;

// A thread that asks, until the answer is there.
class Question final : public OobSink {
 public:
  explicit Question(std::shared_ptr<nic::Link> link) : link_(std::move(link)) {}

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if (link != link_ || message.type != kOobFound) return;
    FoundRecord record;
    if (message.length != sizeof record) {
      record.err = EPROTO;
    } else {
      std::memcpy(&record, message.payload.data(), sizeof record);
      if (record.aperture.note_bytes > kMaxApertureNote) record.err = EPROTO;
    }
    answer(record);
  }
  void on_link_down(const std::shared_ptr<nic::Link>& link) override {
    if (link != link_) return;
    FoundRecord record;
    record.err = ECONNREFUSED;
    answer(record);
  }

  bool wait(std::uint64_t deadline_ns, FoundRecord* record) {
    std::unique_lock lock(mutex_);
    while (!answered_) {
      const std::uint64_t now = monotonic_ns();
      if (now >= deadline_ns) return false;
      // In slices: the deadline is on another clock than the condition's.
      const std::uint64_t slice = std::min<std::uint64_t>(deadline_ns - now, 1'000'000'000u);
      arrived_.wait_for(lock, std::chrono::nanoseconds(slice));
    }
    *record = record_;
    return true;
  }

 private:
  void answer(const FoundRecord& record) {
    std::lock_guard lock(mutex_);
    if (answered_) return;
    record_ = record;
    answered_ = true;
    arrived_.notify_all();
  }

  std::shared_ptr<nic::Link> link_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  bool answered_ = false;
  FoundRecord record_;
};

}  // namespace

Result<NamedAperture> look_up_aperture(const std::shared_ptr<ContextCore>& context, NodeId owner,
                                       uid_t uid, std::uint64_t name, std::uint64_t deadline_ns) {
  auto link = context->link_to_node(owner, uid, deadline_ns);
  if (!link) return link.error();
  auto question = std::make_shared<Question>(*link);
  auto endpoint = context->add_endpoint(question);
  if (!endpoint) return endpoint.error();
  OobMessage message;
  message.from = *endpoint;
  message.type = kOobLookUp;
  const LookUpRecord asked{name};
  message.length = sizeof asked;
  std::memcpy(message.payload.data(), &asked, sizeof asked);
  FoundRecord found;
  auto sent = (*link)->send_oob(message);
  const bool answered =
      sent && question->wait(std::min(deadline_ns, monotonic_ns() + kAnswerTimeoutNs), &found);
  context->endpoints().remove(*endpoint);
  if (!sent) return sent.error();
  if (!answered) return Error{ETIMEDOUT, "the node did not say what aperture has this name"};
  if (found.err == ENOENT) return Error{ENOENT, "the node has no aperture of this name for us"};
  if (found.err != 0) return Error{ECONNREFUSED, "the node did not answer for its apertures"};
  return found.aperture;
}

void answer_look_up(ContextCore& context, nic::Link& link, const OobMessage& message) {
  FoundRecord found;
  LookUpRecord asked;
  if (message.length != sizeof asked) return;
  std::memcpy(&asked, message.payload.data(), sizeof asked);
  if (!context.names().find(asked.name, context.lane(link.remote_uid()), &found.aperture)) {
    found.err = ENOENT;
  } else if (auto s = link.grant(found.aperture.cookie); !s) {
    found.err = s.error().err;
  }
  OobMessage answer;
  answer.to = message.from;
  answer.type = kOobFound;
  answer.length = sizeof found;
  std::memcpy(answer.payload.data(), &found, sizeof found);
  (void)link.send_oob(answer);
}

}  // namespace clan::engine
