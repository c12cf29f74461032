#include "objects/domain.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <system_error>

#include "objects/av.h"
#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/endpoint.h"
#include "objects/eq.h"
#include "objects/fabric.h"
#include "objects/memory_region.h"
#include "objects/poll_set.h"
#include "objects/shared_context.h"
#include "system/atomic_types.h"
#include "system/info.h"
#include "system/other_hosts.h"
#include "transport/transport.h"

namespace clan::ofi {
namespace {

constexpr int kMostTurns = 64;  ///< of progress before a sleep: others want the lock
// Between checks of what a peer is doing for this end without announcing its end.
constexpr std::uint32_t kFirstLookMs = 1, kLastLookMs = 32;

}  // namespace

fi_ops Domain::ops_ =
    object_ops(close_object<Domain>, guarded<Domain::bind>, guarded<Domain::control>);

fi_ops_domain Domain::domain_ops_ = {
    .size = sizeof(fi_ops_domain),
    .av_open = guarded<Av::open>,
    .cq_open = guarded<Cq::open>,
    .endpoint = guarded<Domain::endpoint>,
    .scalable_ep = guarded<ScalableEndpoint::open>,
    .cntr_open = guarded<Counter::open>,
    .poll_open = guarded<PollSet::open>,
    .stx_ctx = guarded<SharedTransmit::open>,
    .srx_ctx = guarded<SharedReceive::open>,
    .query_atomic = guarded<Domain::query_atomic>,
    .query_collective = not_supported,
    .endpoint2 = not_supported,
};

int Domain::open(fid_fabric* fabric, fi_info* info, fid_domain** domain, void* context) {
  ContextOptions options;
  std::size_t ring_bytes = 0;
  if (fi_param_get_size_t(&g_provider, "ring_bytes", &ring_bytes) == 0) {
    // A message that fi_inject() takes must always fit, and so must an atomic operation with its
    // operands.
    options.ring_bytes = static_cast<std::uint32_t>(
        std::bit_ceil(std::clamp<std::size_t>(ring_bytes, 65536, 64u << 20)));
  }
  int direct_copy = 1;
  if (fi_param_get_bool(&g_provider, "direct_copy", &direct_copy) == 0)
    options.direct_copy = direct_copy != 0;
  auto engine = make_context(std::move(options));
  if (!engine) {
    FI_WARN(&g_provider, FI_LOG_DOMAIN, "%s\n", engine.error().message().c_str());
    return failure(engine.error());
  }
  ForkMutex::watch_forks();
  const fi_domain_attr& attr = *info->domain_attr;
  const bool automatic = attr.data_progress == FI_PROGRESS_AUTO;
  auto* made = new (std::nothrow)
      Domain(std::move(*engine), attr.threading != FI_THREAD_DOMAIN || automatic);
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_DOMAIN, context, &ops_};
  made->ops = &domain_ops_;
  made->mr = &MemoryRegion::register_ops;
  made->fabric_ = &object_of<Fabric>(&fabric->fid);
  made->fabric_held_ = Held(made->fabric_->references());
  made->address_format_ = info->addr_format == FI_SOCKADDR_IN6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
  made->mr_mode_ = mr_bits(attr.mr_mode);
  made->rma_events_ = (info->caps & FI_RMA_EVENT) != 0;
  made->av_type_ = attr.av_type;
  int rc = 0;
  try {
    if (automatic) rc = made->progress_alone();
  } catch (const std::bad_alloc&) {
    rc = -FI_ENOMEM;
  }
  if (rc != 0) {
    delete made;
    return rc;
  }
  *domain = made;
  return 0;
}

int Domain::progress_alone() {
  if (int rc = need_events(); rc != 0) return rc;
  auto wake = events_->add_user(0);
  if (!wake) return failure(wake.error());
  wake_event_ = *wake;
  progress_owner_ = ::getpid();
  return start_progress() ? 0 : -FI_EAGAIN;
}

Domain::~Domain() { stop_progress(); }

int Domain::bind(fid_t id, fid_t to, std::uint64_t) {
  auto& domain = object_of<Domain>(id);
  if (to->fclass != FI_CLASS_EQ) return -FI_EINVAL;
  if (domain.eq_ != nullptr) return -FI_EINVAL;
  domain.eq_ = &object_of<Eq>(to);
  domain.eq_held_ = Held(domain.eq_->references());
  return 0;
}

int Domain::endpoint(fid_domain* domain, fi_info* info, fid_ep** ep, void* context) {
  return Endpoint::open(*static_cast<Domain*>(domain), info, ep, context);
}

std::uint32_t Domain::api_version() const { return fabric_->api_version; }

int Domain::query_atomic(fid_domain*, fi_datatype type, fi_op op, fi_atomic_attr* attr,
                         std::uint64_t flags) {
  const AtomicKind kind = (flags & FI_COMPARE_ATOMIC) != 0 ? AtomicKind::kCompare
                          : (flags & FI_FETCH_ATOMIC) != 0 ? AtomicKind::kFetch
                                                           : AtomicKind::kWrite;
  if ((flags & ~(FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC)) != 0 ||
      (flags & (FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC)) == (FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC)) {
    return -FI_EINVAL;
  }
  const std::size_t size = atomic_size(type);
  if (size == 0 || !atomic_valid(type, op, kind)) return -FI_EOPNOTSUPP;
  attr->size = size;
  attr->count = kMostAtomicBytes / size;
  return 0;
}

int Domain::add_transport(Transport& transport) {
  std::lock_guard events(events_mutex_);
  if (events_) {
    if (int rc = transport.register_with(*events_); rc != 0) return rc;
  }
  transports_.push_back(&transport);
  return 0;
}

