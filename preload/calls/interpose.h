// Macros that define the calls of calls.def.
#pragma once

#include "os/cancel.h"
#include "os/sys.h"

#define CLAN_INTERPOSE extern "C" __attribute__((visibility("default")))

/// Defers the cancellation of a thread that may be cancelled at any instruction (os/cancel.h). The
/// function itself has nothing to clean up, so it may be left anywhere.
#define CLAN_ENTRY(result, name, parameters, arguments, inner)  \
  CLAN_INTERPOSE result entry_##name parameters __asm__(#name); \
  CLAN_INTERPOSE result entry_##name parameters {               \
    if (!::clan::preload::t_cancelled_at_once) [[likely]]       \
      return inner##name arguments;                             \
    ::clan::preload::defer_cancel();                            \
    const result rc = inner##name arguments;                    \
    ::clan::preload::cancel_at_once();                          \
    return rc;                                                  \
  }

/// Defines a call that keeps errno unless it fails, with -1.
#define CLAN_INTERPOSED(result, name, parameters, arguments)                                  \
  static result call_##name parameters;                                                       \
  [[gnu::noinline]] static result kept_##name parameters {                                    \
    return ::clan::preload::keeping_errno([&]() -> result { return call_##name arguments; }); \
  }                                                                                           \
  CLAN_ENTRY(result, name, parameters, arguments, kept_)                                      \
  static result call_##name parameters

/// Does the same for a call that moves bytes and keeps errno by itself (counted_call.h).
#define CLAN_INTERPOSED_BYTES(result, name, parameters, arguments) \
  [[gnu::noinline]] static result call_##name parameters;          \
  CLAN_ENTRY(result, name, parameters, arguments, call_)           \
  static result call_##name parameters
