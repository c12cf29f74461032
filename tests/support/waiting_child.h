// Child processes that get something ready and then wait to be killed.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/process.h"

namespace clan::test {

class WaitingChild {
 public:
  /// The child runs `body(ready)`, which calls `ready()` when its test may go on, and then waits.
  template <typename Body>
  explicit WaitingChild(Body&& body)
      : process_(Process::start([&] {
          body([this] { ready_.open(); });
          for (;;) ::pause();
          return 0;
        })) {}
  void await() { EXPECT_TRUE(ready_.wait()); }
  pid_t pid() const { return process_.pid(); }
  void kill() { (void)process_.kill(); }

 private:
  Gate ready_;  // before the process that opens it
  Process process_;
};

}  // namespace clan::test