void Domain::remove_transport(Transport& transport) { std::erase(transports_, &transport); }

std::uint64_t Domain::free_key() {
  while (regions_.contains(next_key_)) ++next_key_;
  return next_key_++;
}

// --- progress ------------------------------------------------------------------------------------

void Domain::progress_all() {
  for (Transport* transport : transports_) {
    transport->tidy();
    transport->progress();
  }
  if (has_deferred()) run_due();
}

void Domain::make_progress() {
  std::lock_guard lock(lock_);
  progress_all();
}

int Domain::need_events() {
  std::lock_guard lock(lock_);
  std::lock_guard events(events_mutex_);
  if (!events_) {
    auto queue = EventQueue::create(context_);
    if (!queue) return failure(queue.error());
    events_.emplace(std::move(*queue));
  }
  for (Transport* transport : transports_) {
    if (int rc = transport->register_with(*events_); rc != 0) return rc;
  }
  return 0;
}

Result<int> Domain::descriptor() {
  if (int rc = need_events(); rc != 0) return Error{-rc, "no event queue for the domain"};
  return events_->fd();
}

int Domain::packets() { return progress_ ? -1 : events_->packets_fd(); }

bool Domain::arm(SleepsIn where, std::uint32_t* look_again_ms) {
  // With a thread that makes progress there is nothing to arm here: that thread signals.
  if (progress_) return true;
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::uint32_t soon = 0;
    // First, so that what they bring is found below.
    const bool fetched = where == SleepsIn::kBoth;
    if (fetched && !events_->arm_packets()) break;
    {
      std::lock_guard lock(lock_);
      Event taken[16];
      while (events_->poll(taken) == std::size(taken)) {
      }
      bool moved = true;
      for (int turn = 0; moved && turn < kMostTurns; ++turn) {
        moved = false;
        for (Transport* transport : transports_) {
          moved = (fetched ? transport->progress_fetched() : transport->progress()) || moved;
        }
      }
      if (has_deferred()) run_due();
      if (moved) break;  // there is more, and our caller may want to read what has come
      // Nobody will say that the peer has made them. It may be done at any moment, or stopped for
      // long.
      bool quiet = true;
      for (Transport* transport : transports_) {
        quiet = transport->finish_accesses() != Transport::Left::kTheirs &&
                !transport->copies_slowly() && quiet;
      }
      if (!quiet && attempt == 0) continue;
      soon = next_look_ms(!quiet || due_left_);
    }
    if (where == SleepsIn::kDescriptor ? events_->arm_fd() : events_->arm_fd_for_sleep()) {
      if (soon != 0) *look_again_ms = std::min(*look_again_ms, soon);
      return true;
    }
  }
  // The descriptor has been emptied perhaps, and our caller may take one entry and go.
  events_->ring_fd();
  return false;
}

// How soon a thread that makes progress has to look again; 0: when it is woken.
std::uint32_t Domain::next_look_ms(bool needed) {
  look_again_ms_ = needed ? std::min(look_again_ms_ * 2, kLastLookMs) : kFirstLookMs;
  return needed ? look_again_ms_ : 0;
}

int Domain::sleep(std::span<pollfd> fds, std::int64_t timeout_ms) {
  if (progress_) return poll(fds, timeout_ms);
  auto slept = events_->sleep(fds, timeout_ms);
  return slept ? 0 : slept.error().err;
}

void Domain::run_progress() {
  Event events[16];
  std::int64_t timeout_ms = -1;
  // relaxed: the event that is posted behind it wakes, and publishes it
  while (!stopping_.load(std::memory_order_relaxed)) {
    Result<std::size_t> n = Error{ENOMEM, ""};
    try {
      n = events_->wait(events, timeout_ms);
    } catch (const std::bad_alloc&) {
      ::sched_yield();
    }
    // a forked child has no such thread; the context has ended
    if (!n && n.error().err == ESHUTDOWN) return;
    bool moved = true;
    while (moved && !stopping_.load(std::memory_order_relaxed)) {
      moved = false;
      std::lock_guard lock(lock_);
      for (Transport* transport : transports_) moved = transport->progress() || moved;
      if (has_deferred()) run_due();
      const bool slow = std::any_of(transports_.begin(), transports_.end(),
                                    [](Transport* p) { return p->copies_slowly(); });
      const std::uint32_t soon = next_look_ms(slow || due_left_);
      timeout_ms = soon != 0 ? soon : -1;
    }
  }
}

void Domain::add_sleepers(WaitObject& sleepers) {
  std::lock_guard lock(lock_);
  sleepers_.push_back(&sleepers);
}

void Domain::remove_sleepers(WaitObject& sleepers) {
  std::lock_guard lock(lock_);
  std::erase(sleepers_, &sleepers);
}

void Domain::look_soon() {
  if (inherited()) return;  // what it would wake are the parent's threads
  if (progress_) {
    events_->post_user(wake_event_);
    return;
  }
  for (WaitObject* sleepers : sleepers_) sleepers->signal();
}

// False: no thread is to be had.
bool Domain::start_progress() {
  // Signals are the program's own threads' business.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    progress_.emplace([this] { run_progress(); });
  } catch (const std::system_error&) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return progress_.has_value();
}

void Domain::stop_progress() {
  if (!progress_) return;
  if (::getpid() != progress_owner_) {
    progress_->detach();  // a forked child has no such thread
    progress_.reset();
    return;
  }
  stopping_.store(true, std::memory_order_relaxed);  // relaxed: published by the event
  events_->post_user(wake_event_);
  progress_->join();
  progress_.reset();
}

}  // namespace clan::ofi
