#include "wait/set_sleep.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "clan/detail/clock.h"
#include "os/sys.h"
#include "stream/readiness.h"
#include "tcp/doorbell.h"
#include "wait/epoll_set.h"
#include "wait/list.h"
#include "wait/poll_moved.h"
#include "wait/ready_check.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

ObjectPool<SetSleep> sleep_pool;

}  // namespace

bool prepare(Set& set, SetSleep** sleep) {
  const Guard guard(set);
  SetSleep* one = sleep_pool.take();
  if (one == nullptr) return false;
  *one = {&set, *sleep};
  *sleep = one;
  ++set.refs;
  ++set.sleepers;
  if (set.watched.count > 0) set.set_now(monotonic_ns());
  // from behind: what is armed leaves the list
  for (std::uint32_t k = set.watched.count; k-- > 0;) {
    Interest& i = *set.watched.at[k];
    if (i.nested) {
      if (!i.fired) (void)prepare(*i.inner, sleep);
      continue;
    }
    // A loop that sleeps between other events need not touch this one's memory each time.
    if (quiet_for_long(i)) {
      arm(i);
      if (k >= set.watched.count || set.watched.at[k] != &i) continue;
    }
    if (i.fired) continue;
    auto events = static_cast<short>(i.events);
    if (set.polled != nullptr) {
      set.polled->lie_down(i);
    } else {
      events |= POLLIN | POLLRDHUP;
    }
    (void)prepare_sleep(*i.socket, events, watches_bell(i));
  }
  return !anything(set);
}

bool watches_pipes(const Set& set) {
  const Guard guard(set);
  for (std::uint32_t k = 0; k < set.watched.count; ++k) {
    const Interest& i = *set.watched.at[k];
    if (!i.nested || watches_pipes(*i.inner)) return true;
  }
  return false;
}

void awake(SetSleep* sleep) {
  while (sleep != nullptr) {
    Set& set = *sleep->set;
    const Guard guard(set);
    if (set.polled != nullptr) set.polled->get_up();
    --set.sleepers;
    for (std::uint32_t k = 0; k < set.watched.count; ++k) {
      const Interest& i = *set.watched.at[k];
      if (!i.nested) i.socket->pipe.unwant_data();
    }
    release(set);
    sleep_pool.give_back(std::exchange(sleep, sleep->next));
  }
}

namespace {

// `holds()`: something of what has moved there is to be reported.
template <typename Holds>
bool only_doorbells(Set& set, Holds&& holds) {
  const Guard guard(set);
  if (holds()) return false;
  bool rung = false;
  for (std::uint32_t k = 0; k < set.interests.count && !rung; ++k) {
    const Interest& i = *set.interests.at[k];
    rung = i.moved && (i.nested ? i.inner->moved > 0 : doorbells_waiting(*i.socket));
  }
  pollfd p{set.epfd, POLLIN, 0};
  // Not ready at all: the event was of another descriptor with the same data.
  if (!rung || sys::poll(&p, 1, 0) == 0) return false;
  for (std::uint32_t k = 0; k < set.interests.count; ++k) {
    const Interest& i = *set.interests.at[k];
    if (i.moved && !i.nested) take_news(i, false);
  }
  return set.names > 0 && !holds() && sys::poll(&p, 1, 0) == 0;
}

}  // namespace

bool only_doorbells(Set& set) {
  return only_doorbells(set, [&set] { return anything(set); });
}

bool is_no_news_of_nested(Set& set, const epoll_event& event) {
  for (std::uint32_t k = 0; k < set.watched.count && set.nested > 0; ++k) {
    Interest& i = *set.watched.at[k];  // as all sets in it are
    if (!i.nested || i.data.u64 != event.data.u64) continue;
    if ((i.events & EPOLLONESHOT) != 0) {
      // The kernel reports it once, and so does the library; not spent: the event is of another
      // one.
      if (is_spent(i)) return std::exchange(i.fired, true);
      continue;
    }
    const bool moved = i.inner->moved > 0 && i.inner->names > 0;
    if (moved && only_doorbells(*i.inner, [&i] { return is_ready(i); })) return true;
  }
  return false;
}

}  // namespace clan::preload
