// dlopen() and dlmopen(): modules that call the C library past the library.
//
// A module that is opened with RTLD_DEEPBIND, or into a namespace of its own, finds read() in the C
// library, and would read nothing of a moved connection. So before that, all connections go back to
// TCP, for good.
//
// The C library's functions use the search path and the namespace of their caller. So these end in
// a jump, which keeps the caller.
#include <dlfcn.h>

#include <atomic>

#include "clan/detail/log.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/process_end.h"

using namespace clan::preload;

namespace {

void before_bypass(const char* module) {
  static std::atomic<bool> told{false};
  KeepErrno keep;
  // relaxed: one thread logs it
  if (!told.exchange(true, std::memory_order_relaxed))
    CLAN_INFO(
        "%s is opened so that it calls the C library past CLAN (RTLD_DEEPBIND or dlmopen); "
        "connections of this process stay on TCP",
        module);
  if (!in_borrowed_memory()) enter_sandbox(clan::reasons::Why::kBypass);
}

}  // namespace

// Return the function to jump to.
extern "C" __attribute__((visibility("hidden"), used)) void* clan_before_dlopen(const char* module,
                                                                                int flags) {
  if (module != nullptr && (flags & RTLD_DEEPBIND) != 0) before_bypass(module);
  return reinterpret_cast<void*>(real().dlopen);
}
extern "C" __attribute__((visibility("hidden"), used)) void* clan_before_dlmopen(Lmid_t space,
                                                                                 const char* module,
                                                                                 int flags) {
  if (module != nullptr && (space != LM_ID_BASE || (flags & RTLD_DEEPBIND) != 0))
    before_bypass(module);
  return reinterpret_cast<void*>(real().dlmopen);
}

#define CLAN_JUMP(name, before)                                                              \
  ".globl " name "\n.type " name ", @function\n" name                                        \
  ":\n"                                                                                      \
  ".cfi_startproc\n"                                                                         \
  "endbr64\n"                                                                                \
  "pushq %rdi\n.cfi_adjust_cfa_offset 8\npushq %rsi\n.cfi_adjust_cfa_offset 8\npushq %rdx\n" \
  ".cfi_adjust_cfa_offset 8\n"                                                               \
  "call " before                                                                             \
  "\n"                                                                                       \
  "popq %rdx\n.cfi_adjust_cfa_offset -8\npopq %rsi\n.cfi_adjust_cfa_offset -8\npopq %rdi\n"  \
  ".cfi_adjust_cfa_offset -8\n"                                                              \
  "jmp *%rax\n"                                                                              \
  ".cfi_endproc\n.size " name ", .-" name "\n"

asm(".text\n" CLAN_JUMP("dlopen", "clan_before_dlopen")
        CLAN_JUMP("dlmopen", "clan_before_dlmopen"));
