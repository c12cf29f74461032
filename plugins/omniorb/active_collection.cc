#include "active_collection.h"

namespace clan::orb {

void ActiveCollection::Monitor(omni::giopConnection::notifyReadable_t tell, void* cookie) {
  while (!isEmpty()) {
    std::shared_ptr<Watcher> watcher;
    {
      std::lock_guard lock(mutex_);
      watcher = watcher_;
    }
    if (!watcher || !watcher->wait(tell, cookie)) return;
  }
}

_CORBA_Boolean ActiveCollection::isEmpty() const {
  std::lock_guard lock(mutex_);
  return count_ == 0 || stopped_;
}

void ActiveCollection::deactivate() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (watcher_) watcher_->poke();
}

bool ActiveCollection::add(Context& context, Channel& channel, omni::giopConnection* connection) {
  std::lock_guard lock(mutex_);
  if (!watcher_) {
    auto made = Watcher::create(context);
    if (!made) return false;
    watcher_ = *made;
  }
  if (!channel.watch_by(watcher_, connection)) return false;
  ++count_;
  stopped_ = false;
  return true;
}

void ActiveCollection::remove() {
  std::lock_guard lock(mutex_);
  if (--count_ == 0) watcher_->poke();  // Monitor() looks
}

void ActiveCollection::end() {
  std::lock_guard lock(mutex_);
  watcher_.reset();
}

}  // namespace clan::orb
