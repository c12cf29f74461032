#include "engine/rdma/rdma_driver.h"

#include <bit>
#include <limits>

#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "engine/rdma/rdma_queue.h"

namespace clan::engine {
namespace {

using Kind = nic::TransferResult::Kind;

constexpr std::uint64_t kChunk = 512 * 1024;    ///< of a queue that is alone
constexpr std::uint64_t kNowBytes = 64 * 1024;  ///< the most that may pass the others by

// Why a request is not to be served, or 0.
int refusal(const RdmaRequest& request, const nic::RemoteHandle& h) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const auto address = reinterpret_cast<std::uintptr_t>(request.local);
  if (request.priority >= kRdmaPriorities || request.length > kMost - address ||
      request.length > kMost - request.remote_offset) {
    return EINVAL;
  }
  if (request.remote_offset > h.length || request.length > h.length - request.remote_offset) {
    return ERANGE;
  }
  if (!includes(h.rights, request.op == RdmaOp::kWrite ? Rights::kWrite : Rights::kRead))
    return EACCES;
  if (request.local == nullptr && request.length > 0) return EFAULT;
  return 0;
}

}  // namespace

// The driver thread's share: a descriptor in the reactor that stays ready while there is work.
class RdmaDriver::Background final : public Pollable {
 public:
  Background(RdmaDriver& driver, Fd fd) : driver_(&driver), fd_(std::move(fd)) {}
  int fd() const { return fd_.get(); }
  void on_ready(std::uint32_t) override {
    drain_eventfd(fd_.get());
    std::lock_guard lock(mutex_);
    if (driver_ != nullptr) driver_->run_in_background();
  }
  void forget_driver() {
    std::lock_guard lock(mutex_);
    driver_ = nullptr;
  }

 private:
  std::mutex mutex_;
  RdmaDriver* driver_;
  Fd fd_;
};

RdmaDriver::RdmaDriver(ContextCore& context)
    : context_(context),
      scheduler_(*this, {.chunk_bytes = kChunk,
                         .shared_chunk_bytes = kSlice,
                         .quantum_bytes = kSlice,
                         .max_queues = kMaxQueues,
                         .on_completion = [](const nic::RdmaQueueRef& queue) {
                           static_cast<RdmaQueueCore*>(queue.context)->completed();
                         }}) {}

Result<std::unique_ptr<RdmaDriver>> RdmaDriver::create(ContextCore& context) {
  std::unique_ptr<RdmaDriver> driver(new RdmaDriver(context));
  if (auto s = driver->start(); !s) return s.error();
  return driver;
}

Status RdmaDriver::start() {
  const ContextOptions& wanted = context_.options();
  translate_always_ = wanted.nic_translates;
  nic::Translations::Options translating;
  translating.mode =
      wanted.lock_pages ? nic::PagePinner::Mode::kLock : nic::PagePinner::Mode::kPopulate;
  translating.tlb.primary_entries = wanted.tlb_entries;
  translating.tlb.victim_entries = wanted.tlb_victims;
  translating.keep = wanted.keep_translations;
  auto translations = nic::Translations::create(translating);
  if (translations) {
    translations_ = std::move(*translations);
    if (translating.keep && !translations_->keeps())
      CLAN_INFO("unmaps cannot be watched: %s", translations_->why_not().message().c_str());
  } else if (translate_always_ || translations.error().err != ENOSYS) {
    return translations.error();
  }
  auto fd = create_eventfd();
  if (!fd) return fd.error();
  background_ = std::make_shared<Background>(*this, std::move(*fd));
  return context_.reactor().add(background_->fd(), background_);
}

RdmaDriver::~RdmaDriver() {
  if (!background_) return;
  context_.reactor().remove(background_->fd());
  background_->forget_driver();
  pending_.clear();
}

// --- apertures -----------------------------------------------------------------------------------

// Handles only grow: requests still queued for an aperture that goes never reach another one.
std::uint32_t RdmaDriver::add_remote(RemoteApertureCore* remote) {
  auto lock = enter();
  do ++last_remote_;
  while (!remotes_.try_emplace(last_remote_, remote).second);
  return last_remote_;
}

void RdmaDriver::remove_remote(std::uint32_t handle) {
  auto lock = enter();
  remotes_.erase(handle);
}

