// Forks of the process: every context is locked around one, and abandoned in the child.
//
// Thread-safe. The functions are entered with no lock held. The order of locks: the registry's,
// then those of each context.
#pragma once

namespace clan::engine {

class ContextCore;

/// From now on `context` takes part in forks.
void watch_forks(ContextCore* context);
/// No more. In a child it has been forgotten already.
void unwatch_forks(ContextCore* context);

}  // namespace clan::engine
