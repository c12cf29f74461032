#!/usr/bin/env python3
"""What clan-rpcgen makes of every .x file in /usr/include is C that a compiler takes. --check says
of a file what making it would.

    rpcsvc.py CLAN-RPCGEN COMPILER INCLUDE...    (exit code 77: there are no such files here)
"""

import subprocess
import sys
import tempfile
from pathlib import Path


def main():
    generator, compiler, *includes = sys.argv[1:]
    files = sorted(Path("/usr/include").rglob("*.x"))
    if not files:
        print("no .x files in /usr/include")
        return 77
    with tempfile.TemporaryDirectory(prefix="clan-rpcsvc-") as directory:
        wrong = Path(directory, "wrong.x")
        wrong.write_text("struct s {\n  nowhere n;\n};\n")
        told = [subprocess.run([generator, *option, wrong], cwd=directory, capture_output=True,
                               text=True, timeout=60) for option in ((), ("--check",))]
        assert [done.returncode for done in told] == [1, 1], told
        assert f"{wrong}:2:11: " in told[0].stderr and told[0].stderr == told[1].stderr, told
        for file in files:
            subprocess.run([generator, "--check", file], check=True, timeout=60)
            subprocess.run([generator, "-o", f"{directory}/{file.stem}", file], check=True,
                           timeout=60)
            # <rpc/rpc.h> declares the same types, and is included for netbuf
            if file.name == "rpcb_prot.x":
                continue
            for part in ("slot", "clnt", "svc"):
                subprocess.run([compiler, "-fsyntax-only", *(f"-I{path}" for path in includes),
                                f"{directory}/{file.stem}_{part}.c"], check=True, timeout=60)
    print(f"{len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
