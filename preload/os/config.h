// The settings: CLAN_* variables and the configuration file, read once, when the first TCP socket
// appears. Only disable() changes them later.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "clan/face/settings.h"

namespace clan::preload {

/// The length of an offer's name in CLAN_DIR: clan1-0123456789abcdef.
constexpr std::size_t kOfferName = 22;

struct Config : Settings {
  std::atomic<bool> disabled{false};

  /// Tells whether processes of this user may share memory with us.
  bool allows_uid(uid_t uid) const;
  /// Tells whether the number stands for any user that our user namespace does not map. Such a user
  /// is never allowed.
  bool is_anybody(uid_t uid) const;
  uid_t overflow_uid = 65534;
};

const Config& config();
/// Makes this process leave new connections alone.
void disable();

}  // namespace clan::preload
