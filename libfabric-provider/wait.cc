#include "wait.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <clan/clock.h>

#include "fabric.h"

namespace clan::ofi {

// --- WaitObject ------------------------------------------------------------------------------------

Result<std::unique_ptr<WaitObject>> WaitObject::create() {
  std::unique_ptr<WaitObject> object(new WaitObject);
  object->epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (object->epoll_ < 0) return errno_error("epoll_create1");
  object->event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (object->event_ < 0) return errno_error("eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(object->epoll_, EPOLL_CTL_ADD, object->event_, &event) != 0)
    return errno_error("epoll_ctl");
  return object;
}

WaitObject::~WaitObject() {
  if (event_ >= 0) ::close(event_);
  if (epoll_ >= 0) ::close(epoll_);
}

int WaitObject::add_source(Source& source) {
  std::lock_guard lock(mutex_);
  if (std::find(sources_.begin(), sources_.end(), &source) == sources_.end()) {
    auto fd = source.descriptor();
    if (!fd) return failure(fd.error());
    epoll_event event{};
    event.events = EPOLLIN;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, *fd, &event) != 0) return -errno;
  }
  sources_.push_back(&source);
  return 0;
}

void WaitObject::remove_source(Source& source) {
  std::lock_guard lock(mutex_);
  auto it = std::find(sources_.begin(), sources_.end(), &source);
  if (it == sources_.end()) return;
  sources_.erase(it);
  if (std::find(sources_.begin(), sources_.end(), &source) != sources_.end()) return;
  if (auto fd = source.descriptor(); fd.ok()) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, *fd, nullptr);
}

void WaitObject::add(Waitable& waitable) {
  std::lock_guard lock(mutex_);
  waitables_.push_back(&waitable);
}

void WaitObject::remove(Waitable& waitable) {
  std::lock_guard lock(mutex_);
  std::erase(waitables_, &waitable);
}

void WaitObject::wake() {
  armed_.store(false, std::memory_order_relaxed);  // relaxed: a wake-up too many does no harm
  const std::uint64_t one = 1;
  (void)!::write(event_, &one, sizeof one);  // full: it is readable already
}

bool WaitObject::any_pending() {
  return std::any_of(waitables_.begin(), waitables_.end(), [](Waitable* w) { return w->pending(); });
}

bool WaitObject::prepare() {
  std::uint64_t count;
  (void)!::read(event_, &count, sizeof count);
  // PAIR ofi.wait.armed: the looks at the queues come after
  armed_.store(true, std::memory_order_seq_cst);
  std::lock_guard lock(mutex_);
  bool quiet = true;
  for (Source* source : sources_) quiet = source->arm() && quiet;
  return !any_pending() && quiet;
}

int WaitObject::sleep(std::int64_t timeout_ms) {
  pollfd fd{epoll_, POLLIN, 0};
  constexpr std::int64_t kMost = 1'000'000'000;
  const int rc = ::poll(&fd, 1, timeout_ms < 0 ? -1 : static_cast<int>(std::min(timeout_ms, kMost)));
  if (rc > 0) return 0;
  return rc == 0 ? -FI_ETIMEDOUT : -errno;
}

// --- WaitSet ---------------------------------------------------------------------------------------

fi_ops WaitSet::ops_ = {
    .size = sizeof(fi_ops),
    .close = WaitSet::close,
    .bind = not_supported,
    .control = WaitSet::control,
    .ops_open = not_supported,
    .tostr = not_supported,
    .ops_set = not_supported,
};
fi_ops_wait WaitSet::wait_ops_ = {.size = sizeof(fi_ops_wait), .wait = WaitSet::wait};

int WaitSet::open(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set) {
  if (attr->flags != 0) return -FI_EINVAL;
  if (attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_FD) return -FI_ENOSYS;
  auto object = WaitObject::create();
  if (!object) return failure(object.error());
  auto* made = new (std::nothrow) WaitSet;
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_WAIT, nullptr, &ops_};
  made->ops = &wait_ops_;
  made->object_ = std::move(*object);
  made->fabric_ = Held(object_of<Fabric>(&fabric->fid).references());
  *set = made;
  return 0;
}

int WaitSet::close(fid_t id) {
  auto& set = object_of<WaitSet>(id);
  if (set.references_.any()) return -FI_EBUSY;
  delete &set;
  return 0;
}

int WaitSet::control(fid_t id, int command, void* argument) {
  auto& set = object_of<WaitSet>(id);
  if (command == FI_GETWAIT) {
    *static_cast<int*>(argument) = set.object_->fd();
    return 0;
  }
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = FI_WAIT_FD;
    return 0;
  }
  return -FI_ENOSYS;
}

int WaitSet::wait(fid_wait* id, int timeout_ms) {
  WaitObject& object = *static_cast<WaitSet*>(id)->object_;
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  while (object.prepare()) {
    std::int64_t left = -1;
    if (deadline != kNoDeadline) {
      const std::uint64_t now = monotonic_ns();
      if (now >= deadline) return -FI_ETIMEDOUT;
      left = static_cast<std::int64_t>((deadline - now + 999'999) / 1'000'000);
    }
    if (int rc = object.sleep(left); rc != 0) return rc;
  }
  return 0;
}

// --- WaitPlace -------------------------------------------------------------------------------------

int WaitPlace::open(fi_wait_obj kind, fid_wait* set, Waitable& owner, Source* source) {
  kind_ = kind;
  switch (kind) {
    case FI_WAIT_NONE: return 0;
    case FI_WAIT_SET: {
      if (set == nullptr) return -FI_EINVAL;
      auto& of = object_of<WaitSet>(&set->fid);
      set_ = Held(of.references());
      object_ = &of.object();
      break;
    }
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
    case FI_WAIT_YIELD: {
      auto object = WaitObject::create();
      if (!object) return failure(object.error());
      own_ = std::move(*object);
      object_ = own_.get();
      break;
    }
    default: return -FI_ENOSYS;
  }
  owner_ = &owner;
  object_->add(owner);
  const int rc = source != nullptr ? object_->add_source(*source) : 0;
  if (rc == 0) source_ = source;
  return rc;
}

WaitPlace::~WaitPlace() {
  if (source_ != nullptr) object_->remove_source(*source_);
  if (object_ != nullptr) object_->remove(*owner_);
}

int WaitPlace::control(int command, void* argument) const {
  if (command == FI_GETWAIT) {
    if (object_ == nullptr || kind_ == FI_WAIT_YIELD) return -FI_ENOSYS;
    *static_cast<int*>(argument) = object_->fd();
    return 0;
  }
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = kind_ == FI_WAIT_UNSPEC ? FI_WAIT_FD : kind_;
    return 0;
  }
  return -FI_ENOSYS;
}

}  // namespace clan::ofi
