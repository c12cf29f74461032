#include "demote/resend_source.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "clan/face/pipe.h"
#include "demote/handback.h"
#include "kernel/tcp.h"
#include "os/sys.h"

namespace clan::preload {

bool ResendSource::open_pipe(const Socket& s) {
  auto pipe = s.pipe.at_other_end();
  if (!pipe) return false;
  theirs_ = std::move(*pipe);
  theirs_.writer_has_gone();  // nobody sends: what is there is at most a ring
  return true;
}

bool ResendSource::sent(std::uint64_t* bytes) const { return sent_by_tcp(fd_, bytes); }

long ResendSource::fetch(std::uint64_t at) {
  if (at >= given_ && !theirs_) return 0;
  if (at >= given_) return theirs_.copy_aside(&place_, at - given_, bytes_, kMost);
  const std::uint64_t from = sizeof(TakenHead) + at;
  const long n = sys::call(SYS_pread64, file_, bytes_, std::min(kMost, given_ - at), from);
  return n > 0 ? n : -1;
}

SentAgain ResendSource::send(std::uint64_t at) {
  count_ = 0;
  const long n = fetch(at);
  if (n <= 0) return n == 0 ? SentAgain::kAll : SentAgain::kBroken;
  const ssize_t sent =
      sys::send(fd_, bytes_, static_cast<std::size_t>(n), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) return count_ = static_cast<std::uint64_t>(sent), SentAgain::kSome;
  if (sent < 0 && errno == EAGAIN) return SentAgain::kNoRoom;
  return sent < 0 && errno == EINTR ? SentAgain::kSome : SentAgain::kNobody;
}

}  // namespace clan::preload
