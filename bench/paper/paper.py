"""`clan bench paper`: every figure and table of the five papers, measured in one run.

For each item it prints what the paper claims and whether the shape holds: a line each, met or
missed. What is missed or not judged is measured again, twice at most, and the best counts. With
-o DIR it writes paper.json, a plot per figure and index.html there. README.md has more.
"""

import dataclasses
import signal
import sys
import tempfile
import time
from pathlib import Path

import arguments
import found
import items
import items_clan
import items_others
import page
import report
import sources

AGAIN = 2   # that a source is measured again
ITEMS = (*items_clan.CLAN, *items_clan.DRIVER, *items_clan.VIA, *items_others.SHRIMP,
         *items_others.UNET)


def parse():
    parser = arguments.Parser("paper", __doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--list", action="store_true",
                        help="each item: measured by what, drawn where, or neither and why")
    parser.add_argument("--only", metavar="NAME,...",
                        help="only these items of --list, or all of a paper: "
                        + ", ".join([*items.PAPERS, "readme"]))
    parser.add_argument("--quick", action="store_true", help="short samples: under 10 minutes")
    parser.add_argument("--smoke", action="store_true",
                        help="a few iterations: does everything run?")
    options = parser.parse()
    options.items = list(ITEMS)
    if options.only is not None:
        try:
            options.items = items.find((*ITEMS, *items_others.README), options.only.split(","))
        except ValueError as why:
            parser.error(str(why))
    options.length = "smoke" if options.smoke else "quick" if options.quick else "full"
    if options.smoke:
        options.items = [dataclasses.replace(item, peers=(), limits=()) for item in options.items]
    return options


def listed(item, absent):
    """The state of an item, without a run; `absent` has why sources cannot run."""
    if item.drawn:
        return f"drawn      {item.drawn}"
    there = [name for name in item.sources if not absent[name]]
    if not there:
        return f"skipped    {item.missing or absent[item.sources[0]]}"
    beside = [name for name in item.others if not absent[name]]
    return (f"measured   by {', '.join(there)}" + f"; beside {', '.join(beside)}" * bool(beside)
            + "".join(f"; {absent[name]}" for name in (*item.sources, *item.others)
                      if absent[name]))


def print_list(options, run):
    absent = {name: sources.absent(run, name)
              for item in options.items for name in (*item.sources, *item.others)}
    for item in options.items:
        print(f"{item.name:<22} {item.title:<58} {listed(item, absent)}")
    return 0


class Measured:
    """The rows of the sources that have run, and why others have none."""

    def __init__(self, run):
        self.run, self.rows, self.reasons, self.failed = run, {}, {}, []

    def measure(self, names):
        for name in names:
            began = time.monotonic()
            try:
                self.rows[name] = sources.measured(self.run, name)
                said = f"{len(self.rows[name])} rows"
            except sources.Unavailable as why:
                said = self.reasons[name] = str(why)
            except (sources.Failed, OSError, ValueError, KeyError) as why:
                said = self.reasons[name] = f"failed: {why}"
                self.failed.append(name)
            print(f"{name}: {said} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)

    def results(self, chosen):
        return [found.result_of(item, self.rows, self.reasons, self.run.skips) for item in chosen]


def run_items(options, measured):
    """The results: of each item the best of at most three measurements."""
    measured.measure(dict.fromkeys(name for item in options.items
                                   for name in (*item.sources, *item.others)))
    results = measured.results(options.items)
    for turn in range(2, 2 if options.length == "smoke" else 2 + AGAIN):
        spoilt = [result for result in results if found.spoilt(result)]
        if not spoilt:
            break
        measured.measure(dict.fromkeys(name for one in spoilt for name in one.item.sources))
        fresh = {result.item: result for result in measured.results([r.item for r in spoilt])}
        results = [min(r, fresh.get(r.item, r), key=found.spoilt) for r in results]
        for result in results:
            result.times = turn if result.item in fresh else result.times
    return results


def print_result(result):
    if result.state == "drawn":
        return
    print(f"\n{result.item.name}: {result.item.title}")
    if result.state == "skipped":
        print(f"  skipped: {result.reason}")
        return
    print(f"  {result.item.claim}")
    for text, verdict, figure in result.lines:
        print(f"  {verdict:<10} {text}: {figure}")
    if result.times > 1:
        print(f"  measured {result.times} times: the best counts")
    for text in result.absent:
        print(f"  without    {text}")


LENGTHS = {"smoke": "a smoke run: its figures mean nothing", "quick": "a quick run",
           "full": "a full run"}


def describe(options):
    """The machine before anything runs, and what disturbs it."""
    machine = report.describe_machine(Path(__file__).resolve().parent, options.cores)
    warnings = []
    if report.busy(machine):
        warnings.append(f"Other work was running here (load {machine['load'].split()[0]}): rates "
                        "and 99th percentiles show it.")
    return {"machine": machine, "warnings": warnings}


def main():
    options = parse()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    arguments.end_as_by_interrupt()
    if options.clan is None:
        print("clan bench paper: run it as `clan bench paper`", file=sys.stderr)
        return 2
    began, about = time.monotonic(), describe(options)
    with tempfile.TemporaryDirectory(prefix="clan-bench-paper-") as directory:
        run = sources.Run(Path(options.clan).resolve(), Path(__file__).resolve().parent.parent,
                          options.cores, options.length, Path(directory), options.list)
        if options.list:
            return print_list(options, run)
        measured = Measured(run)
        results = run_items(options, measured)
    for result in results:
        print_result(result)
    failed = [f"{name}: {measured.reasons[name]}" for name in measured.failed]
    failed += found.missing(results)
    for what in failed:
        print(f"\nfailed: {what}")
    busy = found.busy(results)
    if busy and options.length != "smoke":
        about["warnings"].append(f"{busy} points were measured beside other work, or in two "
                                 "regimes: what is missed may be missed for that.")
    about["how"] = f"{LENGTHS[options.length]}, {time.monotonic() - began:.0f} s"
    print("\n" + "\n".join([about["how"], *about["warnings"]]))
    if options.output:
        try:
            page.write(results, about, options.output)
        except OSError as error:
            print(f"clan bench paper: cannot write to {options.output}: {error.strerror}",
                  file=sys.stderr)
            return 1
        print(f"Written: {options.output}/index.html, paper.json and a plot per figure")
    print(found.summary(results))
    if options.length == "smoke" and all(result.state == "skipped" for result in results):
        return 77
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
