#include "demote/handback.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "clan/face/socket_face.h"
#include "demote/demote_steps.h"
#include "kernel/proc.h"
#include "os/scratch.h"
#include "os/sys.h"
#include "state/socket.h"
#include "table/internal_fds.h"
#include "tcp/aborted.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kGivenBack;

constexpr char kTakenLink[] = "/memfd:clan-given-back (deleted)";

}  // namespace

TakenHead head_of(const Socket& s) {
  TakenHead head;
  head.pipe = s.pipe.inode();
  return head;
}

int file_of_given(const Socket& s, std::uint64_t where) {
  const int file = open_memfd_of(static_cast<unsigned>(where >> 32),
                                 static_cast<int>(where & 0x7fff'ffffu), kTakenLink, O_RDONLY);
  TakenHead found;
  if (sys::call(SYS_pread64, file, &found, sizeof found, 0) == sizeof found && found == head_of(s))
    return file;
  if (file >= 0) sys::close(file);
  return -1;
}

HandedBack given_back(const Socket& s) {
  HandedBack given;
  given.word = words::load_acquire(s.theirs().words[kGivenBack]);  // PAIR face.given
  if (given.word <= kReadsOn) return given;
  given.memfd = file_of_given(s, given.word);
  given.lost = given.memfd < 0;
  return given;
}

std::uint64_t bytes_in(int taken) {
  const long end = sys::call(SYS_lseek, taken, 0, SEEK_CUR);
  constexpr long kHead = sizeof(TakenHead);
  return end < kHead ? 0 : static_cast<std::uint64_t>(end - kHead);
}

bool keep(int taken, const char* bytes, std::size_t n) {
  for (std::size_t at = 0; at < n;) {
    const long k = sys::call(SYS_write, taken, bytes + at, n - at);
    if (k <= 0) return false;
    at += static_cast<std::size_t>(k);
  }
  return true;
}

bool give_back(Socket& s, int taken) {
  auto& word = s.mine().words[kGivenBack];
  if (word.load(std::memory_order_relaxed) != 0) return true;
  // What lies in the pipe is the other end's to send again, from before it learns of that.
  if (const int err = s.pipe.set_aside(); err != 0 && err != EALREADY) return false;
  const std::uint64_t where =
      static_cast<std::uint64_t>(::getpid()) << 32 | static_cast<std::uint32_t>(taken);
  // PAIR face.given: publishes the file
  words::store_release(word, has_nothing_back(taken) ? kNothing : where);
  return true;
}

int file_for_taken(const Socket& s) {
  const auto make = [] {
    return static_cast<int>(sys::call(SYS_memfd_create, kTakenName, MFD_CLOEXEC));
  };
  int file = make();
  if (file < 0 && errno == EMFILE && give_up_ours()) file = make();
  const TakenHead head = head_of(s);
  if (file < 0 || sys::call(SYS_write, file, &head, sizeof head) == sizeof head) return file;
  sys::close(file);
  return -1;
}

bool take_unread(int fd, Socket& s, int to, std::uint64_t deadline_ns) {
  const Scratch memory(Scratch::kUsual);
  char* const bytes = memory.as<char>();
  if (bytes == nullptr) return false;
  while (!s.has_drained()) {
    if (monotonic_ns() > deadline_ns) return false;
    const Draining draining(s);
    std::size_t certain = 0;
    if (left_in_tcp(fd, s, &certain) == 0) break;
    if (certain == 0 || to < 0) return false;
    const std::size_t wanted = std::min(certain, Scratch::kUsual);
    const ssize_t n = sys::recv(fd, bytes, wanted, MSG_DONTWAIT);
    note_end(fd, s, n);
    if (n <= 0) return false;
    if (keep(to, bytes, static_cast<std::size_t>(n))) continue;
    break_off(fd, s, "out of memory for bytes that go back to TCP");
    return false;
  }
  return true;
}

}  // namespace clan::preload
