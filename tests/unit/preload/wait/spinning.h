// A thread that spins for a connection that says nothing, and a pipe that becomes readable
// meanwhile.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "clan/face/wait.h"
#include "preload/tcp_pair.h"

namespace clan::preload {

/// Nothing is known of the peer of end 1: it may run on another processor.
struct Spinning {
  Spinning() {
    pair.migrate();
    EXPECT_EQ(pair.receive(1), "");
    EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  }
  ~Spinning() {
    for (const int fd : pipe) ::close(fd);
  }
  Spinning(const Spinning&) = delete;
  Spinning& operator=(const Spinning&) = delete;

  /// So long that a thread that does not ask the kernel meanwhile is found to sleep after it.
  static constexpr WaitOptions kForLong{WaitOptions::Mode::kAdaptive, 50'000};

  /// `waits()`, whose waiter `renew()` makes anew, answers whether it has reported the pipe alone;
  /// `sleeps` counts those in the kernel. It did, without one. A spin ends early where another
  /// thread takes the processor, so there are several attempts.
  template <typename Renew, typename Waits>
  bool tells(Renew&& renew, Waits&& waits, const int& sleeps) {
    for (int attempt = 0; attempt < 50; ++attempt) {
      (void)renew();
      t_contention = {};
      const int before = sleeps;
      std::thread writer([this] {
        ::usleep(1000);
        EXPECT_EQ(::write(pipe[1], "x", 1), 1);
      });
      const bool told = waits();
      writer.join();
      char byte;
      EXPECT_EQ(::read(pipe[0], &byte, 1), 1);
      EXPECT_TRUE(told);
      if (told && sleeps == before) return true;
    }
    return false;
  }

  TcpPair pair;
  int pipe[2] = {-1, -1};
};

}  // namespace clan::preload
