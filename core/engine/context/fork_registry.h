// Locks every context around a fork, and abandons them in the child. Thread-safe; entered with no
// lock held. The order of locks: the registry's, then those of each context.
#pragma once

namespace clan::engine {

class ContextCore;

/// From now on `context` takes part in forks.
void watch_forks(ContextCore* context);
/// No more. In a child it has been forgotten already.
void unwatch_forks(ContextCore* context);

}  // namespace clan::engine
