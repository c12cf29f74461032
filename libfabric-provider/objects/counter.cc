#include "objects/counter.h"

#include <clan/detail/clock.h>

#include <algorithm>

#include "objects/domain.h"
#include "transport/transport.h"

namespace clan::ofi {

fi_ops Counter::ops_ = object_ops(Counter::close, not_supported, control_wait<Counter>);

template <void (Counter::*kChange)(std::uint64_t)>
int Counter::change(fid_cntr* id, std::uint64_t value) {
  auto& counter = *static_cast<Counter*>(id);
  std::lock_guard lock(counter.domain_.lock());
  (counter.*kChange)(value);
  counter.domain_.run_due();
  return 0;
}

fi_ops_cntr Counter::counter_ops_ = {
    .size = sizeof(fi_ops_cntr),
    .read = Counter::read,
    .readerr = Counter::read_errors,
    .add = change<&Counter::add_value>,
    .set = change<&Counter::set_value>,
    .wait = Counter::wait,
    .adderr = change<&Counter::add_error_count>,
    .seterr = change<&Counter::set_error_count>,
};

Counter::Counter(Domain& domain)
    : domain_(domain),
      domain_held_(domain.references()),
      waiter_(domain.context().options().wait) {}

int Counter::open(fid_domain* id, fi_cntr_attr* attr, fid_cntr** counter, void* context) {
  auto& domain = *static_cast<Domain*>(id);
  fi_cntr_attr defaults{};
  if (attr == nullptr) attr = &defaults;
  if (attr->events != FI_CNTR_EVENTS_COMP || attr->flags != 0) return -FI_EINVAL;
  auto* made = new (std::nothrow) Counter(domain);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_CNTR, context, &ops_};
  made->ops = &counter_ops_;
  if (int rc = made->wait_.open(attr->wait_obj, attr->wait_set, *made, &domain); rc != 0) {
    delete made;
    return rc;
  }
  *counter = made;
  return 0;
}

int Counter::close(fid_t id) {
  auto& counter = object_of<Counter>(id);
  if (counter.references_.any()) return -FI_EBUSY;
  {
    std::lock_guard lock(counter.domain_.lock());
    if (counter.domain_.uses(counter)) return -FI_EBUSY;
  }
  delete &counter;
  return 0;
}

void Counter::progress() {
  // One that nothing is bound to waits for what deferred work does, which may be anybody's.
  if (whole_domain_ || transports_.empty()) {
    domain_.progress_all();
    return;
  }
  transports_.progress();
  if (domain_.has_deferred()) domain_.run_due();
}

// The thread that has moved it need not call again.
void Counter::start_work() { is_trigger_ = domain_.start_soon(*this); }

bool Counter::news() const {
  // PAIR ofi.wait.armed: a look of a thread that has armed, without the lock
  const std::uint64_t value = value_.load(std::memory_order_seq_cst),
                      errors = errors_.load(std::memory_order_seq_cst);
  // relaxed: what has been read since is no news
  return value != seen_value_.load(std::memory_order_relaxed) ||
         errors != seen_errors_.load(std::memory_order_relaxed);
}

std::uint64_t Counter::read(fid_cntr* id) {
  auto& counter = *static_cast<Counter*>(id);
  std::lock_guard lock(counter.domain_.lock());
  counter.progress();
  const std::uint64_t value = counter.value();
  counter.seen_value_.store(value, std::memory_order_relaxed);  // relaxed: see news()
  return value;
}

std::uint64_t Counter::read_errors(fid_cntr* id) {
  auto& counter = *static_cast<Counter*>(id);
  std::lock_guard lock(counter.domain_.lock());
  counter.progress();
  const std::uint64_t errors = counter.errors();
  counter.seen_errors_.store(errors, std::memory_order_relaxed);  // relaxed: see news()
  return errors;
}

int Counter::wait(fid_cntr* id, std::uint64_t threshold, int timeout_ms) {
  auto& counter = *static_cast<Counter*>(id);
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  const std::uint64_t errors_before = counter.errors();
  const auto enough = [&] {
    return counter.value() >= threshold || counter.errors() != errors_before;
  };
  const auto reached = [&] {
    std::lock_guard lock(counter.domain_.lock());
    counter.progress();
    counter.seen_value_.store(counter.value(), std::memory_order_relaxed);  // relaxed: see news()
    return enough();
  };
  const auto look = [&] {
    std::lock_guard lock(counter.domain_.lock());
    return enough();
  };
  WaitObject* object = counter.wait_.object();
  int rc = 0;
  const auto sleep = [&] {
    if (object == nullptr) {
      sched_yield();
      return false;
    }
    rc = object->sleep_unless(look, sleep_ms(deadline));
    return rc != -FI_EINTR;
  };
  for (;;) {
    switch (counter.waiter_.wait(reached, PeerHint{}, deadline, sleep)) {
      case WaitResult::kReady: return counter.value() >= threshold ? 0 : -FI_EAVAIL;
      case WaitResult::kTimedOut: return -FI_ETIMEDOUT;
      case WaitResult::kAgain:
        if (rc == -FI_EINTR) return rc;
        break;
    }
  }
}

}  // namespace clan::ofi
