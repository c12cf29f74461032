#!/usr/bin/env python3
"""Weakens the memory orders of core/nic/wakeup.h one at a time, and says which test turns red.

    order_mutants.py [--cxx CXX] [--only REGEX] [--without-threads]

Every order that is not relaxed becomes relaxed, and every call of a fence nothing, in a copy of the
header that chooses at run time. Two programs are made of it: the model of wakeup_model_test.cc,
which knows machines with store buffers (x86), and wakeup_race_test.cc under ThreadSanitizer, which
knows what one thread may rely on of another. A line for each mutant: what has noticed it. Those
that nothing notices are in UNNOTICED with the reason; exit code 1 when that is not so any more.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = "core/nic/wakeup.h"
ORDER = re.compile(r"std::memory_order_(seq_cst|acq_rel|acquire|release)\b")
FENCE = re.compile(r"Fence::(heavy|light)\(\);")
FUNCTION = re.compile(r"^(?:\w[\w:<> ]*[ >])?(\w+)\([^;]*\) \{$")
OPERATION = re.compile(r"([\w.]+)(?:\[[^\]]*\])?\.(load|store|exchange|fetch_\w+)\(")

# What is added in front of the templates. -1: the header as it is.
CHOICE = """
#include <cstdlib>
namespace clan::nic {
inline int mutant() {
  static const int chosen = [] {
    const char* text = std::getenv("CLAN_ORDER_MUTANT");
    return text == nullptr ? -1 : std::atoi(text);
  }();
  return chosen;
}
inline std::memory_order order_unless(int number, std::memory_order order) {
  return mutant() == number ? std::memory_order_relaxed : order;
}
}  // namespace clan::nic
"""

# Those that take no more than a second.
MODELS = ("TripwireWakeup.Is*:EventQueueWakeup.IsNeverLostWithOne*:"
          "EventQueueWakeup.IsNeverLostWithTwo*:EventQueueWakeup.IsNeverLostWithEvents*")

# mutant: why no test can tell
RMW = "on x86 a read-modify-write is a full fence, and the model has no other machine"
LOAD = "on x86 all loads are alike, and the data come by another pair"
UNNOTICED = {
    "post_event_bit q.mid.load seq_cst": LOAD,
    "post_event_bit q.mid.fetch_or seq_cst": RMW,
    "post_event_bit q.root.load seq_cst": LOAD,
    "post_event_bit q.root.fetch_or seq_cst": RMW,
    "post_event_bit q.sleeping.load seq_cst": LOAD,
    "post_event_bit q.sleeping.exchange seq_cst": RMW,
    "take_events q.root.load seq_cst": LOAD,
    "take_events q.root.fetch_and seq_cst": RMW,
    "take_events q.mid.load seq_cst": LOAD,
    "take_events q.root.fetch_and seq_cst #2": RMW,
    "take_events q.mid.load seq_cst #2": LOAD,
    "take_events q.root.fetch_or seq_cst": RMW,
    "take_events q.mid.fetch_and seq_cst": RMW,
    "prepare_sleep q.root.load seq_cst": LOAD,
}


class Mutants:
    def __init__(self, text):
        self.names = []
        out, function, operation = [], "", ""
        for line in text.splitlines():
            code, slashes, comment = line.partition("//")
            if match := FUNCTION.match(code.rstrip()):
                function = match.group(1)
            if match := OPERATION.search(code):
                operation = f"{match.group(1)}.{match.group(2)}"
            code = ORDER.sub(lambda m: self.order(f"{function} {operation}", m), code)
            code = FENCE.sub(lambda m: self.fence(function, m), code)
            out.append(code + slashes + comment)
        begin = "namespace clan::nic {"
        self.text = "\n".join(out).replace(begin, CHOICE + begin, 1)

    def name(self, name):
        same = sum(1 for known in self.names if known.split(" #")[0] == name)
        self.names.append(f"{name} #{same + 1}" if same else name)
        return len(self.names) - 1

    def order(self, place, match):
        return f"order_unless({self.name(f'{place} {match.group(1)}')}, {match.group(0)})"

    def fence(self, function, match):
        number = self.name(f"{function} {match.group(1)} fence")
        return f"if (mutant() != {number}) {match.group(0)}"


def compile_program(options, directory, source, name, flags):
    program = directory / name
    includes = [directory, ROOT / "core", ROOT / "core/include", ROOT / "tests"]
    subprocess.run([options.cxx, "-std=c++20", "-O1", "-g1", *flags, *(f"-I{i}" for i in includes),
                    ROOT / "tests/nic" / source, ROOT / "tests/support/interleaving.cc",
                    "-o", program, "-lgtest", "-lgtest_main", "-lpthread"], check=True)
    return program


def first_red(program, number, test_filter):
    """The first test that fails with this mutant, "" if none does."""
    environment = {**os.environ, "CLAN_ORDER_MUTANT": str(number),
                   "TSAN_OPTIONS": "halt_on_error=1 report_bugs=1"}
    try:
        done = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief=0",
                               f"--gtest_filter={test_filter}"], env=environment, text=True,
                              capture_output=True, timeout=240)
    except subprocess.TimeoutExpired:
        return "a test that hangs"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^\[  FAILED  \] (\S+)", done.stdout, re.M)
    running = re.findall(r"^\[ RUN      \] (\S+)", done.stdout, re.M)
    if failed or running:
        return failed.group(1) if failed else running[-1]
    return "a test that does not begin"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--only", default="", metavar="REGEX", help="mutants with such names")
    parser.add_argument("--without-threads", action="store_true", help="the model alone")
    options = parser.parse_args()
    mutants = Mutants((ROOT / HEADER).read_text())
    wrong = []
    with tempfile.TemporaryDirectory(prefix="clan-mutants-") as name:
        directory = Path(name)
        (directory / "nic").mkdir()
        (directory / "nic/wakeup.h").write_text(mutants.text)
        programs = [(compile_program(options, directory, "wakeup_model_test.cc", "model", []),
                     MODELS)]
        if not options.without_threads:
            programs.append((compile_program(options, directory, "wakeup_race_test.cc", "race",
                                             ["-fsanitize=thread", "-Wno-tsan"]), "*"))
        for program, test_filter in programs:
            if red := first_red(program, -1, test_filter):
                print(f"without a mutant, {red} fails")
                return 1
        noticed = tried = 0
        for number, mutant in enumerate(mutants.names):
            if not re.search(options.only, mutant):
                continue
            tried += 1
            red = next(filter(None, (first_red(*program[:1], number, program[1])
                                     for program in programs)), "")
            noticed += bool(red)
            why = f"no test notices ({UNNOTICED.get(mutant, 'why is not known')})"
            print(f"{mutant}: {red or why}", flush=True)
            if not red and mutant not in UNNOTICED and not options.without_threads:
                wrong.append(f"{mutant}: no test notices, and UNNOTICED does not say why")
            if red and mutant in UNNOTICED:
                wrong.append(f"{mutant}: {red} notices it: take it out of UNNOTICED")
    print(f"{noticed} of {tried} orders and fences are noticed when they are missing")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
