#!/usr/bin/env python3
"""`clan bench crowd` names its rows, and measures those that are asked for. No figure is judged.

    crowd_test.py CLAN
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROW = "block 1 pair unpinned nice 19"


def run(clan, *words, code=0):
    done = subprocess.run([clan, "bench", "crowd", *map(str, words)], capture_output=True,
                          text=True, timeout=100, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == code, done
    return done


def quick_has_fewer_rows_than_all(clan):
    rows = {words: run(clan, "--list", *words).stdout.splitlines() for words in ((), ("--quick", ))}
    assert ROW in rows["--quick", ], rows
    assert set(rows["--quick", ]) < set(rows[()]), rows


def a_row_is_measured_over_each_carrier_and_written(clan):
    with tempfile.TemporaryDirectory() as top:
        out = Path(top, "samples")
        said = run(clan, "--only", f"^{ROW}$", "--rounds", 1, "--seconds", 0.2, "-o", out).stdout
        samples = json.loads(out.read_text())
        assert set(samples) == {f"{ROW}, {column}" for column in ("tcp", "unix", "clan")}, said
        for figures in samples.values():
            assert len(figures) == 1 and figures[0]["rate"] > 0, samples
            assert 0 <= figures[0]["near"] <= 1 and figures[0]["p50"] <= figures[0]["p99"], samples


def main():
    clan = sys.argv[1]
    quick_has_fewer_rows_than_all(clan)
    a_row_is_measured_over_each_carrier_and_written(clan)


if __name__ == "__main__":
    main()
