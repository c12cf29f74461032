// Programs that cannot start with the library.
#pragma once

namespace clan::preload {

/// Tells whether the program needs an environment without the library.
bool must_do_without_us(const char* path, char* const* environment);

bool is_preload(const char* variable);

/// Copies LD_PRELOAD without the library to `to`, which has as much room. False: nothing is left.
bool without_us(const char* variable, char* to);

}  // namespace clan::preload
