#include "stream/far_wait.h"

#include "far/carrier.h"

namespace clan::preload {

bool fetch_packets() { return look_at_network(); }

void leave_packets() { leave_network(); }

}  // namespace clan::preload
