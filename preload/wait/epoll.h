// epoll sets that hold sockets which may have moved (epoll.cc).
#pragma once

#include <sys/epoll.h>

#include <cstdint>

namespace clan::preload {

struct Socket;
struct SetSleep;

/// The socket has moved: the sets it is in watch for doorbells from now on.
void moved(Socket& s);
/// It has gone back to TCP: they watch what the application asked for.
void went_back(Socket& s);
/// A descriptor of the socket is closed or reused: the kernel takes it out of its sets, and so do we.
void left_descriptor(Socket& s, int fd);
/// For poll and select on an epoll descriptor: whether it holds sockets that have moved; whether epoll_wait
/// would say something of those; whether nothing holds in spite of the kernel, which saw doorbells; and,
/// before sleeping, as prepare_sleep() of a socket; and after it.
bool set_moved(int epfd);
bool set_ready(int epfd);
bool set_has_only_doorbells(int epfd);
SetSleep* set_prepare_sleep(int epfd, bool* sleeps);
void set_awake(SetSleep* sleep);
/// The calling thread has the lock of all sets, so the other end of this socket, which leaves its pipe, is
/// answered when the thread has let go of it. False: it has not.
bool put_off(int fd, Socket& s);
/// The socket stays on TCP for good: sets need not remember it, and one without others is the kernel's alone.
void stayed(Socket& s);
/// Sockets have been put into this epoll set.
bool known_epoll(int fd);
/// An epoll descriptor goes, or gets another name.
void forget_epoll(int fd);
void forget_epoll_range(unsigned first, unsigned last);
void duplicate_epoll(int from, int to);

/// A thread sleeps in epoll_wait on a set that holds the socket. `events`: and waits for any of these; 0 =
/// all.
bool watcher_sleeps(const Socket& s, std::uint32_t events);

/// Before fork, under the lock: what parent and child have to know of each other's use of a set. After it, in
/// the child.
void share_sets();
void sets_forked();
/// Locks for fork.
void lock_epoll();
void unlock_epoll();

}  // namespace clan::preload
