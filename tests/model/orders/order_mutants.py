#!/usr/bin/env python3
"""Weakens the memory orders of a source one at a time, and says which test turns red.

    order_mutants.py [--cxx CXX] [--of HEADER,...] [--only REGEX] [--without-threads]

Every order that is not relaxed becomes relaxed, and every call of a fence nothing, in a copy of the
source that chooses at run time. Programs are made of it, those of TARGETS: the model of
wakeup_model_test.cc, which knows machines with store buffers (x86), and tests in which threads
hand plain data to each other under ThreadSanitizer, which knows what one thread may rely on of
another. A line for each mutant: what has noticed it. Those that nothing notices are in unnoticed.py
with the reason; exit code 1 when that is not so any more. They are tried where CLAN_TEST_FULL is
set, as by `./check --full`.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from unnoticed import UNNOTICED

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "rules"))
from layering import PAIR  # noqa: E402, needs the path

ROOT = Path(__file__).resolve().parents[3]
ORDER = re.compile(r"std::memory_order_(seq_cst|acq_rel|acquire|release)\b")
FENCE = re.compile(r"Fence::(heavy|light|even)\(\);")
FUNCTION = re.compile(r"^ *(?:\[\[nodiscard\]\] )?(?:\w[\w:<>&* ]*[ >])?(\w+)"
                      r"\([^;]*\) (?:const )?\{$")
OPERATION = re.compile(
    r"(?:view_\.header->)?([\w.>-]+)(?:[\[(][^\])]*[\])])?"
    r"(?:\.|->)(load|store|exchange|compare_\w+|fetch_\w+|test_and_set|clear)\(")
CALL_WITH_ORDER = re.compile(r"look\(std::memory_order")
FULL = bool(os.environ.get("CLAN_TEST_FULL"))
REACH = 5  # lines above an operation in which its comment may stand, as in rules/rules.py
NO_FUNCTION = {"if", "for", "while", "switch"}

# What each mutated source includes. -1: the sources as they are.
CHOICE_HEADER = "clan_mutant.h"
CHOICE = """#pragma once
#include <atomic>
#include <cstdlib>
namespace clan_mutant {
// Before main(): a static of a function would order the threads that come to it first.
inline const int chosen = [] {
  const char* text = std::getenv("CLAN_ORDER_MUTANT");
  return text == nullptr ? -1 : std::atoi(text);
}();
inline std::memory_order order_unless(int number, std::memory_order order) {
  return chosen == number ? std::memory_order_relaxed : order;
}
}  // namespace clan_mutant
"""


@dataclass
class Program:
    source: str           # below tests/
    tests: str            # filter of GoogleTest: those that take no more than a second or two
    threads: bool = True  # under ThreadSanitizer
    beside: tuple = ()    # other sources that it is made of; a target that is no header is one


@dataclass
class Target:
    """Sources that replace the same one are tried together: its programs are made once."""
    include: str  # the directory by which it is included
    programs: list  # what is quick, and notices most, first


MODELS = ("TripwireWakeup.Is*:EventQueueWakeup.IsNeverLostWithOne*:"
          "EventQueueWakeup.IsNeverLostWithTwo*:EventQueueWakeup.IsNeverLostWithEvents*")
MPI_CHANNEL = Target(".", [Program("unit/mpi/channel/channel_test.cc",
                                   "Channel.CarriesAStreamBetweenTwoThreads")])
WORDS = Target("core/include", [
    Program("unit/base/words_test.cc", "*", beside=("tests/unit/base/dekker_test.cc",)),
    Program("model/base/dekker_model_test.cc", "*.Neither*", threads=False),
])
CONFIG = ("preload/os/test_settings.cc", "core/base/log.cc")
SOCKET = Target("preload", [Program("unit/preload/state/socket_race_test.cc", "*")])
RINGS = Target("core", [Program("unit/shm/ring_test.cc", "RingRace.*SmallRing")])
TARGETS = {
    "core/include/clan/detail/words.h": WORDS,
    "core/include/clan/detail/dekker.h": WORDS,
    "preload/wait/epoll_set.h": Target("preload", [
        Program("unit/preload/wait/epoll_set_race_test.cc", "*",
                beside=("preload/wait/epoll_set.cc",)),
    ]),
    "preload/state/face.h": Target("preload", [
        Program("unit/preload/state/face_race_test.cc", "*")]),
    "preload/state/socket_identity.h": SOCKET,
    "preload/state/socket.h": SOCKET,
    "preload/table/slot_table.cc": Target("preload", [
        Program("unit/preload/table/slot_table_race_test.cc", "*",
                beside=(*CONFIG, "preload/os/config.cc",
                        "preload/os/memory_owner.cc", "preload/os/real.cc", "preload/os/sandbox.cc",
                        "preload/table/open_file.cc", "preload/table/internal_fds.cc",
                        "core/base/process.cc")),
    ]),
    "preload/state/latch.h": Target("preload", [
        Program("unit/preload/state/latch_test.cc", "Latch.Shows*"),
    ]),
    "preload/state/socket_demotion.h": Target("preload", [
        Program("unit/preload/state/socket_demotion_test.cc", "*"),
    ]),
    "preload/state/socket_transfer.h": Target("preload", [
        Program("unit/preload/state/socket_transfer_test.cc", "*"),
    ]),
    "preload/os/config.cc": Target("preload", [
        Program("unit/preload/os/config_race_test.cc", "*", beside=CONFIG),
    ]),
    "preload/os/real.cc": Target("preload", [
        Program("unit/preload/os/real_race_test.cc", "*"),
    ]),
    "preload/af_clan/af_clan_table.cc": Target("preload", [
        Program("unit/preload/af_clan/af_clan_table_race_test.cc", "*",
                beside=("preload/os/signal_handlers.cc",)),
    ]),
    "libfabric-provider/system/provider.h": Target("libfabric-provider", [
        Program("unit/libfabric/system/provider_race_test.cc", "*"),
    ]),
    "libfabric-provider/system/shared_table.cc": Target("libfabric-provider", [
        Program("unit/libfabric/system/shared_table_test.cc", "SharedTable.ShowsAThread*",
                beside=("libfabric-provider/system/address.cc",)),
    ]),
    "core/nic/wakeup.h": Target("core", [
        Program("unit/nic/wakeup_test.cc", "*"),
        Program("model/nic/wakeup_model_test.cc", MODELS, threads=False),
    ]),
    "core/engine/pipe/pipe_waiting.h": Target("core", [
        Program("model/engine/pipe/pipe_waiting_model_test.cc", "PipeWakeup.Is*", threads=False),
        Program("unit/engine/pipe/pipe_waiting_test.cc", "PipeWaiting.TheCursors*"),
    ]),
    "core/engine/event/queue_consumers.h": Target("core", [
        Program("unit/engine/event/queue_consumers_test.cc", "*"),
        Program("model/engine/event/queue_consumers_model_test.cc", "QueueConsumers.*",
                threads=False),
    ]),
    "core/shm/ring.h": RINGS,
    "core/shm/ring_record.h": RINGS,
    "plugins/mpi/channel/channel_sender.h": MPI_CHANNEL,
    "plugins/mpi/channel/channel_receiver.h": MPI_CHANNEL,
    "plugins/mpi/channel/channel_grants.h": Target(".", [
        Program("unit/mpi/channel/channel_grants_order_test.cc", "*"),
        Program("model/mpi/channel/channel_grants_test.cc", "*", threads=False),
    ]),
    "libfabric-provider/wait/wait_words.h": Target("libfabric-provider", [
        Program("model/libfabric/wait/wait_words_model_test.cc", "WaitWords.*", threads=False),
        Program("unit/libfabric/wait/wait_words_test.cc", "WaitWords.*"),
    ]),
    "preload/os/spin_lock.h": Target("preload", [
        Program("unit/preload/os/spin_lock_test.cc", "SpinLockTest.LetsOneThreadInAtATime"),
    ]),
    "preload/os/scratch.h": Target("preload", [
        Program("unit/preload/os/scratch_test.cc", "Scratch.IsGivenBack*"),
    ]),
    "preload/table/open_file.h": Target("preload", [
        Program("unit/preload/state/gate_test.cc", "Gate.Shows*:Gate.KeepsCalls*"),
    ]),
    "libfabric-provider/wire/access_word.h": Target("libfabric-provider", [
        Program("unit/libfabric/wire/access_word_test.cc", "*BothTryAtOnce:*WhatTheOtherHasDone"),
    ]),
}


def pairs_at(lines, number):
    """The tags of the nearest comment that has some: beside the line, or above it."""
    for at in range(number, max(-1, number - REACH - 1), -1):
        tags = PAIR.findall(lines[at])
        while tags and at > 0 and lines[at - 1].lstrip().startswith("//"):
            at -= 1
            tags += PAIR.findall(lines[at])
        if tags:
            return set(tags)
    return set()


class Mutants:
    """The mutants of a source have the numbers from `first` on."""

    def __init__(self, text, first=0):
        self.names, self.tags, self.first = [], [], first
        out, function, operation = [], "", ""
        lines = text.splitlines()
        for number, line in enumerate(lines):
            code, slashes, comment = line.partition("//")
            self.near = pairs_at(lines, number)
            match = FUNCTION.match(code.rstrip())
            if match and match.group(1) not in NO_FUNCTION:
                function = match.group(1)
            if match := OPERATION.search(code):
                operation = f"{match.group(1)}.{match.group(2)}"
            elif CALL_WITH_ORDER.search(code):
                operation = "request_tail.load"
            code = ORDER.sub(lambda m: self.order(f"{function} {operation}", m), code)
            code = FENCE.sub(lambda m: self.fence(function, m), code)
            out.append(code + slashes + comment)
        at = out.index("#pragma once") + 1 if "#pragma once" in out else 0
        self.text = "\n".join([*out[:at], f'#include "{CHOICE_HEADER}"', *out[at:], ""])

    def name(self, name):
        same = sum(1 for known in self.names if known.split(" #")[0] == name)
        self.names.append(f"{name} #{same + 1}" if same else name)
        self.tags.append(self.near)
        return self.first + len(self.names) - 1

    def order(self, place, match):
        number = self.name(f"{place} {match.group(1)}")
        return f"clan_mutant::order_unless({number}, {match.group(0)})"

    def fence(self, function, match):
        number = self.name(f"{function} {match.group(1)} fence")
        return f"if (clan_mutant::chosen != {number}) {match.group(0)}"


def compile_program(options, directory, program, include, copies):
    made = directory / Path(program.source).stem
    flags = ["-fsanitize=thread", "-Wno-tsan"] if program.threads else []
    # Without functions that no test calls, and so without what these need.
    flags += ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    includes = [directory, ROOT / include, ROOT / "core", ROOT / "core/include", ROOT / "tests",
                ROOT / "tests/unit", ROOT, *{source.parent for source in copies}]
    sources = [ROOT / source for source in program.beside]
    sources += [copy for copy in copies.values() if copy.suffix == ".cc"]
    if not program.threads:
        sources.append(ROOT / "tests/support/interleaving.cc")
    subprocess.run([options.cxx, "-std=c++20", "-O1", "-g1", *flags, *(f"-I{i}" for i in includes),
                    ROOT / "tests" / program.source, *sources, "-o", made, "-lgtest",
                    "-lgtest_main", "-lpthread"], check=True)
    return made


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


def programs_of(options, target, mutants, directory):
    """[(program, filter)], made with copies of the sources that know their mutants"""
    (directory / CHOICE_HEADER).write_text(CHOICE)
    copies = {}
    for source, of_source in mutants.items():
        copy = copies[ROOT / source] = directory / Path(source).relative_to(target.include)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(of_source.text)
    return [(compile_program(options, directory, program, target.include, copies), program.tests)
            for program in target.programs if not (program.threads and options.without_threads)]


def try_source(options, source, mutants, programs):
    """(mutants tried, those noticed, what is wrong)"""
    unnoticed = UNNOTICED.get(source, {})
    tried = noticed = 0
    wrong = [f"{source}: unnoticed.py has {name}, which is no mutant"
             for name in unnoticed if name not in mutants.names]
    for number, mutant in enumerate(mutants.names, mutants.first):
        if not re.search(options.only, mutant) or (mutant in unnoticed and not FULL):
            continue
        tried += 1
        red = next(filter(None, (first_red(program, number, tests)
                                 for program, tests in programs)), "")
        noticed += bool(red)
        why = f"no test notices ({unnoticed.get(mutant, 'why is not known')})"
        print(f"{mutant}: {red or why}", flush=True)
        if not red and mutant not in unnoticed and not options.without_threads:
            wrong.append(f"{mutant}: no test notices, and unnoticed.py does not say why")
        if red and mutant in unnoticed:
            wrong.append(f"{mutant}: {red} notices it: take it out of unnoticed.py")
    return tried, noticed, wrong


def try_together(options, target, sources):
    """Whether something is wrong with these, which have the same programs."""
    mutants, first, failed = {}, 0, False
    for source in sources:
        mutants[source] = Mutants((ROOT / source).read_text(), first)
        first += len(mutants[source].names)
    with tempfile.TemporaryDirectory(prefix="clan-mutants-") as name:
        programs = programs_of(options, target, mutants, Path(name))
        for program, tests in programs:
            if red := first_red(program, -1, tests):
                print(f"{', '.join(sources)}: without a mutant, {red} fails")
                return True
        for source in sources:
            print(f"{source}:")
            tried, noticed, wrong = try_source(options, source, mutants[source], programs)
            print(f"{noticed} of {tried} orders and fences are noticed when they are missing")
            print("\n".join(wrong), end="\n" if wrong else "")
            failed |= bool(wrong)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cxx", default="c++")
    parser.add_argument("--of", default=",".join(TARGETS), metavar="HEADER,...")
    parser.add_argument("--only", default="", metavar="REGEX", help="mutants with such names")
    parser.add_argument("--without-threads", action="store_true", help="the model alone")
    options = parser.parse_args()
    together = {}
    for source in options.of.split(","):
        together.setdefault(id(TARGETS[source]), []).append(source)
    # A list, not any(): each is tried.
    failed = [try_together(options, TARGETS[sources[0]], sources) for sources in together.values()]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
