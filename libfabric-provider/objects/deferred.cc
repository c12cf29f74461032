#include "objects/deferred.h"

#include <algorithm>
#include <memory>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/endpoint.h"

namespace clan::ofi {

bool trigger_of(void* context, Deferred* deferred) {
  const auto* triggered = static_cast<const fi_triggered_context*>(context);
  if (triggered == nullptr || triggered->event_type != FI_TRIGGER_THRESHOLD ||
      triggered->trigger.threshold.cntr == nullptr) {
    return false;
  }
  deferred->trigger = static_cast<Counter*>(triggered->trigger.threshold.cntr);
  deferred->threshold = triggered->trigger.threshold.threshold;
  return true;
}

namespace {

// A copy of what a message points to, for a call that comes later.
template <typename Message, typename Piece>
struct Copy {
  Message msg;
  std::vector<Piece> pieces;
  explicit Copy(const Message& original)
      : msg(original), pieces(original.msg_iov, original.msg_iov + original.iov_count) {}
  const Message& get() {
    msg.msg_iov = pieces.data();
    return msg;
  }
};

fi_msg_tagged as_tagged(const fi_msg& msg) {
  fi_msg_tagged tagged{};
  tagged.msg_iov = msg.msg_iov;
  tagged.iov_count = msg.iov_count;
  tagged.addr = msg.addr;
  tagged.context = msg.context;
  tagged.data = msg.data;
  tagged.ignore = ~std::uint64_t{0};
  return tagged;
}

template <typename Function>
std::function<ssize_t()> message_work(Function function, Endpoint& endpoint,
                                      ReceiveQueue::Kind kind, const fi_msg_tagged& msg,
                                      std::uint64_t flags, Counter* counter) {
  return [=, &endpoint, copy = Copy<fi_msg_tagged, iovec>(msg)]() mutable {
    return function(endpoint, kind, copy.get(), flags, counter);
  };
}

std::function<ssize_t()> memory_work(Endpoint& endpoint, bool write, const fi_op_rma& op,
                                     Counter* counter) {
  std::vector<fi_rma_iov> remote(op.msg.rma_iov, op.msg.rma_iov + op.msg.rma_iov_count);
  return [=, &endpoint, flags = op.flags, copy = Copy<fi_msg_rma, iovec>(op.msg)]() mutable {
    copy.msg.rma_iov = remote.data();
    return start_access(endpoint, write, copy.get(), flags, counter);
  };
}

std::function<ssize_t()> atomic_work(Endpoint& endpoint, AtomicKind kind, const fi_msg_atomic& msg,
                                     const fi_msg_fetch* fetch, const fi_msg_compare* compare,
                                     std::uint64_t flags, Counter* counter) {
  std::vector<fi_rma_ioc> remote(msg.rma_iov, msg.rma_iov + msg.rma_iov_count);
  std::vector<fi_ioc> results, comparands;
  if (fetch != nullptr) results.assign(fetch->msg_iov, fetch->msg_iov + fetch->iov_count);
  if (compare != nullptr)
    comparands.assign(compare->msg_iov, compare->msg_iov + compare->iov_count);
  return [=, &endpoint, copy = Copy<fi_msg_atomic, fi_ioc>(msg)]() mutable {
    copy.msg.rma_iov = remote.data();
    const fi_msg_fetch found{results.data(), nullptr, results.size()};
    const fi_msg_compare expected{comparands.data(), nullptr, comparands.size()};
    return start_atomic(endpoint, kind, copy.get(), &found, &expected, flags, counter);
  };
}

/// Which endpoint and peer it is for, and what its completion says.
template <typename Op>
void describe_op(const Op& op, std::uint64_t flags, Deferred& d) {
  d.endpoint = &endpoint_of(op.ep);
  d.peer = op.msg.addr;
  d.context = op.msg.context;
  d.flags = flags;
}

/// The same, and how it starts. False: it is none of these.
bool describe_work(const fi_deferred_work& work, Counter* counter, Deferred& d) {
  switch (work.op_type) {
    case FI_OP_SEND:
    case FI_OP_RECV: {
      const fi_op_msg& op = *work.op.msg;
      describe_op(op, (work.op_type == FI_OP_SEND ? FI_SEND : FI_RECV) | FI_MSG, d);
      d.start = message_work(work.op_type == FI_OP_SEND ? start_send : start_receive, *d.endpoint,
                             ReceiveQueue::kUntagged, as_tagged(op.msg), op.flags, counter);
      return true;
    }
    case FI_OP_TSEND:
    case FI_OP_TRECV: {
      const fi_op_tagged& op = *work.op.tagged;
      describe_op(op, (work.op_type == FI_OP_TSEND ? FI_SEND : FI_RECV) | FI_TAGGED, d);
      d.start = message_work(work.op_type == FI_OP_TSEND ? start_send : start_receive, *d.endpoint,
                             ReceiveQueue::kTagged, op.msg, op.flags, counter);
      return true;
    }
    case FI_OP_READ:
    case FI_OP_WRITE: {
      const fi_op_rma& op = *work.op.rma;
      describe_op(op, FI_RMA | (work.op_type == FI_OP_WRITE ? FI_WRITE : FI_READ), d);
      d.start = memory_work(*d.endpoint, work.op_type == FI_OP_WRITE, op, counter);
      return true;
    }
    case FI_OP_ATOMIC: {
      const fi_op_atomic& op = *work.op.atomic;
      describe_op(op, FI_ATOMIC | FI_WRITE, d);
      d.start = atomic_work(*d.endpoint, AtomicKind::kWrite, op.msg, {}, {}, op.flags, counter);
      return true;
    }
    case FI_OP_FETCH_ATOMIC: {
      const fi_op_fetch_atomic& op = *work.op.fetch_atomic;
      describe_op(op, FI_ATOMIC | FI_READ, d);
      d.start = atomic_work(*d.endpoint, AtomicKind::kFetch, op.msg, &op.fetch, nullptr, op.flags,
                            counter);
      return true;
    }
    case FI_OP_COMPARE_ATOMIC: {
      const fi_op_compare_atomic& op = *work.op.compare_atomic;
      describe_op(op, FI_ATOMIC | FI_READ, d);
      d.start = atomic_work(*d.endpoint, AtomicKind::kCompare, op.msg, &op.fetch, &op.compare,
                            op.flags, counter);
      return true;
    }
    default: return false;
  }
}
bool describe_count(const fi_deferred_work& work, Counter* counter, Deferred& d) {
  if (work.op_type != FI_OP_CNTR_SET && work.op_type != FI_OP_CNTR_ADD) return false;
  auto* const target = static_cast<Counter*>(work.op.cntr->cntr);
  d.changes = target;
  d.start = [target, value = work.op.cntr->value, set = work.op_type == FI_OP_CNTR_SET,
             counter]() -> ssize_t {
    set ? target->set_value(value) : target->add_value(value);
    if (counter != nullptr) counter->count();
    return 0;
  };
  return true;
}

}  // namespace

// Deferred work counts failures as well (fi_trigger(3)).
bool Deferred::due() const {
  return trigger->value() + (work != nullptr ? trigger->errors() : 0) >= threshold;
}

int queue_work(Domain& domain, const fi_deferred_work& work) {
  if (work.triggering_cntr == nullptr) return -FI_EINVAL;
  auto* const counter =
      work.completion_cntr != nullptr ? static_cast<Counter*>(work.completion_cntr) : nullptr;
  Deferred d;
  d.trigger = static_cast<Counter*>(work.triggering_cntr);
  d.threshold = work.threshold;
  d.work = &work;
  d.counter = counter;
  if (!describe_work(work, counter, d) && !describe_count(work, counter, d)) return -FI_EINVAL;
  std::lock_guard lock(domain.lock());
  domain.defer(std::move(d));
  domain.run_due();
  return 0;
}

// --- Domain --------------------------------------------------------------------------------------

void Domain::defer(Deferred deferred) {
  deferred_.push_back(std::move(deferred));
  deferred_.back().trigger->is_trigger();
}

bool Domain::start_soon(const Counter& counter) {
  if (running_due_) return true;  // it looks again, and has some of it
  bool waits = false, due = false;
  for (const Deferred& d : deferred_) {
    if (d.trigger != &counter) continue;
    waits = true;
    due = due || d.due();
  }
  // The thread that has moved it may not call again, and those that wait for the work may sleep.
  if (due) look_soon();
  return waits;
}

namespace {

// 0, also where it cannot be started and that has been said; -FI_EAGAIN: once more later.
ssize_t start(Deferred& due) {
  ssize_t rc;
  try {
    rc = due.start();
  } catch (const std::bad_alloc&) {
    rc = -FI_ENOMEM;
  }
  if (rc == 0 || rc == -FI_EAGAIN) return rc;
  FI_WARN(&g_provider, FI_LOG_DOMAIN, "deferred work failed: %s\n",
          fi_strerror(static_cast<int>(-rc)));
  if (due.counter != nullptr) due.counter->count_error();
  Cq* cq = nullptr;
  if (due.endpoint != nullptr)
    cq = (due.flags & FI_RECV) != 0 ? due.endpoint->receive_cq() : due.endpoint->send_cq();
  const Completion completion{.context = due.context, .flags = due.flags};
  if (cq != nullptr) cq->write_error(completion, static_cast<int>(-rc));
  return 0;
}

}  // namespace

void Domain::run_due() {
  if (running_due_) return;
  running_due_ = true;
  std::list<Deferred> later;  // whose peer has no room: what is for others does not wait for that
  const auto may_start = [&later](const Deferred& d) {
    return d.due() && std::none_of(later.begin(), later.end(),
                                   [&d](const Deferred& before) { return before.goes_with(d); });
  };
  // One that is started may move a counter that others wait for, or add others: begin anew after
  // each.
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    if (!may_start(*it)) {
      ++it;
      continue;
    }
    std::list<Deferred> taken;
    taken.splice(taken.end(), deferred_, it);
    if (start(taken.front()) == -FI_EAGAIN) later.splice(later.end(), taken);
    it = deferred_.begin();
  }
  // Perhaps nothing will announce that it can be started, and no sleeping thread knows to check
  // again.
  const bool left = !later.empty();
  if (left && !due_left_) look_soon();
  due_left_ = left;
  deferred_.splice(deferred_.begin(), later);
  running_due_ = false;
}

