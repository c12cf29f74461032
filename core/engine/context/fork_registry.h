// Forks of the process: every context is locked around one, and abandoned in the child.
//
// Thread-safe. The functions are entered with no lock held.
#pragma once

namespace clan::engine {

/// What takes part in a fork. The order of locks: the registry's, then those of each object.
class ForkAware {
 public:
  /// Before the fork: no other thread changes what the child will find.
  virtual void lock_for_fork() = 0;
  /// After it, in the parent and in the child.
  virtual void unlock_after_fork() = 0;
  /// In the child: the object is the parent's. Closes what it holds and answers "unusable" from now
  /// on.
  virtual void abandon_after_fork() = 0;

 protected:
  ~ForkAware() = default;
};

/// From now on `object` takes part in forks.
void watch_forks(ForkAware* object);
/// No more. In a child it has been forgotten already.
void unwatch_forks(ForkAware* object);

}  // namespace clan::engine
