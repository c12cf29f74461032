// What the modes of automatic update share with deliberate update.
#pragma once

#include "objects.h"

namespace clan::vmmc {

/// Checks whether the remote has all of that stretch.
bool has(const vmmc_remote& remote, const Stretch& what);

/// Rings the exporter's bell, if it has one. EAGAIN: the ring is full.
Status notify_exporter(const vmmc_remote& remote, const Stretch& what);

}  // namespace clan::vmmc
