#!/usr/bin/env python3
"""Runs a GoogleTest program whose tests wait more than they compute as several processes at once.

    shards.py COUNT PROGRAM [ARGUMENT...]

Each process has its part of the tests; what they print follows one after the other. Exit code 1
when one of them fails.
"""
import os
import subprocess
import sys
import tempfile


def main():
    count, command = int(sys.argv[1]), sys.argv[2:]
    files = [tempfile.TemporaryFile() for _ in range(count)]
    shards = [
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                         env={**os.environ, "GTEST_TOTAL_SHARDS": str(count),
                              "GTEST_SHARD_INDEX": str(index)})
        for index, file in enumerate(files)
    ]
    failed = 0
    for index, (shard, file) in enumerate(zip(shards, files)):
        shard.wait()
        file.seek(0)
        print(f"--- part {index + 1} of {count}", flush=True)
        sys.stdout.buffer.write(file.read())
        sys.stdout.buffer.flush()
        if shard.returncode != 0:
            print(f"part {index + 1} ended with {shard.returncode}", flush=True)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
