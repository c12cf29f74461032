// The C library's own functions, below ours.
//
// `real()` is for calls an application makes and we pass on: cancellation points and other
// interposers stay in force. What the library does for itself uses `sys::` (sys.h).
#pragma once

#include <aio.h>
#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace clan::preload {

/// The C library's function of each call that calls.def says is called below.
struct Real {
#define CLAN_CALL(result, name, parameters, test) result(*name) parameters = nullptr;
#include "calls.def"
};

/// Every pointer set. Looked up on the first call, by the thread that makes it.
const Real& real();

}  // namespace clan::preload
