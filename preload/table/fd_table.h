// The Socket behind each descriptor. Reads take no lock.
#pragma once

#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// A reference to a Socket.
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

/// Returns the Socket behind a descriptor, if any. Lock-free. `waits`: for a moment if another
/// thread is closing it; not under a lock that a close takes.
SocketRef acquire(int fd, bool waits = true);

/// Adds a new TCP socket. `nonblocking`: -1 unknown.
void adopt(int fd, bool client, int nonblocking);

/// Adopts a descriptor that came from another process, if it is a TCP socket.
void probe(int fd);

/// Makes `to` name the open file of `from`, which may be unknown. Forgets what `to` named before.
/// False: the table has no room, and calls by that number pass unnoticed.
[[nodiscard]] bool duplicate_entry(int from, int to);

/// Forgets a descriptor that is about to be closed, or was closed unseen.
void forget(int fd);

void forget_range(unsigned first, unsigned last);

/// Marks, while it lives, a descriptor of a moved socket that this thread closes. From forget()
/// until the kernel has closed it, threads that look for the Socket wait, for a moment at most.
class Closing {
 public:
  explicit Closing(int fd);
  ~Closing();
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;

 private:
  int fd_, before_;
};

/// Whether there is a Socket for this descriptor.
bool known(int fd);

/// Whether it is no TCP socket, or stays on TCP for good.
bool is_the_kernels(int fd);

/// Whether it is a TCP socket that stays there for good and no set remembers.
bool no_set_need_know(int fd);

/// Calls `f(fd, Socket&)` for each known descriptor.
void for_each_socket(void (*f)(int fd, Socket& s, void* argument), void* argument);
template <typename F>
void for_each_socket(F f) {
  for_each_socket([](int fd, Socket& s, void* call) { (*static_cast<F*>(call))(fd, s); }, &f);
}
/// Returns some descriptor of it, or -1.
int descriptor_of(Socket& s);

}  // namespace clan::preload
