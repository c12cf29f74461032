#!/usr/bin/env python3
"""The table of how a connection ends (ends.cc) says the same with the library as without: idle, and
beside three computations.

    ends.py PROGRAM LIBRARY
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

PROGRAM, LIBRARY = sys.argv[1:]
PARTS, COMPUTATIONS = 4, 3
TRIES = 3  # of a cell that differs: the two may have seen one thing at two times


def run(library, arguments):
    environment = dict(os.environ, **({"LD_PRELOAD": LIBRARY} if library else {}))
    done = subprocess.run([PROGRAM, *arguments], env=environment, text=True, timeout=300,
                          stdout=subprocess.PIPE)
    cells = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    return cells if done.returncode == 0 else {"ends": f"code {done.returncode}", **cells}


def table(library):
    with ThreadPoolExecutor(PARTS) as threads:
        parts = threads.map(lambda part: run(library, [str(part), str(PARTS)]), range(PARTS))
        return {name: said for part in parts for name, said in part.items()}


def differences(stock):
    said = table(True)
    for _ in range(TRIES):
        names = [name for name in {**stock, **said} if stock.get(name) != said.get(name)]
        if not names:
            return []
        stock.update(run(False, names))
        said.update(run(True, names))
    return [f"{name}\n  stock {stock.get(name)}\n  clan  {said.get(name)}" for name in names
            if stock.get(name) != said.get(name)]


def main():
    stock = table(False)
    wrong = ["idle: " + line for line in differences(stock)]
    computations = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    for _ in range(COMPUTATIONS)]
    try:
        wrong += ["beside computations: " + line for line in differences(stock)]
    finally:
        for one in computations:
            one.kill()
            one.wait()
    skipped = sum(said == "may not" for said in stock.values())
    if skipped:
        print(f"{skipped} cells are skipped: SOCK_DESTROY is refused, or this kernel has none")
    print("\n".join(wrong))
    print(f"{len(stock) - skipped} cells, {len(wrong)} differences")
    return 1 if wrong or len(stock) < 1150 else 0


if __name__ == "__main__":
    sys.exit(main())
