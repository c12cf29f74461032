#include "wait/wait.h"

#include <clan/detail/clock.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "objects/fabric.h"

namespace clan::ofi {
namespace {

constexpr std::uint32_t kNever = ~std::uint32_t{0};
// The kernel takes a descriptor into a set by way of two others at most 100 times. Those that come
// later leave packets to driver threads.
constexpr int kMostHearing = 32;
std::atomic<int> hearing{0};  ///< wait objects that hear packets

int watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0 ? -errno : 0;
}

// What a thread sleeps on that hears by this source. It may be there in part.
int watch(int epoll, Source& source, bool packets) {
  auto fd = source.descriptor();
  if (!fd) return failure(fd.error());
  for (const int number : {*fd, packets ? source.packets() : -1}) {
    if (number < 0) continue;
    if (const int rc = watch(epoll, number); rc != 0 && rc != -EEXIST) return rc;
  }
  return 0;
}

void forget(int epoll, Source& source) {
  if (auto fd = source.descriptor()) ::epoll_ctl(epoll, EPOLL_CTL_DEL, *fd, nullptr);
  if (const int fd = source.packets(); fd >= 0) ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr);
}

void fill(int event) {
  const std::uint64_t one = 1;
  (void)!::write(event, &one, sizeof one);  // full: it is readable already
}

void empty(int event) {
  std::uint64_t count;
  (void)!::read(event, &count, sizeof count);
}

}  // namespace

