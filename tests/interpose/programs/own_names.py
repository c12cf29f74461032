#!/usr/bin/env python3
"""Programs that define every name that the library interposes run as they do without it.

    own_names.py CC NM CLAN LIBRARY

The names are those the library exports. Each is defined in the program by a few instructions that
check the caller: the library itself must not. Then they go on to the next definition: the same
name, or, as Erlang's VM and others have it, the C library's second name (__sigaction, __read).
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import imports

HERE = Path(__file__).resolve().parent

# All registers that carry arguments are kept, and the call goes on where own_target() says.
STUB = """
.globl {name}
.type {name}, @function
{name}:
  pushq %rbp
  movq %rsp, %rbp
  pushq %rax; pushq %rdi; pushq %rsi; pushq %rdx; pushq %rcx; pushq %r8; pushq %r9; pushq %r10
  subq $128, %rsp
  movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)
  movl ${index}, %edi
  movq 8(%rbp), %rsi
  call own_target
  movq %rax, %r11
  movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7
  addq $128, %rsp
  popq %r10; popq %r9; popq %r8; popq %rcx; popq %rdx; popq %rsi; popq %rdi; popq %rax
  popq %rbp
  jmp *%r11
"""


def build(cc, nm, library, top):
    names = sorted(n for n in imports.defined(nm, library) if re.fullmatch(r"\w+", n))
    # A second name may end in the program's own first one; so of a pair only one is the program's.
    pairs = {n: "__" + n for n in names if "__" + n in names}
    first = [n for n in names if n not in pairs.values()]
    stubs = "".join(STUB.format(name=n, index=i) for i, n in enumerate(first))
    (top / "stubs.S").write_text(".text\n" + stubs + '.section .note.GNU-stack,"",@progbits\n')
    rows = "".join(f'  {{"{n}", "{pairs.get(n, n)}"}},\n' for n in first)
    (top / "names.h").write_text(
        f"static const struct {{ const char *name, *second; }} own_names[] = {{\n{rows}}};\n")
    program = top / "own_names"
    subprocess.run([
        cc, "-x", "c", "-O1", "-fno-builtin", "-U_FORTIFY_SOURCE", "-pthread", "-rdynamic",
        f"-I{top}", "-o", program, HERE / "own_names.c", "-x", "assembler", top / "stubs.S", "-ldl"
    ], check=True)
    return program, len(first)


def main():
    cc, nm, clan, library = sys.argv[1:5]
    if os.uname().machine != "x86_64":
        return 77
    said = {}
    with tempfile.TemporaryDirectory() as top:
        program, count = build(cc, nm, library, Path(top))
        for way in ("same", "second"):
            for face, command in (("stock", []), ("clan", [clan, "run"]),
                                  ("disabled", [clan, "run", "--disable"])):
                env = {**os.environ, "OWN_NAMES": way, "CLAN_LOG": "warn"}
                done = subprocess.run([*command, program], capture_output=True, text=True,
                                      timeout=60, env=env)
                said[way, face] = done.returncode, done.stdout, done.stderr
    expected = said["same", "stock"][1].replace("moved 0", "moved {}")
    wrong = []
    for (way, face), (code, out, err) in said.items():
        moved = 1 if face == "clan" else 0
        if code != 0 or err or not out.endswith(
                f"moved {moved}\n") or out != expected.format(moved):
            wrong.append(f"{way}, {face}: code {code}\n{out}{err}")
    print(f"{count} names defined by the program:", *sorted(expected.splitlines()[:-1]), sep="\n  ")
    print(*wrong, sep="\n")
    return 1 if wrong or count < 90 else 0


if __name__ == "__main__":
    sys.exit(main())
