#include "clan/detail/preemption.h"

#if defined(CLAN_HAS_RSEQ)
// The kernel checks this descriptor before it checks the thread's address: version and flags 0, an
// abort address outside the sequence, and before that the C library's signature.
asm(R"(
  .pushsection .text.clan_rseq_never_run, "ax", @progbits
  .balign 16
clan_rseq_start:
  nop
  .long 0x53053053
clan_rseq_abort:
  ud2
  .popsection

  .pushsection .data.rel.ro.clan_rseq_never_run, "aw", @progbits
  .balign 32
  .globl clan_rseq_never_run
  .type clan_rseq_never_run, @object
  .size clan_rseq_never_run, 32
clan_rseq_never_run:
  .long 0, 0
  .quad clan_rseq_start, 1, clan_rseq_abort
  .popsection
)");

static_assert(RSEQ_SIG == 0x53053053);
#endif
