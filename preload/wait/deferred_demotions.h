// Answers to peers that go back to TCP: they may take long, so a thread that has the lock of all
// sets puts them off.
#pragma once

#include "state/socket.h"

namespace clan::preload {

struct OwedAnswers {
  static constexpr int kMost = 8;  ///< what finds no place is found at the next check of the socket
  bool putting_off;
  int count;
  struct {
    int fd;
    Socket* socket;
  } to[kMost];
};
// initial-exec: asked on the data path
extern constinit thread_local OwedAnswers t_owed __attribute__((tls_model("initial-exec")));

/// Does what has been put off.
void pay_owed_answers();

/// The calling thread has the lock of all sets, so the other end of this socket, which leaves its
/// pipe, is answered when the thread has let go of it. False: it has not.
bool put_off(int fd, Socket& s);

}  // namespace clan::preload
