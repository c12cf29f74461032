#!/usr/bin/env python3
"""`clan bench crowd` names its rows, and measures those that are asked for. No figure is judged.

    crowd_test.py CLAN
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench/support"))

import report

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


def a_row_is_measured_over_each_carrier_and_written_in_the_one_form(clan):
    with tempfile.TemporaryDirectory() as top:
        said = run(clan, "--only", f"^{ROW}$", "--rounds", 1, "--seconds", 0.2, "-o", top).stdout
        data = json.loads(Path(top, "crowd.json").read_text())
    assert data["version"] == report.VERSION and data["bench"] == "crowd", data
    figures = {}
    for row in report.rows_of(data):
        assert row.text == ROW and len(row.samples) == 1, row
        figures.setdefault(row.variant, []).append(row.value)
    assert set(figures) == {"tcp", "unix", "clan"} and ROW in said, said
    for rate, p50, p99, _, near, _ in figures.values():
        assert rate > 0 and 0 <= near <= 1 and p50 <= p99, figures
    line, = data["items"]["rate"]["lines"]
    assert set(line["ratios"]) == {"clan/tcp", "clan/unix"}, line


def main():
    clan = sys.argv[1]
    quick_has_fewer_rows_than_all(clan)
    a_row_is_measured_over_each_carrier_and_written_in_the_one_form(clan)


if __name__ == "__main__":
    main()
