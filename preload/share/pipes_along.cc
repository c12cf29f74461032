#include "share/pipes_along.h"

#include <fcntl.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "os/sys.h"
#include "share/passing.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

// Distinct ones, a few hundred at most.
struct Descriptors {
  int fds[kMostPassed];
  int count = 0;

  void add(int fd) {
    if (count < kMostPassed && std::find(fds, fds + count, fd) == fds + count) fds[count++] = fd;
  }
};

// Where a further control message would begin; 0: the kernel will not take those that are there.
std::size_t end_of_control(const msghdr& message) {
  std::size_t end = 0;
  auto* from = static_cast<char*>(message.msg_control);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_len < sizeof *c) return 0;
    end = static_cast<std::size_t>(reinterpret_cast<char*>(c) - from) + CMSG_ALIGN(c->cmsg_len);
  }
  return message.msg_controllen < end + sizeof(cmsghdr) ? end : 0;
}

bool is_tcp(int fd) { return sys::socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP; }

bool is_pipe(int fd) {
  if (sys::fcntl(fd, F_GET_SEALS) < 0) return false;
  std::uint64_t magic = 0;
  return sys::call(SYS_pread64, fd, &magic, sizeof magic, 0) == sizeof magic &&
         magic == PipePage::kMagic;
}

// Writes control messages as the kernel does.
class ControlWriter {
 public:
  explicit ControlWriter(const msghdr& to)
      : begin_(static_cast<char*>(to.msg_control)), at_(begin_), left_(to.msg_controllen) {}

  std::size_t used() const { return static_cast<std::size_t>(at_ - begin_); }
  bool cut() const { return cut_; }

  void put(const cmsghdr& c) {
    cut_ |= left_ < sizeof c;
    if (left_ < sizeof c) return;
    cmsghdr head = c;
    head.cmsg_len = std::min<std::size_t>(c.cmsg_len, left_);
    cut_ |= head.cmsg_len < c.cmsg_len;
    std::memcpy(at_, &head, sizeof head);
    std::memcpy(at_ + sizeof head, CMSG_DATA(&c), head.cmsg_len - sizeof head);
    advance(CMSG_ALIGN(c.cmsg_len));
  }
  // How many there was room for.
  int put_rights(const int* fds, int count) {
    const std::size_t room = left_ > sizeof(cmsghdr) ? (left_ - sizeof(cmsghdr)) / sizeof(int) : 0;
    const int fit = static_cast<int>(std::min(room, static_cast<std::size_t>(count)));
    cut_ |= fit < count;
    if (fit == 0) return 0;
    const std::size_t bytes = static_cast<std::size_t>(fit) * sizeof(int);
    const cmsghdr head{CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(at_, &head, sizeof head);
    std::memcpy(at_ + sizeof head, fds, bytes);
    advance(CMSG_SPACE(bytes));
    return fit;
  }

 private:
  void advance(std::size_t bytes) {
    bytes = std::min(bytes, left_);
    at_ += bytes;
    left_ -= bytes;
  }

  char* begin_;
  char* at_;
  std::size_t left_;
  bool cut_ = false;
};

// Takes the descriptors of one SCM_RIGHTS: the program's, and behind them the pipes and the table
// of slots.
void take_rights(const cmsghdr& c, ControlWriter& out, int through, bool peeked) {
  int fds[kMostPassed];
  const int all = static_cast<int>(
      std::min<std::size_t>((c.cmsg_len - CMSG_LEN(0)) / sizeof(int), kMostPassed));
  std::memcpy(fds, CMSG_DATA(&c), static_cast<std::size_t>(all) * sizeof(int));
  int own = all;
  if (all > 1 && std::any_of(fds, fds + all - 1, is_tcp)) {
    while (own > 1 && (is_pipe(fds[own - 1]) || is_slot_table(fds[own - 1]))) --own;
  }
  const int given = out.put_rights(fds, own);
  for (int i = given; i < own; ++i) sys::close(fds[i]);
  for (int i = 0; i < given; ++i) adopt_passed(fds[i], through, peeked, {fds + own, fds + all});
  for (int i = own; i < all; ++i) sys::close(fds[i]);
}

}  // namespace

PipesToSend::PipesToSend(const msghdr& message) : with_(message) {
  Descriptors memfds;
  int carried = 0;
  for_each_passed(message, [&](int fd) {
    ++carried;
    const SocketRef s = acquire(fd);
    if (s && s->shared() && s->pipe.memfd() >= 0) memfds.add(s->pipe.memfd());
  });
  // Behind them, so that the receiver finds their slots when this process has ended.
  const int table = passing_memfd.load(std::memory_order_relaxed);  // relaxed: a number alone
  if (memfds.count > 0 && table >= 0) memfds.add(table);
  const std::size_t at = end_of_control(message);
  if (memfds.count == 0 || at == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(memfds.count) * sizeof(int);
  control_.emplace(at + CMSG_SPACE(bytes));
  if (!*control_ || carried + memfds.count > kMostPassed) {
    for_each_passed(message, [](int fd) { leave_pipe(fd, true, reasons::Why::kPassed); });
    return;
  }
  char* const control = control_->as<char>();
  std::memset(control, 0, at + CMSG_SPACE(bytes));
  std::memcpy(control, message.msg_control, std::min<std::size_t>(at, message.msg_controllen));
  const cmsghdr head{CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(control + at, &head, sizeof head);
  std::memcpy(control + at + sizeof head, memfds.fds, bytes);
  with_.msg_control = control;
  with_.msg_controllen = at + CMSG_SPACE(bytes);
  any_ = true;
}

msghdr with_room_for_pipes(const msghdr& message, void* memory) {
  msghdr with = message;
  with.msg_control = memory;
  with.msg_controllen = message.msg_controllen + kRoomForPipes;
  return with;
}

void take_pipes(const msghdr& received, msghdr* message, int through, bool peeked) {
  const KeepErrno keep;
  ControlWriter out(*message);
  for (cmsghdr* c = CMSG_FIRSTHDR(&received); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&received), c)) {
    const bool rights = c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS;
    rights ? take_rights(*c, out, through, peeked) : out.put(*c);
  }
  void* const control = message->msg_control;
  *message = received;
  message->msg_control = control;
  message->msg_controllen = out.used();
  if (out.cut()) message->msg_flags |= MSG_CTRUNC;
}

}  // namespace clan::preload
