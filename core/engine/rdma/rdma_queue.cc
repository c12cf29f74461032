#include "engine/rdma/rdma_queue.h"

#include "clan/detail/words.h"
#include "clan/face/translator.h"

namespace clan::engine {

Result<std::shared_ptr<RdmaQueueCore>> RdmaQueueCore::create(std::shared_ptr<ContextCore> context,
                                                             std::uint32_t depth) {
  auto driver = context->rdma();
  if (!driver) return driver.error();
  if (!nic::RdmaRing::valid_depth(depth)) {
    return Error{EINVAL, "depth of an RDMA queue: a power of two up to 65536"};
  }
  std::shared_ptr<RdmaQueueCore> queue(new RdmaQueueCore(context, **driver, depth));
  auto id = (*driver)->attach(queue->ring_, queue.get());
  if (!id) return id.error();
  queue->id_ = *id;
  return queue;
}

RdmaQueueCore::~RdmaQueueCore() {
  if (id_ && context_->usable()) driver_.detach(*id_);
  events_.unbind();
}

Status RdmaQueueCore::post(RdmaOp op, const RemoteAperture& remote, std::uint64_t remote_offset,
                           void* local, std::uint64_t length, const RdmaOptions& options) {
  if (!context_->usable()) return unusable_error();
  auto handle = remote.core()->rdma_handle(driver_);
  if (!handle) return handle.error();
  RdmaRequest request;
  request.op = op;
  request.priority = options.priority;
  request.more = options.more;
  request.local = local;
  request.remote_offset = remote_offset;
  request.length = length;
  request.remote = *handle;
  request.cookie = options.cookie;
  // PAIR rdma.outstanding: the reaper has done with now_
  if (words::load_acquire(outstanding_) == 0 && !options.more && !in_group_) {
    // Nothing of this queue could be overtaken, and a short copy is done sooner than handed over.
    if (int err = driver_.move_now(request, *remote.core()); err != EAGAIN) {
      now_ = {request.cookie, err, err == 0 ? length : 0};
      outstanding_.store(1, std::memory_order_relaxed);  // relaxed: published by moved_now_
      // PAIR rdma.moved_now: publishes now_ to the reaper
      words::store_release(moved_now_, true);
      completed();
      return {};
    }
  }
  if (!ring_.post(request)) return Error{EAGAIN, "the RDMA queue is full: take completions first"};
  in_group_ = options.more;
  outstanding_.fetch_add(1, std::memory_order_relaxed);  // relaxed: read by this thread only
  driver_.activate(*id_);
  if (options.more) return {};  // the group is not complete
  const std::uint32_t seen = completions_.prepare_wait();
  auto served = [&] { return completions_.has_changed(seen); };
  if (driver_.run(RdmaDriver::kInlineBytes, served) && !driver_.idle()) driver_.kick();
  return {};
}

void RdmaQueueCore::completed() {
  completions_.notify();
  context_->packets().wake_sleeper();
  std::lock_guard lock(mutex_);
  events_.post();
}

std::size_t RdmaQueueCore::poll(std::span<RdmaCompletion> completions) {
  if (std::size_t n = reap(completions); n > 0) return n;
  context_->help();
  if (driver_.idle()) return 0;
  const std::uint32_t seen = completions_.prepare_wait();
  driver_.run(RdmaDriver::kInlineBytes, [&] { return completions_.has_changed(seen); });
  return reap(completions);
}

// The one that was moved at once is older than what the ring may hold.
std::size_t RdmaQueueCore::reap(std::span<RdmaCompletion> completions) {
  if (completions.empty()) return 0;
  std::size_t n = 0;
  // PAIR rdma.moved_now: sees now_
  if (words::load_acquire(moved_now_)) {
    completions[n++] = now_;
    moved_now_.store(false, std::memory_order_relaxed);  // relaxed: published by outstanding_
  }
  n += ring_.reap(completions.subspan(n));
  // PAIR rdma.outstanding: the poster may use now_ again
  if (n > 0) words::subtract(outstanding_, n);
  return n;
}

Result<std::size_t> RdmaQueueCore::wait(std::span<RdmaCompletion> completions,
                                        std::uint64_t deadline_ns) {
  if (completions.empty()) return Error{EINVAL, "wait for no completions"};
  for (;;) {
    if (!context_->usable()) return unusable_error();
    const std::uint32_t seen = completions_.prepare_wait();
    if (std::size_t n = poll(completions); n > 0) return n;
    int rc = 0;
    const auto ready = [&] {
      context_->packets().fetch();
      return completions_.has_changed(seen);
    };
    const auto sleep = [&] {
      // Whatever is left is the driver thread's while we sleep.
      if (!driver_.idle()) driver_.kick();
      const std::uint64_t slice = std::min(deadline_ns, monotonic_ns() + 1'000'000'000u);
      rc = completions_.commit_wait(
          [&](auto& word) { return context_->packets().sleep_on(word, seen, slice); });
      return true;
    };
    if (waiter_.wait(ready, PeerHint{}, deadline_ns, sleep) == WaitResult::kTimedOut) {
      return Error{ETIMEDOUT, "no RDMA request completed in time"};
    }
    if (rc == EINTR) return Error{EINTR, "a signal arrived while waiting for RDMA"};
  }
}

Status RdmaQueueCore::bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
  std::lock_guard lock(mutex_);
  const Status bound = events_.bind(std::move(queue), EventKind::kRdma, tag);
  if (bound) events_.post();  // what completed before
  return bound;
}

}  // namespace clan::engine

