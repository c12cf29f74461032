#include "notify.h"

#include <clan/detail/words.h>

#include <thread>

#include "vi.h"

namespace clan::via {

struct Notifier::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  std::atomic<bool> ends{false};
  std::thread thread;

  void run() {
    for (;;) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return words::load_acquire(ends) || !tasks.empty(); });
      if (words::load_acquire(ends)) return;
      const Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task(ends);
    }
  }
};

Notifier::Notifier(Place& place) : state_(std::make_shared<State>()), place_(place) {
  state_->thread = std::thread([state = state_] { state->run(); });
}

Notifier::~Notifier() {
  {
    std::lock_guard lock(state_->mutex);
    dekker::announce(state_->ends, true);  // before wake() looks for waiters
  }
  state_->changed.notify_all();
  place_.wake();
  if (state_->thread.get_id() == std::this_thread::get_id()) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

void Notifier::add(Task task) {
  std::lock_guard lock(state_->mutex);
  state_->tasks.push_back(std::move(task));
  state_->changed.notify_one();
}

void NotifierDeleter::operator()(Notifier* notifier) const { delete notifier; }

namespace {

VIP_RETURN notify(VIP_VI_HANDLE handle, WorkQueue Vi::*member, VIP_PVOID context,
                  VIP_VI_HANDLER handler) {
  Vi* vi = nullptr;
  if (const VIP_RETURN rc = find(handle, &vi); rc != VIP_SUCCESS) return rc;
  if (handler == nullptr) return VIP_INVALID_PARAMETER;
  const Held held(*vi);
  WorkQueue& queue = vi->*member;
  Place* const place = vi->place_of(queue);
  if (place == nullptr) return VIP_ERROR_RESOURCE;
  if (!queue.notifier) queue.notifier.reset(new Notifier(*place));
  queue.notifier->add([=, nic = &vi->nic](const std::atomic<bool>& ends) {
    VIP_DESCRIPTOR* descriptor = nullptr;
    while (!words::load_acquire(ends)) {
      (void)wait_for(*vi, member, kNoDeadline, &ends, &descriptor);
      if (descriptor != nullptr) return handler(context, nic, vi, descriptor);
    }
  });
  return VIP_SUCCESS;
}

}  // namespace
}  // namespace clan::via

using namespace clan::via;

extern "C" CLAN_EXPORT VIP_RETURN VipSendNotify(VIP_VI_HANDLE vi, VIP_PVOID context,
                                                VIP_VI_HANDLER handler) {
  return notify(vi, &Vi::sends, context, handler);
}
extern "C" CLAN_EXPORT VIP_RETURN VipRecvNotify(VIP_VI_HANDLE vi, VIP_PVOID context,
                                                VIP_VI_HANDLER handler) {
  return notify(vi, &Vi::receives, context, handler);
}
extern "C" CLAN_EXPORT VIP_RETURN VipCQNotify(VIP_CQ_HANDLE handle, VIP_PVOID context,
                                              VIP_CQ_HANDLER handler) {
  Cq* cq = nullptr;
  if (const VIP_RETURN rc = find(handle, &cq); rc != VIP_SUCCESS) return rc;
  if (handler == nullptr) return VIP_INVALID_PARAMETER;
  std::lock_guard lock(cq->members_mutex);
  if (!cq->notifier) cq->notifier.reset(new Notifier(*cq->place));
  cq->notifier->add([=](const std::atomic<bool>& ends) {
    Cq::Entry entry;
    if (!cq->wait(clan::kNoDeadline, &ends, &entry)) return;
    handler(context, cq->nic, entry.vi, entry.receive ? VIP_TRUE : VIP_FALSE);
  });
  return VIP_SUCCESS;
}
