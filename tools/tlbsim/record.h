// Recording: what a program sends from and receives into becomes a trace.
//
// libclan-record.so (recorder.cc), loaded into the program and all that it starts, writes the
// accesses. A process is an address space. A program that is linked statically, or calls the kernel
// past the C library, leaves no trace.
#pragma once

#include <string>
#include <vector>

#include "trace.h"

namespace clan::tlbsim {

/// Runs a command, and waits for it; its trace goes to the file `path`, "-": the standard output.
/// Fails if the file cannot be written, the library is missing, or the command cannot be started.
Status record(const std::vector<std::string>& command, const std::string& path);

}  // namespace clan::tlbsim
