// The lock under which bytes of TCP are read and counted: doorbells, and the application's from
// before the switch. Threads of all processes that have the open file take it, as the one that
// closes the counter of receives.
//
// A process that was killed under it may have read bytes and not counted them. The next one takes
// the lock from it, and counts by the kernel's numbers.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "os/signals.h"
#include "state/open_file.h"
#include "state/socket.h"

namespace clan::preload {

class Draining {
 public:
  Draining(int fd, Socket& s);
  ~Draining() {
    if (has_it_) Slot::open(slot_->receives, me_);
  }
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;
  /// False: another process keeps it, which may have been stopped.
  explicit operator bool() const { return has_it_; }

 private:
  const Undisturbed undisturbed_;
  const std::int32_t me_ = closer_id();  ///< as it closes the counter
  Slot* slot_;
  bool has_it_ = true;
};

}  // namespace clan::preload
