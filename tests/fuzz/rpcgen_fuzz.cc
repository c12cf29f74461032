// Any text as an .x file: read, or refused with a place; and if it was read, C is made of it.
#include <cstdint>
#include <string>

#include "rpcgen/model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace clan::rpcgen;
  try {
    const auto words = words_of("fuzz.x", std::string(reinterpret_cast<const char*>(data), size));
    const Model model(parse(words));
    (void)header_of(model, "GUARD");
    (void)codec_of(model, "fuzz.h");
    (void)client_of(model, "fuzz.h", hash_of(words));
    (void)server_of(model, "fuzz.h", hash_of(words));
  } catch (const Fault&) {
  }
  return 0;
}
