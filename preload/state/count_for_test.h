// What went by shared memory, added up for tests (os/test_settings.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Both ends count what they find that the other one has not counted: at close, exit and _exit. A
/// process that is killed counts nothing.
void count_for_test(Socket& s);

}  // namespace clan::preload
