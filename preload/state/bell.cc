#include "state/bell.h"

#include <cstring>

#include "os/sys.h"

namespace clan::preload {

void Bells::reset() {
  for (KeptFd* fd : {&bell_set, &bell, &others_bell}) {
    if (const int number = fd->take(); number >= 0) sys::close(number);
  }
}

}  // namespace clan::preload
