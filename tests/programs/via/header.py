"""vipl.h compiles without a warning in every dialect of C and C++ that its programs have.

    header.py CC CXX INCLUDE
"""
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("dialects.c")


def main(cc, cxx, include):
    failed = 0
    for compiler, language, standards in (
        (cc, "c", "gnu89 gnu99 c11 gnu17"),
        (cxx, "c++", "c++98 c++11 c++14 c++17 c++20"),
    ):
        for standard in standards.split():
            command = [compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Werror",
                       "-fsyntax-only", f"-I{include}", str(SOURCE)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                print(f"{standard}: {result.stderr}")
                failed += 1
    return failed


sys.exit(main(*sys.argv[1:]))
