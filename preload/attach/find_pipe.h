// The pipe of a connection that another process has moved.
#pragma once

#include <cstdint>
#include <span>

#include "clan/face/pipe.h"

namespace clan::preload {

/// The memfd of a pipe, as /proc shows it.
constexpr char kPipeLink[] = "/memfd:clan-pipe (deleted)";

/// The pipe of a connection, by the cookie of our end of it: from a process that has it, as the
/// peer does at least. -1: none has it that may be asked.
int find_pipe(std::uint64_t cookie, int* end);

/// Does the same with memfds that a process has passed; returns a new descriptor.
int find_among(std::span<const int> memfds, std::uint64_t cookie, int* end);

/// `end` of the pipe behind a memfd, if that is the one of the socket with this cookie. Takes the
/// memfd.
Result<Pipe> open_pipe_of(int memfd, int end, std::uint64_t cookie);

}  // namespace clan::preload
