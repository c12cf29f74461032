// What the user asked for: CLAN_* variables and the configuration file, read once when the first
// TCP socket appears. Never changes after that, but for disable().
#pragma once

#include <sys/types.h>

#include <atomic>

#include "clan/face/settings.h"

namespace clan::preload {

using clan::kFileBytes;

/// The length of an offer's name in CLAN_DIR: clan1-0123456789abcdef.
constexpr std::size_t kOfferName = 22;

/// What was asked for, and what became of it.
struct Config : Settings {
  std::atomic<bool> disabled{false};

  /// Whether processes of this user may share memory with us. Never the one by whose number the
  /// kernel shows every user that is not in our user namespace: it may be any of these.
  bool allows_uid(uid_t uid) const;
  /// The number stands for any user that our user namespace does not have.
  bool is_anybody(uid_t uid) const;
  uid_t overflow_uid = 65534;
};

const Config& config();
/// From now on this process leaves new connections alone.
void disable();

}  // namespace clan::preload
