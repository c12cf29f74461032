// The C library's own functions. `real()` is for calls of the application that we pass on, so that
// cancellation points and other interposers keep working. What the library does for itself uses
// `sys::` (sys.h).
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

struct Real {
#define CLAN_CALL(result, name, parameters, test) result(*name) parameters = nullptr;
#include "calls.def"
};

/// Returns the functions, which the first call looks up.
const Real& real();

}  // namespace clan::preload
