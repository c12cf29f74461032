// The table of descriptors: which Socket is behind each. Lock-free to read.
#pragma once

#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// A Socket in use by the calling thread.
class SocketRef {
 public:
  SocketRef() = default;
  explicit SocketRef(Socket* s) : s_(s) {}
  SocketRef(SocketRef&& o) noexcept : s_(o.s_) { o.s_ = nullptr; }
  SocketRef& operator=(SocketRef&&) = delete;
  ~SocketRef();
  explicit operator bool() const { return s_ != nullptr; }
  Socket* operator->() const { return s_; }
  Socket& operator*() const { return *s_; }
  Socket* get() const { return s_; }

 private:
  Socket* s_ = nullptr;
};

/// The Socket behind a descriptor, or none. Lock-free. `waits`: for a moment, where another thread
/// is closing it; not under a lock that a close takes.
SocketRef acquire(int fd, bool waits = true);

/// A TCP socket that has just appeared here. `nonblocking`: -1 unknown.
void adopt(int fd, bool client, int nonblocking);

/// A descriptor that came from another process: adopts it if it is a TCP socket.
void probe(int fd);

/// `to` names the same open file as `from`, which may be unknown. What `to` named before is
/// forgotten. False: there is no room in the table, and what is done by that number nobody sees.
[[nodiscard]] bool duplicate_entry(int from, int to);

/// The descriptor is about to be closed, or has been by somebody we did not see.
void forget(int fd);

void forget_range(unsigned first, unsigned last);

/// The calling thread closes a descriptor of a socket that has moved, as long as this lives. Behind
/// forget() the descriptor is the kernel's until it is closed: other threads that look for the
/// Socket wait for that, a moment at most.
class Closing {
 public:
  explicit Closing(int fd);
  ~Closing();
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

 private:
  int fd_, before_;
};

/// There is a Socket for this descriptor.
bool known(int fd);

/// No TCP socket, or one that stays on TCP for good.
bool is_the_kernels(int fd);

/// A TCP socket that stays on TCP for good and is in no set that remembers it: a glance.
bool no_set_need_know(int fd);

/// Calls `f(fd, Socket&)` for each known descriptor.
void for_each_socket(void (*f)(int fd, Socket& s, void* argument), void* argument);
/// Some descriptor of it, or -1.
int descriptor_of(Socket& s);

}  // namespace clan::preload
