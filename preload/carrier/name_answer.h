// What a host says that has been asked for a name of AF_CLAN: eight bytes before the connection's
// own, "CLNM", a version, 0, and an errno of 16 bits (big-endian), 0 if it has been through. To the
// one that asked they are input.
#pragma once

#include <array>
#include <cstddef>

namespace clan::preload {

using NameAnswer = std::array<std::byte, 8>;

NameAnswer answer_of(int error);

/// What connect() is to say of it: 0, ECONNREFUSED, EACCES, or EPROTO if it is no answer.
int error_in(const NameAnswer& answer);

}  // namespace clan::preload
