#include "share/exec.h"

#include <fcntl.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "attach/attach.h"
#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "demote/resend.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "os/memory_owner.h"
#include "os/sandbox.h"
#include "os/sys.h"
#include "share/loader.h"
#include "state/face.h"
#include "state/socket.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "table/slot_table.h"
#include "wait/set_events.h"

namespace clan::preload {
namespace {

// What a program that is executed finds: "table;descriptor:pipe:end,…" with the descriptor of the
// table of slots (table/slot_table.h) and the connections that go on in it.
constexpr char kInherited[] = "CLAN_INHERITED";

struct Inheritance {
  char text[16384] = {};
  std::size_t used = 0;
};
constinit Inheritance list;  ///< after exec nobody else needs it; after vfork the parent waits

// The program that a child of vfork() executes holds the connection beside the parent, which goes
// on in this memory. `by`: 1 or, if there is no such program after all, -1.
void count_program(Socket& s, int by) {
  if (!in_borrowed_memory()) return;  // it takes the place of this process
  s.share();
  s.followed.store(true, std::memory_order_relaxed);
  add_holders(s.mine(), by);
  dekker::add(s.open_file().held, by);  // PAIR preload.held: a user more
}

// A duplicate of it has been listed.
bool is_listed(int memfd) {
  char text[24];
  std::snprintf(text, sizeof text, ":%d:", memfd);
  return std::strstr(list.text, text) != nullptr;
}

// Connections that stay open across exec, and the descriptors of their pipes, made to stay open
// too.
void hand_on(int fd, Socket& s, void*) {
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags < 0 || (flags & FD_CLOEXEC) != 0) return;
  leave_remote(fd, s, reasons::Why::kExecuted);
  char item[64];
  const int n = std::snprintf(item, sizeof item, "%d:%d:%d,", fd, s.shared() ? s.pipe.memfd() : -1,
                              s.pipe.end());
  const std::size_t used = list.used + static_cast<std::size_t>(n);
  // A standard stream of the new program would read and write past us. And the new program does not
  // know of what another process still sends again: its own bytes would overtake that.
  const bool stays = fd > STDERR_FILENO && s.shared() && !is_sent_again(s) && s.pipe.memfd() >= 0 &&
                     is_findable(s.open_file()) && used < sizeof list.text && !lasts_in_set(s);
  if (!stays) return leave_pipe(fd, true, reasons::Why::kExecuted);
  if (!is_listed(s.pipe.memfd())) count_program(s, 1);
  std::memcpy(list.text + list.used, item, static_cast<std::size_t>(n));
  list.used = used;
  list.text[list.used] = 0;
  sys::fcntl(s.pipe.memfd(), F_SETFD, 0);
}

void take_back(int fd, Socket&, void*) {
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) leave_pipe(fd, true, reasons::Why::kExecuted);
}

// What the new program does not have. The file would stay behind. After vfork it is the parent's.
void leave_behind(int fd, Socket& s, void*) {
  if (s.offer_name.get() != 0) withdraw_offer(s);
  const int flags = sys::fcntl(fd, F_GETFD);
  // relaxed: a copy that is made now is not of this call
  if (flags < 0 || (flags & FD_CLOEXEC) == 0 || s.fds.load(std::memory_order_relaxed) != 1) return;
  (void)leave_slot(s);
  use_slot_no_more(s);
}

// Takes back what exec did not pass on after all: each connection once.
void take_pipe_back(int, Socket& s, void*) {
  if (!s.shared() || s.pipe.memfd() < 0) return;
  sys::fcntl(s.pipe.memfd(), F_SETFD, FD_CLOEXEC);
  char text[24];
  const int length = std::snprintf(text, sizeof text, ":%d:", s.pipe.memfd());
  bool listed = false;
  for (char* at = list.text; (at = std::strstr(at, text)) != nullptr; at += length) {
    listed = true;
    *at = ' ';
  }
  if (listed) count_program(s, -1);
}

// A pipe from a process before exec.
void adopt_pipe(int fd, int memfd, int end) {
  KeepErrno keep;
  probe(fd);
  SocketRef s = acquire(fd);
  auto pipe = open_high(memfd, end);
  OpenFileState* const slot = pipe ? find_slot_of_pipe(0, pipe->inode(), end) : nullptr;
  Route route;
  if (!s || slot == nullptr || !route_of(fd, &route)) {
    log_line(
        LogLevel::kError,
        "a connection in shared memory was handed to this program, which cannot use it (%s); it is "
        "reset. CLAN_DISABLE=1 for the program that executed this one avoids that",
        s ? "its memory is not to be had" : "CLAN_DISABLE, or no memory");
    return reset_connection(fd);
  }
  join_pipe(fd, *s, *slot, std::move(*pipe), route, false);
}

}  // namespace

char* hand_on_connections(const char* path, char* const* environment) {
  bool any = false;
  for_each_socket([](int, Socket&, void* found) { *static_cast<bool*>(found) = true; }, &any);
  if (!any) return nullptr;
  if (!in_borrowed_memory()) for_each_socket(leave_behind, nullptr);
  if (!names_us(environment) || loader_of(path, 0) != Loader::kLoadsUs) {
    for_each_socket(take_back, nullptr);
    return nullptr;
  }
  const int table = passing_memfd.load(std::memory_order_relaxed);  // relaxed: a number alone
  list.used = static_cast<std::size_t>(
      std::snprintf(list.text, sizeof list.text, "%s=%d;", kInherited, table));
  const std::size_t none = list.used;
  for_each_socket(hand_on, nullptr);
  if (list.used == none) return nullptr;
  sys::fcntl(table, F_SETFD, 0);
  return list.text;
}

void use_slots_again() {
  if (in_borrowed_memory()) return;
  for_each_socket(
      [](int, Socket& s, void*) {
        if (!dekker::swap(s.left_slot, false)) return;
        dekker::add(s.open_file().held, 1);  // PAIR preload.held: a user more
        // PAIR preload.to_follow: as before
        if (!s.shared() && dekker::swap(s.not_to_follow, false))
          dekker::add(s.open_file().to_follow, 1);
      },
      nullptr);
}

void take_pipes_back() {
  // relaxed: a number alone
  sys::fcntl(passing_memfd.load(std::memory_order_relaxed), F_SETFD, FD_CLOEXEC);
  for_each_socket(take_pipe_back, nullptr);
}
void take_all_back() { for_each_socket(take_back, nullptr); }

void take_over_connections() {
  const char* text = std::getenv(kInherited);
  if (text == nullptr) return;
  note_fork(false);  // the process that moved them had the filter, if there is one
  int fd, memfd, end, used = 0;
  if (std::sscanf(text, "%d;%n", &memfd, &used) == 1 && used > 0) {
    take_over_table(memfd);
    text += used;
  }
  const char* const all = text;
  for (;; text += used) {
    if (std::sscanf(text, "%d:%d:%d,%n", &fd, &memfd, &end, &used) != 3) break;
    // Duplicates name the same pipe: one of them was enough to open it, and has.
    int first = -1, pipe = -1, ignored, more;
    for (const char* at = all; at != text && pipe != memfd; at += more) {
      if (std::sscanf(at, "%d:%d:%d,%n", &first, &pipe, &ignored, &more) != 3) break;
    }
    if (pipe != memfd) {
      adopt_pipe(fd, memfd, end);
    } else if (!duplicate_entry(first, fd)) {
      if (const SocketRef s = acquire(first)) never_move(first, *s, reasons::Why::kExecuted);
    }
  }
  ::unsetenv(kInherited);
}

}  // namespace clan::preload
