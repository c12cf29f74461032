#include "model/wait/run_queue.h"

#include <algorithm>

namespace clan::sim {

int RunQueue::runnable() const {
  return static_cast<int>(
      std::ranges::count_if(entities_, [](const Entity* e) { return !e->delayed; }));
}

Ns RunQueue::average() const {
  if (entities_.empty()) return last_average_;
  const Ns base = entities_.front()->vruntime;
  Ns sum = 0, weight = 0;
  for (const Entity* e : entities_) {
    sum += e->weight * (e->vruntime - base);
    weight += e->weight;
  }
  return base + (sum < 0 ? (sum - weight + 1) / weight : sum / weight);
}

bool RunQueue::is_eligible(const Entity& e) const {
  Ns ahead = 0;  // of the others, weighed
  for (const Entity* other : entities_) ahead += other->weight * (other->vruntime - e.vruntime);
  return ahead >= 0;
}

Ns RunQueue::lag_of(const Entity& e) const {
  const Ns most = scaled(std::max(2 * slice_, tick_), e);
  return std::clamp(average() - e.vruntime, -most, most);
}

bool RunQueue::charge(Ns ns) {
  if (current_ == nullptr) return false;
  current_->ran += ns;
  current_->vruntime += scaled(ns, *current_);
  if (current_->vruntime < current_->deadline) return false;
  current_->deadline = current_->vruntime + scaled(slice_, *current_);
  return runnable() > 1;
}

// Others dilute the lag, so it is enlarged for the average with this thread to leave it as it was.
void RunQueue::place(Entity& e) {
  Ns weight = 0;
  for (const Entity* other : entities_) weight += other->weight;
  const Ns lag = weight == 0 ? 0 : e.lag * (weight + e.weight) / weight;
  e.vruntime = average() - lag;
  e.deadline = e.vruntime + scaled(slice_, e);
  e.queued = true;
  e.delayed = false;
  entities_.push_back(&e);
}

void RunQueue::wake(Entity& e) {
  if (e.queued && lag_of(e) <= 0) {
    e.delayed = false;
    return;
  }
  if (e.queued) {
    remove(e);
    e.lag = 0;  // time that it did not want is not owed
  }
  place(e);
}

void RunQueue::remove(Entity& e) {
  last_average_ = average();
  e.lag = lag_of(e);
  std::erase(entities_, &e);
  e.queued = e.delayed = false;
}

void RunQueue::sleep() {
  Entity& e = *current_;
  current_ = nullptr;
  is_eligible(e) ? remove(e) : void(e.delayed = true);
}

void RunQueue::yield(YieldForm form) {
  if (form == YieldForm::kForfeits) {
    if (!is_eligible(*current_)) return;
    current_->vruntime = current_->deadline;
  }
  current_->deadline += scaled(slice_, *current_);
  current_->protected_until = current_->vruntime;
}

Entity* RunQueue::best() const {
  if (current_ != nullptr && current_->vruntime < current_->protected_until &&
      is_eligible(*current_))
    return current_;
  Entity* best = nullptr;
  for (Entity* e : entities_)
    if (is_eligible(*e) && (best == nullptr || e->deadline < best->deadline)) best = e;
  return best;
}

Entity* RunQueue::pick() {
  for (;;) {
    Entity* const next = best();
    if (next != nullptr && next->delayed) {
      remove(*next);
      next->lag = std::min<Ns>(next->lag, 0);
      continue;
    }
    if (next != nullptr && next != current_)
      next->protected_until = std::max(next->deadline, next->vruntime);
    return current_ = next;
  }
}

}  // namespace clan::sim
