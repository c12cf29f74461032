// Socket options by which TCP does more with bytes than carry them, or bounds them: a pipe does
// not. docs/interposition.md describes the others.
#pragma once

#include <sys/socket.h>

#include "clan/face/reasons.h"

namespace clan::preload {

struct KernelsOption {
  int level, name;
  reasons::Why why;
  bool at_once;       ///< bytes that have been received and not read have to go back to TCP, too
  long long neutral;  ///< the value that does nothing; kNone: there is no such value
  bool can_be_asked;  ///< an accepted socket may have it from its listener

  static constexpr long long kNone = -2;
};

/// Finds the option. Null: none of these, or `value` is neutral.
const KernelsOption* kernels_option(int level, int name, const void* value, socklen_t size);

/// Returns the reason of an option that is set on a socket, by whatever program; or kNone.
reasons::Why why_by_option(int fd);

}  // namespace clan::preload