template <typename Predicate>
std::size_t Domain::drop_deferred(const Predicate& predicate) {
  const std::size_t dropped = std::erase_if(deferred_, predicate);
  if (!has_deferred()) due_left_ = false;
  return dropped;
}

void Domain::forget(const Endpoint& endpoint) {
  drop_deferred([&](const Deferred& d) { return d.endpoint == &endpoint; });
}

bool Domain::uses(const Counter& counter) const {
  return std::any_of(deferred_.begin(), deferred_.end(),
                     [&](const Deferred& d) { return d.uses(counter); }) ||
         std::any_of(transports_.begin(), transports_.end(),
                     [&](const Transport* transport) { return transport->uses(counter); });
}

int Domain::control(fid_t id, int command, void* argument) {
  auto& domain = object_of<Domain>(id);
  if (command == FI_QUEUE_WORK)
    return queue_work(domain, *static_cast<fi_deferred_work*>(argument));
  if (command != FI_CANCEL_WORK && command != FI_FLUSH_WORK) return -FI_ENOSYS;
  std::lock_guard lock(domain.lock());
  const std::size_t cancelled = domain.drop_deferred([&](const Deferred& d) {
    return d.work != nullptr && (command == FI_FLUSH_WORK || d.work == argument);
  });
  return command == FI_CANCEL_WORK && cancelled == 0 ? -FI_ENOENT : 0;
}

}  // namespace clan::ofi
