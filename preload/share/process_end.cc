#include "share/process_end.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "demote/demote.h"
#include "demote/resend.h"
#include "os/config.h"
#include "os/memory_owner.h"
#include "os/sys.h"
#include "share/reasons.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/socket.h"
#include "state/withdraw.h"
#include "stream/close.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "table/pipe_count.h"

namespace clan::preload {

void at_exit() {
  if (in_borrowed_memory()) return;
  finish_resends();
  end_remote();
  withdraw_of_process();
  for_each_socket(
      [](int fd, Socket& s, void*) {
        if (s.offer_name.get() != 0) withdraw_offer(s);
        if (s.shared()) (void)say_linger(fd, s);
        (void)leave_slot(s);
        use_slot_no_more(s);
        count_for_test(s);
      },
      nullptr);
}

void enter_sandbox(reasons::Why why) {
  say_of_process(why);
  disable();
  leave_all_pipes(why);
  stop_counting_pipes();
}

void before_clone(unsigned long flags) {
  const bool shares_memory = (flags & CLONE_VM) != 0, shares_table = (flags & CLONE_FILES) != 0;
  // A child of vfork() borrows this thread's memory: memory_owner.h.
  if (shares_memory != shares_table && (flags & CLONE_VFORK) == 0)
    enter_sandbox(reasons::Why::kOwnTable);
}

void before_leaving_table() {
  struct stat threads {};
  // A directory has two links, and one for each thread.
  const bool alone = sys::call(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &threads, 0) == 0 &&
                     threads.st_nlink == 3;
  if (!alone && !in_borrowed_memory()) enter_sandbox(reasons::Why::kOwnTable);
}

}  // namespace clan::preload
