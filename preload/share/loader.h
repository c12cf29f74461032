// Programs that cannot start with the library.
#pragma once

namespace clan::preload {

/// The program cannot start with the library: it gets an environment without it.
bool must_do_without_us(const char* path, char* const* environment);

bool is_preload(const char* variable);

/// LD_PRELOAD without the library, into `to`, which has as much room. False: nothing else is in it.
bool without_us(const char* variable, char* to);

}  // namespace clan::preload
