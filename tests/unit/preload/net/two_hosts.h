// Two hosts of a test of carriers: both in this process, over loopback.
#pragma once

#include <clan/context.h>

#include "support/loopback.h"

namespace clan::preload {

/// What both are made with; a directory port that nobody else has.
inline ContextOptions options_of_two_hosts() {
  ContextOptions options;
  options.wait.mode = WaitOptions::Mode::kSleep;
  options.network.enabled = true;
  options.network.mode = NetworkOptions::Mode::kOff;
  options.network.directory_port = test::free_udp_port();
  return options;
}

}  // namespace clan::preload
