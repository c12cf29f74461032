"""`clan bench ofi`: CLAN's provider beside libfabric's own, and Open MPI over it beside its own
transports.

See rows.py for what is measured and what is wanted of it, README.md for how to read it.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

import arguments
import loads
import rows

HERE = Path(__file__).resolve().parent


def programs_of_fabtests(text):
    for path in (Path(text), Path(text, "bin")):
        if (path / "fi_rdm_pingpong").exists():
            return path.resolve()
    raise argparse.ArgumentTypeError(f'"{text}" has no fi_rdm_pingpong')


def chosen(text, known):
    """The rows that `--only TEXT` names: whole groups, or lines of them. Lines have commas in their
    names."""
    lines = {point.text: (row, point) for row in known.values() for point in row.points}
    words, rows_ = text.split(","), {}
    while words:
        for n in range(len(words), 0, -1):
            name = ",".join(words[:n]).strip()
            if name in known or name in lines:
                break
        else:
            raise KeyError(words[0].strip())
        row, *points = (known[name], *known[name].points) if name in known else lines[name]
        rows_.setdefault(row.name, []).extend(p for p in points if p not in rows_[row.name])
        words = words[n:]
    return [dataclasses.replace(known[name], points=points) for name, points in rows_.items()]


def parse():
    parser = arguments.Parser(
        "ofi", "CLAN's libfabric provider beside shm and tcp;ofi_rxm, by libfabric's public "
        "interface, and Open MPI over CLAN beside its own transports: all in turns.")
    parser.add_list()
    parser.add_argument(
        "--only", metavar="NAME,...",
        help="only these groups (tagged) or lines (\"fetch-and-add 8 B\") of --list")
    parser.add_lengths("{} rounds of {} ms a turn", rounds=(5, 3), ms=(12, 6))
    parser.add_argument("--fabtests", type=programs_of_fabtests, metavar="DIR",
                        help="also by the programs of fabtests, which are in DIR")
    parser.add_argument("--provider-path", type=Path, help=argparse.SUPPRESS,
                        default=HERE.parent.parent / "libfabric")
    options = parser.parse()
    known = {row.name: row for row in rows.ROWS}
    if options.fabtests or (options.list and options.only is None):
        known[rows.FABTESTS.name] = rows.FABTESTS
    try:
        options.rows = list(known.values()) if options.only is None else chosen(options.only, known)
    except KeyError as unknown:
        name = unknown.args[0]
        why = "needs --fabtests" if name == rows.FABTESTS.name else "is no group and no line of one"
        parser.error(f'"{name}" {why}; `clan bench ofi --list` has all')
    options.load, options.mpi_load = HERE / "clan-ofi-load", HERE / "clan-mpi-load"
    options.environment = {"FI_PROVIDER_PATH": str(options.provider_path)}
    return options


def main():
    options = parse()
    if not options.list and not options.load.exists():
        print("clan bench ofi: clan-ofi-load was not built.", file=sys.stderr)
        return 1
    return rows.run("ofi", "libfabric and Open MPI", HERE, options,
                      f"{options.rounds} rounds of {loads.TURNS} turns of {options.ms} ms",
                      after_row=lambda pid: loads.remove_segments(f"{pid}:*"))


if __name__ == "__main__":
    sys.exit(main())
