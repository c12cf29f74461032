// Options of sockets by which TCP does more with bytes than carry them, or bounds them: a pipe does
// not. docs/interposition.md says what becomes of the others.
#pragma once

#include <sys/socket.h>

#include "clan/face/reasons.h"

namespace clan::preload {

struct KernelsOption {
  int level, name;
  reasons::Why why;
  bool at_once;       ///< what has been sent to us and not read is to be TCP's, too, when it is set
  long long neutral;  ///< with this value it does nothing; kNone: there is no such value
  /// The kernel says how it is set: an accepted socket may have it from its listener.
  bool can_be_asked;

  static constexpr long long kNone = -2;
};

/// Null: it is none of these, or `value` is neutral.
const KernelsOption* kernels_option(int level, int name, const void* value, socklen_t size);

/// What is set on a socket, by whatever program; kNone: nothing.
reasons::Why why_by_option(int fd);

}  // namespace clan::preload
