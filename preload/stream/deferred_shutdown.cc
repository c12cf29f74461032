#include "stream/deferred_shutdown.h"

#include <cerrno>
#include <cstring>

#include "clan/face/pipe.h"
#include "demote/demote_steps.h"
#include "demote/resend.h"
#include "os/sys.h"
#include "stream/bell.h"
#include "stream/notify_peer.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kEnding;
using socket_face::kGone;
using socket_face::kState;

}  // namespace

bool tell_end(int fd, Socket& s) {
  KeepErrno keep;
  if ((state_of(s.mine()) & kGone) != 0) {
    if (resends(fd, s)) return false;  // behind what is being sent again
    end_by_tcp(fd, s);
    return true;
  }
  if (!switch_sending(fd, s)) return false;
  const Pipe::Done done = s.pipe.end_sending();
  if (done.must_ring) ring(fd, s, done);
  const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
  // Broken: its end is reported in other ways.
  if (sender.ended.load(std::memory_order_relaxed) != 1 && done.err != EPROTO) return false;
  // order: a bit by itself, in a word whose others publish
  s.mine().words[kState].fetch_and(~std::uint64_t{kEnding}, std::memory_order_acq_rel);
  return true;
}

}  // namespace clan::preload