namespace clan {

Result<RdmaQueue> RdmaQueue::create(Context& context, std::uint32_t depth) {
  auto core = engine::RdmaQueueCore::create(context.core(), depth);
  if (!core) return core.error();
  return RdmaQueue(std::move(*core));
}

Status RdmaQueue::write(const RemoteAperture& remote, std::uint64_t remote_offset,
                        const void* local, std::uint64_t length, const RdmaOptions& options) {
  return core_->post(RdmaOp::kWrite, remote, remote_offset, const_cast<void*>(local), length,
                     options);
}

Status RdmaQueue::read(const RemoteAperture& remote, std::uint64_t remote_offset, void* local,
                       std::uint64_t length, const RdmaOptions& options) {
  return core_->post(RdmaOp::kRead, remote, remote_offset, local, length, options);
}

std::size_t RdmaQueue::poll(std::span<RdmaCompletion> completions) {
  return core_->poll(completions);
}

Result<std::size_t> RdmaQueue::wait(std::span<RdmaCompletion> completions,
                                    std::int64_t timeout_ms) {
  return core_->wait(completions, deadline_after_ms(timeout_ms));
}

Status RdmaQueue::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

void RdmaQueue::help(Context& context) { (void)context.core()->help(); }

RdmaCounters RdmaQueue::counters(Context& context) {
  auto driver = context.core()->rdma();
  return driver ? (*driver)->counters() : RdmaCounters{};
}

// --- the public face of the RDMA driver's TLB ----------------------------------------------------

Result<Translator> Translator::of(Context& context) {
  auto driver = context.core()->rdma();
  if (!driver) return driver.error();
  nic::Translations* const translations = (*driver)->translations();
  if (translations == nullptr) return Error{ENOSYS, "the NIC has no TLB here"};
  return Translator(context.core(), *driver, translations);
}

// What is not in memory is for the driver thread to bring in.
int Translator::answer(int error) {
  if (error == EAGAIN && translations_->has_deferred()) driver_->kick();
  return error;
}

int Translator::copy_from(void* to, const void* from, std::size_t bytes) {
  if (!core_->usable()) return ESHUTDOWN;
  return answer(translations_->copy_from(to, from, bytes));
}

int Translator::copy_to(void* to, const void* from, std::size_t bytes) {
  if (!core_->usable()) return ESHUTDOWN;
  return answer(translations_->copy_to(to, from, bytes));
}

int Translator::pre_translate(const void* memory, std::size_t bytes, PageAccess access) {
  if (!core_->usable()) return ESHUTDOWN;
  return translations_->pre_translate(memory, bytes, access);
}

bool Translator::resolve() { return core_->usable() && translations_->resolve(); }
bool Translator::keeps() const { return core_->usable() && translations_->keeps(); }
TlbStats Translator::stats() const { return core_->usable() ? translations_->stats() : TlbStats(); }

Status Context::pre_translate(std::span<const std::byte> memory, PageAccess access) {
  auto translator = Translator::of(*this);
  if (!translator) return translator.error();
  const int error = translator->pre_translate(memory.data(), memory.size(), access);
  return error == 0 ? Status() : Error{error, "translating memory ahead of its use"};
}

}  // namespace clan
