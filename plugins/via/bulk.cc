#include "bulk.h"

#include <algorithm>
#include <thread>

#include "vi.h"

namespace clan::via {

Bulk::Queue& Bulk::queue_of(const Vi& vi) { return queues_[vi.number % kQueues]; }

Status Bulk::post(Vi& vi, std::span<const Move> moves) {
  Queue& queue = queue_of(vi);
  std::lock_guard lock(queue.mutex);
  if (!queue.rdma) {
    auto made = RdmaQueue::create(context_, kDepth);
    if (!made) return made.error();
    queue.rdma = std::move(*made);
  }
  if (queue.order.size() + moves.size() > kDepth) return Error{EAGAIN, "transfers are under way"};
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    const RdmaOptions options{.more = i + 1 < moves.size()};
    queue.order.push_back(&vi);
    const Status s =
        move.op == RdmaOp::kWrite
            ? queue.rdma->write(*move.remote, move.offset, move.local, move.bytes, options)
            : queue.rdma->read(*move.remote, move.offset, move.local, move.bytes, options);
    if (s) continue;
    // It has no completion: it is given one behind those of the requests before it.
    queue.order.pop_back();
    vi.refused_requests += static_cast<std::uint32_t>(moves.size() - i);
    vi.refusal = s.error().err;
    break;
  }
  return {};
}

// Under the queue's mutex.
void Bulk::poll(Queue& queue) {
  std::array<RdmaCompletion, 32> completions;
  while (!queue.order.empty()) {
    const std::size_t n = queue.rdma->poll(completions);
    for (std::size_t i = 0; i < n && !queue.order.empty(); ++i) {
      queue.order.front()->finished_requests.push_back(completions[i].status);
      queue.order.pop_front();
    }
    if (n < completions.size()) return;
  }
}

void Bulk::take(Vi& vi, std::vector<int>* statuses) {
  Queue& queue = queue_of(vi);
  std::lock_guard lock(queue.mutex);
  if (queue.rdma) poll(queue);
  statuses->swap(vi.finished_requests);
  if (vi.refused_requests == 0 ||
      std::find(queue.order.begin(), queue.order.end(), &vi) != queue.order.end()) {
    return;
  }
  statuses->insert(statuses->end(), vi.refused_requests, vi.refusal);
  vi.refused_requests = 0;
}

void Bulk::need(Vi& vi, bool waits) {
  {
    std::lock_guard lock(mutex_);
    if (!start()) return;
    if (!vi.needs_bulk) needy_.push_back(&vi);
  }
  vi.needs_bulk = true;
  if (waits && !vi.bulk_waits && vi.stream) {
    vi.bulk_waits = vi.watched = vi.stream->register_with(*events_, 0).ok();
    vi.paused = false;
  }
  Queue& queue = queue_of(vi);
  {
    std::lock_guard lock(queue.mutex);
    if (queue.rdma && !queue.watched) queue.watched = queue.rdma->register_with(*events_, 0).ok();
  }
  work_.notify_one();
}

void Bulk::release(Vi& vi) {
  if (vi.needs_bulk) {
    std::lock_guard lock(mutex_);
    std::erase(needy_, &vi);
  }
  vi.needs_bulk = false;
  if (!std::exchange(vi.bulk_waits, false)) return;
  vi.watched = false;
  if (vi.stream) vi.stream->unregister();
  vi.watch_stream();
}

void Bulk::remove(Vi& vi) {
  std::lock_guard serving(serving_);
  std::lock_guard lock(mutex_);
  std::erase(needy_, &vi);
}

// Under mutex_.
bool Bulk::start() {
  if (started_) return true;
  auto events = EventQueue::create(context_);
  if (!events) return false;
  events_ = std::move(*events);
  std::thread([this] { run(); }).detach();
  started_ = true;
  return true;
}

void Bulk::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [this] { return !needy_.empty(); });
    }
    serve();
    {
      std::lock_guard lock(mutex_);
      if (needy_.empty()) continue;
    }
    // What completes or comes from here on is an event.
    std::array<Event, 64> events;
    if (auto n = events_->wait(events); !n && n.error().err == ESHUTDOWN) return;
  }
}

void Bulk::serve() {
  std::lock_guard serving(serving_);
  std::vector<Vi*> needy;
  {
    std::lock_guard lock(mutex_);
    needy = needy_;
  }
  Reports reports;
  for (Vi* vi : needy) {
    const Held held(*vi, &reports);
    vi->progress();
  }
  tell(reports);
}

}  // namespace clan::via
