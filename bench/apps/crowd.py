"""Runs N copies of a redis-benchmark at once and prints the requests per second of all together.

    crowd.py N COMMAND... -n COUNT ...
"""

import subprocess
import sys
import time


def main():
    copies, command = int(sys.argv[1]), sys.argv[2:]
    count = int(command[command.index("-n") + 1])
    began = time.monotonic()
    processes = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
                 for _ in range(copies)]
    codes = [process.wait() for process in processes]
    print(f"requests/s {copies * count / (time.monotonic() - began):.1f}")
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
