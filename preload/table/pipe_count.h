// How many pipes the user of this process has, all processes together (clan/face/pipe_memory.h).
#pragma once

#include <cstdint>

namespace clan::preload {

/// Where a pipe has been counted: a semaphore of each set, from 1 on. 0: not there.
struct PipeCharge {
  std::uint8_t of_user = 0, of_group = 0;
};

/// One more pipe, and one less. A charge is its process's own: a child of fork has none.
PipeCharge charge_pipe();
void discharge_pipe(PipeCharge charge);
/// The bytes that one pipe may hold when all there are do, and `more`, as they are counted now.
/// `here`: so many this process has, which is all that is known where the kernel has no semaphores
/// for us.
std::uint64_t share_of_pipe(std::uint64_t here, std::uint64_t more = 0);
/// The process may not make the calls for it any more. What it has counted stays until it ends.
void stop_counting_pipes();
/// After fork, in the child.
void pipe_count_forked();

}  // namespace clan::preload