RemoteApertureCore* RdmaDriver::find_remote(std::uint32_t handle) const {
  const auto found = remotes_.find(handle);
  return found == remotes_.end() ? nullptr : found->second;
}

// The mutex, which the thread that runs the driver lets go of between slices.
std::unique_lock<std::mutex> RdmaDriver::enter() {
  waiting_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a courtesy
  std::unique_lock lock(mutex_);
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

// --- running -------------------------------------------------------------------------------------

Result<std::uint32_t> RdmaDriver::attach(nic::RdmaRing& ring, RdmaQueueCore* queue) {
  auto lock = enter();
  return scheduler_.attach(ring, queue);
}

// The queue's transfers free their link's room, now or when the link says so: retry what was busy.
void RdmaDriver::detach(std::uint32_t queue) {
  auto lock = enter();
  scheduler_.detach(queue);
  const bool again = scheduler_.retry_deferred() > 0;
  if (again) words::store_release(idle_, false);  // PAIR rdma.driver_idle: to idle()
  lock.unlock();
  if (again) kick();
}

void RdmaDriver::activate(std::uint32_t queue) {
  // PAIR rdma.doorbell: first the bell, then the mutex; run() gives back the mutex and then looks
  dekker::set_bits(doorbells_[queue / 64], std::uint64_t{1} << queue % 64);
}

bool RdmaDriver::rung() const {
  for (const auto& word : doorbells_) {
    if (dekker::load(word) != 0) return true;  // PAIR rdma.doorbell
  }
  return false;
}

// Under mutex_.
void RdmaDriver::answer_doorbells() {
  for (std::uint32_t w = 0; w < doorbells_.size(); ++w) {
    if (doorbells_[w].load(std::memory_order_relaxed) == 0) continue;  // relaxed: checked again
    // PAIR rdma.doorbell: sees the request behind the bell
    for (std::uint64_t bits = dekker::swap(doorbells_[w], 0); bits != 0; bits &= bits - 1) {
      scheduler_.activate(w * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
    }
  }
}

// One quantum. True while more can be done at once. Under mutex_.
bool RdmaDriver::slice() {
  answer_doorbells();
  auto progress = scheduler_.run(kSlice);
  runnable_ = !progress.idle;
  const bool idle = progress.idle && progress.deferred == 0;
  words::store_release(idle_, idle);  // PAIR rdma.driver_idle: to idle()
  return !progress.idle && progress.bytes + progress.completions > 0;
}

void RdmaDriver::kick() {
  // PAIR rdma.doorbell: the work was stored before; run_in_background() clears this, then checks
  if (!dekker::swap(kicked_, true)) signal_eventfd(background_->fd());
}

int RdmaDriver::move_now(const RdmaRequest& request, RemoteApertureCore& remote) {
  const auto capabilities = remote.link().capabilities();
  const bool at_once = remote.handle().mapped != nullptr || capabilities.direct_copy;
  if (request.length == 0 || request.length > kNowBytes || !at_once || translate_always_ ||
      capabilities.translates || refusal(request, remote.handle()) != 0) {
    return EAGAIN;  // what is wrong with it is for the ring's other end to say
  }
  now_requests_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
  auto result = remote.link().transfer({request.op, &remote.handle(), request.remote_offset,
                                        static_cast<std::byte*>(request.local), request.length, 0});
  if (result.kind == Kind::kError) return result.err;
  now_bytes_.fetch_add(request.length, std::memory_order_relaxed);  // relaxed: a counter
  return 0;
}

void RdmaDriver::run_in_background() {
  // PAIR rdma.doorbell: cleared before the check of what there is to do
  dekker::announce(kicked_, false);
  // Page faults are taken without the mutex; then the queues that waited for them are tried again.
  if (translations_ && translations_->has_deferred()) (void)translations_->resolve();
  {
    auto lock = enter();
    scheduler_.retry_deferred();
  }
  // somebody else is at it and will kick if need be
  (void)run_on();
}

// A share of what there is to do; the driver thread has the rest. False: somebody else is at it.
bool RdmaDriver::run_on() {
  if (!run(kInlineBytes, [] { return false; })) return false;
  auto lock = enter();
  // Not for queues that wait for a page, which has kicked us already, or for a link, whose next
  // completion will, perhaps much later.
  const bool again = rung() || runnable_;
  lock.unlock();
  // Other descriptors of the driver thread get their turn in between.
  if (again) kick();
  return true;
}

void RdmaDriver::complete(std::uint64_t token, int err, std::uint64_t bytes) {
  {
    auto lock = enter();
    pending_.erase(token);
    (void)scheduler_.complete_chunk(token, err, bytes);
    scheduler_.retry_deferred();         // those that found the link busy
    words::store_release(idle_, false);  // PAIR rdma.driver_idle: to idle()
  }
  if (!run_on()) kick();
}

RdmaCounters RdmaDriver::counters() {
  auto lock = enter();
  const auto& c = scheduler_.counters();
  // relaxed: counters
  const std::uint64_t now = now_requests_.load(std::memory_order_relaxed);
  RdmaCounters out{.requests = c.requests + now,
                   .completions = c.completions + now,
                   .bytes = c.bytes + now_bytes_.load(std::memory_order_relaxed),
                   .chunks = c.chunks + now,
                   .splits = c.splits,
                   .deferrals = c.deferrals,
                   .bad_requests = c.bad_requests};
  if (translations_) {
    const TlbStats tlb = translations_->stats();
    out.tlb_hits = tlb.hits;
    out.tlb_misses = tlb.misses;
    out.tlb_evictions = tlb.evictions;
    out.tlb_pinned = tlb.pinned;
  }
  return out;
}

// --- the mover -----------------------------------------------------------------------------------

int RdmaDriver::check(const nic::RdmaQueueRef&, const RdmaRequest& request) {
  RemoteApertureCore* remote = find_remote(request.remote);
  if (remote == nullptr) return ESTALE;
  return refusal(request, remote->handle());
}

nic::TransferResult RdmaDriver::move(const nic::RdmaChunk& chunk) {
  RemoteApertureCore* remote = find_remote(chunk.remote);
  if (remote == nullptr) return {Kind::kError, ESTALE};
  if (!translate_always_ && !remote->link().capabilities().translates)
    return hand_on(chunk, *remote);
  if (!translations_) return {Kind::kError, ENOSYS};
  auto use =
      translations_->acquire(chunk.local, chunk.length,
                             chunk.op == RdmaOp::kWrite ? PageAccess::kRead : PageAccess::kWrite);
  if (use.outcome() == RangeOutcome::kFault) return {Kind::kError, use.error()};
  if (use.outcome() == RangeOutcome::kDeferred) {
    // The driver thread takes the page fault. If the TLB is full of transfers, one's end retries.
    if (translations_->has_deferred()) kick();
    return {Kind::kBusy, 0};
  }
  auto result = hand_on(chunk, *remote);
  if (result.kind == Kind::kPending) pending_[chunk.token].use = std::move(use);
  return result;
}

nic::TransferResult RdmaDriver::hand_on(const nic::RdmaChunk& chunk, RemoteApertureCore& remote) {
  const auto result =
      remote.link().transfer({chunk.op, &remote.handle(), chunk.remote_offset,
                              static_cast<std::byte*>(chunk.local), chunk.length, chunk.token});
  if (result.kind == Kind::kPending) pending_[chunk.token].link = &remote.link();
  return result;
}

void RdmaDriver::cancel(const nic::RdmaQueueRef&, std::uint64_t token) {
  auto it = pending_.find(token);
  if (it == pending_.end()) return;
  if (it->second.link != nullptr) it->second.link->cancel(token);
  pending_.erase(it);
}

// --- RemoteApertureCore --------------------------------------------------------------------------

RemoteApertureCore::~RemoteApertureCore() {
  if (!context_->usable()) return;
  if (rdma_ != nullptr) rdma_->remove_remote(rdma_handle_);
  link_->release(handle_);
}

Result<std::uint32_t> RemoteApertureCore::rdma_handle(RdmaDriver& driver) {
  std::lock_guard lock(rdma_mutex_);
  if (rdma_ == nullptr) {
    rdma_handle_ = driver.add_remote(this);
    rdma_ = &driver;
  }
  if (rdma_ != &driver) return Error{EINVAL, "the remote aperture belongs to another context"};
  return rdma_handle_;
}

}  // namespace clan::engine
