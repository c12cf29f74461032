// A child of vfork() runs in the memory of its parent, whose descriptors are not its own.
#pragma once

namespace clan::preload {

/// Tells whether the calling process is such a child.
bool in_borrowed_memory();
/// Says that this process owns its memory: at its start and after a fork.
void note_process();

}  // namespace clan::preload
