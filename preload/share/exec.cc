#include "share/exec.h"

#include <fcntl.h>

#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "os/memory_owner.h"
#include "os/sys.h"
#include "state/socket.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

void take_back(int fd, Socket&, void*) {
  const int flags = sys::fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0) leave_pipe(fd, true, reasons::Why::kExecuted);
}

// The new program does not know the slots, so those of open sockets are pinned. Without the
// withdrawal, the file of an offer would stay behind.
void leave_behind(int, Socket& s, void*) {
  if (s.offer_name.get() != 0) withdraw_offer(s);
  (void)leave_slot(s);
  use_slot_no_more(s);
}

}  // namespace

void before_exec() {
  take_all_back();
  if (!in_borrowed_memory()) for_each_socket(leave_behind, nullptr);
}

void use_slots_again() {
  if (in_borrowed_memory()) return;
  for_each_socket([](int, Socket& s, void*) { use_slot_again(s); }, nullptr);
}

void take_all_back() { for_each_socket(take_back, nullptr); }

}  // namespace clan::preload
