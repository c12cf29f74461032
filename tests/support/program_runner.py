"""What tests that run programs share: how one is skipped or wrong, and the command line that names
them."""

import argparse
import contextlib
import os
import tempfile

SKIPPED = 77  # what ctest takes for a test that could not be run


class Skip(Exception):
    pass


class Wrong(Exception):
    pass


def require(condition, text):
    if not condition:
        raise Wrong(text)


def descendants(root):
    """Process ids below `root`."""
    found, left = [], [root]
    while left:
        tasks = f"/proc/{left.pop()}/task"
        with contextlib.suppress(OSError):  # a process, or a thread of it, may end meanwhile
            for task in os.listdir(tasks):
                with contextlib.suppress(OSError), open(f"{tasks}/{task}/children") as children:
                    more = [int(pid) for pid in children.read().split()]
                    found += more
                    left += more
    return found


def parse(description, words):
    parser = argparse.ArgumentParser(description=description)
    for word, default in words.items():
        parser.add_argument(word, default=default)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def main(doc, programs, prefix, make_test, words):
    """`programs`: name: function of a test; `make_test`: options, a private directory -> what that
    function is given, which has end(); `words`: options and their defaults. 0, 1 when something is
    wrong, SKIPPED when all was skipped."""
    options = parse(doc.splitlines()[0], words)
    if options.list:
        print("\n".join(programs))
        return 0
    skipped = 0
    for name in options.names or programs:
        with tempfile.TemporaryDirectory(prefix=prefix) as directory:
            test = make_test(options, directory)
            try:
                programs[name](test)
                print(f"{name}: ok", flush=True)
            except Skip as why:
                skipped += 1
                print(f"{name}: skipped: {why}", flush=True)
            except Wrong as why:
                print(f"{name}: WRONG: {why}", flush=True)
                return 1
            finally:
                test.end()
    return SKIPPED if skipped == len(options.names or programs) else 0
