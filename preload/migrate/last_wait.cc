#include "migrate/last_wait.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "clan/clock.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "clan/wait_budget.h"
#include "migrate/demote_end.h"
#include "os/proc.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/open_file.h"

namespace clan::preload {
namespace {

constexpr std::uint64_t kLookNs = 10'000'000;

bool shares(int fd, const Socket& s, std::uint32_t thread) {
  const auto id = static_cast<pid_t>(thread);
  if (sys::call(SYS_tgkill, ::getpid(), id, 0) == 0) return true;
  struct stat st {};
  if (!s.inherited.load(std::memory_order_relaxed) || sys::fstat(fd, &st) != 0) return false;
  char link[48];
  std::snprintf(link, sizeof link, "socket:[%lu]", static_cast<unsigned long>(st.st_ino));
  return has_descriptor_of(id, link);
}

}  // namespace

Users users_of_end(int fd, const Socket& s) {
  KeepErrno keep;
  constexpr std::uint32_t kThread = sys::kThreadId;
  auto relaxed = std::memory_order_relaxed;  // looks; one that acts on them takes what it needs
  const auto closer = [&](const Slot::Counter& counter) {
    const std::uint64_t now = counter.load(relaxed);
    return (now & Slot::kClosed) != 0 && !Slot::is_resend(now)
               ? static_cast<std::uint32_t>(Slot::id_of(now))
               : 0u;
  };
  const auto& end = s.pipe.page().ends[s.pipe.end()];
  const Slot& slot = s.open_file();
  const std::uint64_t bells = s.mine().words[socket_face::kBells].load(relaxed);
  const bool sends_doorbell = (bells & socket_face::kRingerSends) != 0;
  Users found = Users::kNobody;
  const std::uint32_t users[] = {
      end.sender.lock.load(relaxed) & kThread, end.receiver.lock.load(relaxed) & kThread,
      sends_doorbell ? static_cast<std::uint32_t>(bells >> socket_face::kRinger) & kThread : 0u,
      closer(slot.sends), closer(slot.receives)};
  for (const std::uint32_t user : users) {
    if (user == 0) continue;
    const bool sharer = shares(fd, s, user);
    if (sharer && sys::is_stopped(static_cast<pid_t>(user))) return Users::kStoppedSharer;
    found = std::max(found, sharer ? Users::kSharers : Users::kOthers);
  }
  return found;
}

LastWait::LastWait(int fd, const Socket& s) : fd_(fd), s_(s), last_ns_(monotonic_ns()) {}

bool LastWait::nap(bool peer_blocks) {
  const std::uint64_t now = monotonic_ns();
  if (now - asked_ns_ > kLookNs) {
    users_ = users_of_end(fd_, s_);
    asked_ns_ = now;
  }
  const std::uint64_t step = std::min(now - last_ns_, CallWait::kMostOfAStepNs);
  last_ns_ = now;
  if (users_ != Users::kStoppedSharer) {
    waited_ns_ += step;
    if (peer_blocks || users_ == Users::kOthers) blocked_ns_ += step;
  }
  if (blocked_ns_ > WaitBudget::kMostInCallsNs || waited_ns_ > kForOtherEndNs) return false;
  preload::nap();
  return true;
}

}  // namespace clan::preload
