// Does a program load the library? When in doubt: no, and its connections go by TCP.
#pragma once

namespace clan::preload {

/// The environment names the library, and no setting tells the program to leave all sockets alone.
bool names_us(char* const* environment);

enum class Loader {
  /// the C library's: a dynamically linked program of this machine without privileges of its own
  kLoadsUs,
  kCannot,  ///< another C library's (musl), which does not start a program behind a library that is
            ///< not its
            ///< own
  kLeavesUs,  ///< there is none, or it takes nothing from LD_PRELOAD
};

/// Finds the loader of a program, or of a script's interpreter.
Loader loader_of(const char* path, int depth);

/// The program cannot start with the library: it gets an environment without it.
bool must_do_without_us(const char* path, char* const* environment);

bool is_preload(const char* variable);

/// LD_PRELOAD without the library, into `to`, which has as much room. False: nothing else is in it.
bool without_us(const char* variable, char* to);

}  // namespace clan::preload
