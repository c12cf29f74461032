// Whether the calling process runs in memory of its own.
#pragma once

namespace clan::preload {

/// A child of vfork() runs in the memory of its parent, whose descriptors are not its own. Known of
/// a process that has called note_process() at its start, and after a fork.
bool in_borrowed_memory();
void note_process();

}  // namespace clan::preload
