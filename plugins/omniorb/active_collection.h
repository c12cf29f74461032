// ActiveCollection: the connections of clients that carry calls in both directions. A thread of the
// ORB watches them.
//
// Thread-safety: any thread; Monitor() is called by one at a time.
#pragma once

#include <memory>
#include <mutex>

#include "watcher.h"

namespace clan::orb {

class ActiveCollection final : public omni::giopActiveCollection {
 public:
  ActiveCollection() { last_ = this; }
  const char* type() const override { return "giop:clan"; }
  void Monitor(omni::giopConnection::notifyReadable_t tell, void* cookie) override;
  _CORBA_Boolean isEmpty() const override;
  void deactivate() override;

  /// A connection is to be watched. False: it cannot be.
  bool add(Context& context, Channel& channel, omni::giopConnection* connection);
  void remove();
  /// Nothing is watched any more: lets go of the engine.
  void end();

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Watcher> watcher_;  ///< made for the first one
  int count_ = 0;
  bool stopped_ = false;
  static inline std::atomic<ActiveCollection*> last_{nullptr};
  ActiveCollection* const before_ = last_;  ///< they are kept; a search for lost memory finds them
};

}  // namespace clan::orb