std::int64_t sleep_ms(std::uint64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  return now >= deadline_ns ? 0
                            : static_cast<std::int64_t>((deadline_ns - now + 999'999) / 1'000'000);
}

int Source::poll(std::span<pollfd> fds, std::int64_t timeout_ms) {
  constexpr std::int64_t kMost = 1'000'000'000;
  const int rc = ::poll(fds.data(), fds.size(),
                        timeout_ms < 0 ? -1 : static_cast<int>(std::min(timeout_ms, kMost)));
  return rc > 0 ? 0 : rc == 0 ? ETIMEDOUT : errno;
}

// --- WaitObject ----------------------------------------------------------------------------------

int WaitObject::create(fi_wait_obj kind, std::unique_ptr<WaitObject>* made) {
  switch (kind) {
    case FI_WAIT_UNSPEC: kind = FI_WAIT_FD; break;
    case FI_WAIT_FD:
    case FI_WAIT_POLLFD:
    case FI_WAIT_MUTEX_COND:
    case FI_WAIT_YIELD: break;
    default: return -FI_ENOSYS;
  }
  std::unique_ptr<WaitObject> object(new (std::nothrow) WaitObject);
  if (object == nullptr) return -FI_ENOMEM;
  object->kind_ = kind;
  // relaxed: a count, as below
  const bool room = hearing.fetch_add(1, std::memory_order_relaxed) < kMostHearing;
  // A bell's thread would wake for each packet, also while the program polls.
  object->hears_packets_ = room && kind != FI_WAIT_MUTEX_COND;
  if (!object->hears_packets_) hearing.fetch_sub(1, std::memory_order_relaxed);
  object->sources_epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (object->sources_epoll_ < 0) return -errno;
  object->event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (object->event_ < 0) return -errno;
  *made = std::move(object);
  return 0;
}

WaitObject::~WaitObject() {
  bell_.reset();
  if (hears_packets_) hearing.fetch_sub(1, std::memory_order_relaxed);  // relaxed: a count
  for (const int fd : {shown_epoll_, shown_event_, timer_, event_, sources_epoll_}) {
    if (fd >= 0) ::close(fd);
  }
}

int WaitObject::control(int command, void* argument) {
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = kind_;
    return 0;
  }
  if (command != FI_GETWAIT || kind_ == FI_WAIT_YIELD) return -FI_ENOSYS;
  if (int rc = show(); rc != 0) return rc;
  switch (kind_) {
    case FI_WAIT_FD: *static_cast<int*>(argument) = shown_epoll_; return 0;
    case FI_WAIT_MUTEX_COND: return face(static_cast<fi_mutex_cond*>(argument));
    case FI_WAIT_POLLFD: {
      auto& pollfds = *static_cast<fi_wait_pollfd*>(argument);
      const std::size_t room = std::exchange(pollfds.nfds, 1);
      pollfds.change_index = 1;  // it is the same one for ever
      if (room < 1) return -FI_ETOOSMALL;
      pollfds.fd[0] = {shown_epoll_, POLLIN, 0};
      return 0;
    }
    default: return -FI_ENOSYS;
  }
}

// Makes what a program can sleep on by itself.
int WaitObject::show() {
  std::lock_guard lock(mutex_);
  if (words_.shown.load(std::memory_order_relaxed)) return 0;  // relaxed: under the lock
  if (shown_epoll_ < 0) shown_epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (shown_epoll_ < 0) return -errno;
  if (shown_event_ < 0) {
    shown_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (shown_event_ < 0) return -errno;
    if (int rc = watch(shown_epoll_, shown_event_); rc != 0) return rc;
  }
  for (Source* source : sources_) {
    if (int rc = watch(shown_epoll_, *source, hears_packets_); rc != 0) return rc;
  }
  if (timer_ >= 0) {
    if (int rc = watch(shown_epoll_, timer_); rc != 0 && rc != -EEXIST) return rc;
  }
  publish_shown(words_);
  return 0;
}

// The thread is for programs that sleep on the condition themselves; one that never asks has none.
int WaitObject::face(fi_mutex_cond* face) {
  std::lock_guard lock(bell_mutex_);
  if (bell_ == nullptr) {
    auto bell = Bell::create(shown_epoll_);
    if (!bell) return failure(bell.error());
    bell_ = std::move(*bell);
  }
  *face = bell_->face();
  return 0;
}

int WaitObject::add_source(Source& source) {
  std::lock_guard lock(mutex_);
  sources_.reserve(sources_.size() + 1);
  if (std::find(sources_.begin(), sources_.end(), &source) == sources_.end()) {
    source.add_sleepers(*this);
    // The source wakes a thread that sleeps in it when packets come.
    int rc = watch(sources_epoll_, source, hears_packets_ && sleeps_in_ == nullptr);
    const bool shown = words_.shown.load(std::memory_order_relaxed);  // relaxed: under the lock
    if (rc == 0 && shown) rc = watch(shown_epoll_, source, hears_packets_);
    if (rc != 0) {
      forget(sources_epoll_, source);
      source.remove_sleepers(*this);
      return rc;
    }
  }
  sources_.push_back(&source);
  signal();  // those that sleep have not armed it
  return 0;
}

void WaitObject::remove_source(Source& source) {
  std::lock_guard lock(mutex_);
  auto it = std::find(sources_.begin(), sources_.end(), &source);
  if (it == sources_.end()) return;
  sources_.erase(it);
  if (std::find(sources_.begin(), sources_.end(), &source) != sources_.end()) return;
  forget(sources_epoll_, source);
  if (shown_epoll_ >= 0) forget(shown_epoll_, source);
  source.remove_sleepers(*this);
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
  wake_sleepers(
      words_, [this] { fill(event_); }, [this] { fill(shown_event_); });
}

bool WaitObject::pending_locked() {
  return std::any_of(waitables_.begin(), waitables_.end(),
                     [](Waitable* w) { return w->pending(); });
}

bool WaitObject::any_pending() {
  std::lock_guard lock(mutex_);
  return pending_locked();
}

bool WaitObject::arm_sources(Source::SleepsIn where) {
  bool quiet = true;
  std::uint32_t look_again_ms = kNever;
  for (Source* source : sources_) quiet = source->arm(where, &look_again_ms) && quiet;
  if (timer_set_ || look_again_ms != kNever) quiet = set_timer(look_again_ms) && quiet;
  return quiet;
}

bool WaitObject::prepare() {
  std::lock_guard lock(mutex_);
  if (pending_locked()) return false;
  arm_shown(words_, [this] { empty(shown_event_); });
  const bool quiet = arm_sources(elsewhere());
  if (!pending_locked()) return quiet;
  // Others may sleep on the descriptor already, and what is there may have come before we have
  // emptied it.
  if (words_.shown.load(std::memory_order_relaxed)) fill(shown_event_);  // relaxed: under the lock
  return false;
}

// True: we count as asleep, and a thread that changes something from now on wakes us.
bool WaitObject::lie_down() {
  {
    std::lock_guard lock(mutex_);
    if (join_sleepers(words_, [this] { empty(event_); })) {
      bool quiet = false;
      try {
        quiet = arm_sources(sleeps_in_ != nullptr ? Source::SleepsIn::kSource : elsewhere());
      } catch (const std::bad_alloc&) {
      }
      if (quiet) return true;
      leave_sleepers(words_, false);
      return false;
    }
  }
  ::sched_yield();  // those that it has woken are about to leave
  return false;
}

// False: there is no timer to be had, so nobody may sleep.
bool WaitObject::set_timer(std::uint32_t ms) {
  if (timer_ < 0) {
    timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer_ < 0) return false;
    const bool shown = words_.shown.load(std::memory_order_relaxed);  // relaxed: under the lock
    if (watch(sources_epoll_, timer_) != 0 || (shown && watch(shown_epoll_, timer_) != 0)) {
      ::close(std::exchange(timer_, -1));
      return false;
    }
  }
  // Setting it also takes back that it has expired.
  timer_set_ = ms != kNever;
  itimerspec when{};
  if (timer_set_) when.it_value = {ms / 1000, static_cast<long>(ms % 1000) * 1'000'000};
  return ::timerfd_settime(timer_, 0, &when, nullptr) == 0;
}

