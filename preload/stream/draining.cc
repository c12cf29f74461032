#include "stream/draining.h"

#include <cstdint>
#include <cstring>

#include "state/open_file.h"
#include "state/socket.h"
#include "stream/gate_wait.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {

Draining::Draining(int fd, Socket& s) : slot_(&s.open_file()) {
  if (Slot::try_close(slot_->receives, me_)) [[likely]] {
    UntilOpen::found_open(s, s.receives_wait);
    return;
  }
  UntilOpen until(fd, s, me_);
  do {
    slot_ = &s.open_file();  // fork moves it
    // Once it has moved no thread that is counted is in the kernel: it steps back, or was killed.
    if (until.took_over() || Slot::try_close_over(slot_->receives, me_)) {
      if (s.receives_wait.is_on()) s.receives_wait.over(s.pipe.owner_waits());
      if (until.took_over()) recount_doorbells(fd, s);
      return;
    }
  } while ((has_it_ = until.wait(slot_->receives)));
}

}  // namespace clan::preload
