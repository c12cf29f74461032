#include "carrier/name_answer.h"

#include <cerrno>

namespace clan::preload {

NameAnswer answer_of(int error) {
  return {std::byte{'C'},
          std::byte{'L'},
          std::byte{'N'},
          std::byte{'M'},
          std::byte{1},
          std::byte{0},
          std::byte(error >> 8 & 0xff),
          std::byte(error & 0xff)};
}

int error_in(const NameAnswer& answer) {
  const int error = std::to_integer<int>(answer[6]) << 8 | std::to_integer<int>(answer[7]);
  if (answer_of(error) != answer) return EPROTO;
  return error == 0 || error == ECONNREFUSED || error == EACCES ? error : ECONNREFUSED;
}

}  // namespace clan::preload
