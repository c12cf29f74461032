// Counts the pipes of this user in all its processes (clan/face/pipe_memory.h).
#pragma once

#include <cstdint>

namespace clan::preload {

/// Where a pipe is counted: a semaphore of each set, from 1 on. 0: nowhere.
struct PipeCharge {
  std::uint8_t of_user = 0, of_group = 0;
};

/// Count a pipe, and stop counting it. A child of fork has none of the parent's charges.
PipeCharge charge_pipe();
void discharge_pipe(PipeCharge charge);
/// Returns the bytes that each pipe may hold if `more` join those counted now. `here`: pipes of
/// this process, which is all that is known without semaphores.
std::uint64_t share_of_pipe(std::uint64_t here, std::uint64_t more = 0);
/// Stops counting when the process gives up these calls. What it counted stays until it ends.
void stop_counting_pipes();
/// After fork, in the child.
void pipe_count_forked();

}  // namespace clan::preload
