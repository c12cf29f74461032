// Fuzzes the answer of a host that has been asked for a name of AF_CLAN (carrier/name_answer.h):
// whatever it is, connect() says one of what it may say, and 0 only to the very bytes that mean it.
#include <cerrno>
#include <cstdlib>

#include "carrier/name_answer.h"
#include "input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace clan::preload;
  clan::fuzz::Input in(data, size);
  while (!in.empty()) {
    const auto answer = in.take<NameAnswer>();
    const int error = error_in(answer);
    if (error != 0 && error != ECONNREFUSED && error != EACCES && error != EPROTO) std::abort();
    if ((error == 0) != (answer == answer_of(0))) std::abort();
    if ((error == EACCES) != (answer == answer_of(EACCES))) std::abort();
  }
  return 0;
}
