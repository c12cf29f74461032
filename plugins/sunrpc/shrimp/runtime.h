// What there is one of in a process that uses generated stubs.
#pragma once

#include <clan/context.h>
#include <sys/types.h>

#include <string>

namespace clan::shrimp {

/// Made when first asked for, in each process anew; null: there can be none.
Context* process_context();

/// As getpid(), without a system call.
pid_t process_id();

inline std::string service_name(const char* name) { return std::string("shrimp.") + name; }

}  // namespace clan::shrimp