int WaitObject::sleep(std::int64_t timeout_ms) {
  pollfd fds[] = {{event_, POLLIN, 0}, {sources_epoll_, POLLIN, 0}};
  const int rc =
      sleeps_in_ != nullptr ? sleeps_in_->sleep(fds, timeout_ms) : Source::poll(fds, timeout_ms);
  leave_sleepers(words_, rc == 0 && fds[0].revents != 0);
  return rc == 0 ? 0 : rc == ETIMEDOUT ? -FI_ETIMEDOUT : -rc;
}

// --- WaitSet -------------------------------------------------------------------------------------

fi_ops WaitSet::ops_ = object_ops(close_object<WaitSet>, not_supported, WaitSet::control);
fi_ops_wait WaitSet::wait_ops_ = {.size = sizeof(fi_ops_wait), .wait = WaitSet::wait};

int WaitSet::open(fid_fabric* fabric, fi_wait_attr* attr, fid_wait** set) {
  if (attr->flags != 0) return -FI_EINVAL;
  std::unique_ptr<WaitObject> object;
  if (int rc = WaitObject::create(attr->wait_obj, &object); rc != 0) return rc;
  auto* made = new (std::nothrow) WaitSet;
  if (made == nullptr) return -FI_ENOMEM;
  made->fid = {FI_CLASS_WAIT, nullptr, &ops_};
  made->ops = &wait_ops_;
  made->object_ = std::move(object);
  made->fabric_ = Held(object_of<Fabric>(&fabric->fid).references());
  *set = made;
  return 0;
}

int WaitSet::control(fid_t id, int command, void* argument) {
  return object_of<WaitSet>(id).object_->control(command, argument);
}

int WaitSet::wait(fid_wait* id, int timeout_ms) {
  WaitObject& object = *static_cast<WaitSet*>(id)->object_;
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  const auto ready = [&] { return object.any_pending(); };
  for (std::int64_t left = sleep_ms(deadline); !ready(); left = sleep_ms(deadline)) {
    if (int rc = object.sleep_unless(ready, left); rc == -FI_EINTR) return rc;
    if (left == 0 && !ready()) return -FI_ETIMEDOUT;
  }
  return 0;
}

// --- WaitPlace -----------------------------------------------------------------------------------

int WaitPlace::open(fi_wait_obj kind, fid_wait* set, Waitable& owner, Source* source) try {
  if (kind == FI_WAIT_NONE) return 0;
  if (kind == FI_WAIT_SET) {
    if (set == nullptr) return -FI_EINVAL;
    auto& of = object_of<WaitSet>(&set->fid);
    set_ = Held(of.references());
    object_ = &of.object();
  } else {
    if (int rc = WaitObject::create(kind, &own_); rc != 0) return rc;
    object_ = own_.get();
  }
  owner_ = &owner;
  object_->add(owner);
  if (source == nullptr) return 0;
  if (own_ != nullptr) own_->sleep_in(*source);
  if (const int rc = object_->add_source(*source); rc != 0) return rc;
  source_ = source;
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

WaitPlace::~WaitPlace() {
  if (source_ != nullptr) object_->remove_source(*source_);
  if (object_ != nullptr) object_->remove(*owner_);
}

int WaitPlace::control(int command, void* argument) const {
  if (object_ != nullptr && own_ == nullptr && command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(argument) = FI_WAIT_SET;
    return 0;
  }
  if (object_ != nullptr) return object_->control(command, argument);
  if (command != FI_GETWAITOBJ) return -FI_ENOSYS;
  *static_cast<fi_wait_obj*>(argument) = FI_WAIT_NONE;
  return 0;
}

}  // namespace clan::ofi
