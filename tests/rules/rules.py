#!/usr/bin/env python3
"""Rules of the tree that only shrink: what breaks one today is listed by name, and nothing else
may.

    rules.py ROOT RULE [ARGUMENT...]     prints each violation, exit code 1 if there is one
    rules.py ROOT --list RULE            the lines of exceptions.txt that RULE needs today

    includes         rooms include downward: the table in the README of the component
    files            sources have at most 400 lines, headers 200
    folders          folders have at most 30 sources
    functions        functions have at most 60 lines
    columns          lines have at most 100 columns, but for tables and examples in documents
    words            comments speak of threads and processes as things; they and documents begin
                     with the subject and use active verbs
    orders           acquire, release, acq_rel and seq_cst have a PAIR or `order:` comment
    atomics          no operation on an atomic without a memory order
    mirrors          every source has a mirrored test; interposed calls have that of
                     preload/calls.def
    named_tests      every test that a README or a document names exists
    calls            every interposed call is used by the test that preload/calls.def names
    exports          NM LIBRARY NAME...|@calls: the library exports exactly these names, or those
                     of preload/calls.def

exceptions.txt beside this script holds `RULE what`, a line each. An exception that is not needed
any more is a violation too: the list only shrinks.
"""

import re
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import cxx
from cxx import sources

HERE = Path(__file__).resolve().parent
MEASURED = ["core", "preload", "libfabric-provider", "plugins", "tools", "bench", "examples"]
ORDERED = ["core", "preload", "libfabric-provider"]
MOST_LINES, MOST_HEADER_LINES, MOST_FUNCTION_LINES, MOST_COLUMNS = 400, 200, 60, 100
MOST_SOURCES = 30
WRITTEN = [*MEASURED, "tests", "docs", "cmake"]
REACH = 5  # lines above an operation in which its comment may stand

STRONG = re.compile(r"\bmemory_order(?:_|::)(?:acquire|release|acq_rel|seq_cst)\b")
REASON = re.compile(r"//.*?(?:\bPAIR\s|\border:)")
ATOMIC_CALL = re.compile(r"(?:\.|->)\s*(load|store|exchange|fetch_(?:add|sub|or|and|xor)|"
                         r"compare_exchange_(?:weak|strong)|test_and_set|clear|test)\s*\(")
# Calls of these names that belong to many other types as well: only on something declared atomic.
COMMON = {"load", "store", "exchange", "clear", "test"}
OF_CONTAINERS = {"clear", "test"}  # and this file or its header declares it
ORDER = re.compile(r"order|\brelaxed\b")
DECLARED = re.compile(r"\batomic(?:_flag|_ref)?\b(?:\s*<[^;{}]*?>)?[&*\s]+(\w+)\s*(?:[\[{;=,)]|$)",
                      re.M)


def all_sources(root, directories):
    for directory in directories:
        yield from sources(root / directory)


def lines_of(path):
    return path.read_text(errors="replace").splitlines()


# --- includes -------------------------------------------------------------------------------------

def table_rows(readme, head):
    """Cells of the rows of the table whose first line begins with these cells."""
    rows, inside = [], False
    for line in lines_of(readme):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[:len(head)] == head:
            inside = True
        elif inside and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows


class Rooms:
    """`room | files | may include | its sources also`; "all others" are the files of one room."""

    def __init__(self, root, component):
        self.base = root / component
        rows = table_rows(self.base / "README.md",
                          ["room", "files", "may include", "its sources also"])
        self.found = bool(rows)
        self.room_of, self.may, self.sources_may, self.others = {}, {}, {}, None
        for room, files, may, also in rows:
            self.may[room] = {room, *may.split()}
            self.sources_may[room] = {*self.may[room], *also.split()}
            if files == "all others":
                self.others = room
            for name in re.findall(r"`([^`]+)`", files):
                self.room_of[name] = room

    def room(self, path):
        """By its name without suffix from the component's folder, or by its folder (`os/`)."""
        name = str(path.with_suffix(""))
        for key in (name, str(path.parent) + "/"):
            if key in self.room_of:
                return self.room_of[key]
        return self.others

    def violations(self):
        for path in sources(self.base):
            here = path.relative_to(self.base)
            room = self.room(here)
            if room is None:
                yield f"{here} is in no room of the README"
                continue
            may = self.may[room] if path.suffix == ".h" else self.sources_may[room]
            for number, line in enumerate(lines_of(path), 1):
                match = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
                if not match:
                    continue
                target = next((t for t in (self.base / match.group(1), path.parent / match.group(1))
                               if t.is_file()), None)
                if target is None:
                    continue
                named = self.room(target.resolve().relative_to(self.base.resolve()))
                if named not in may:
                    yield (f"{here}:{number}: room {room} may not include "
                           f"{match.group(1)} of {named}")
        for name, room in self.room_of.items():
            if not name.endswith("/") and not list(self.base.glob(name + ".*")):
                yield f"README.md: {name} of room {room} is not there"


def includes(root):
    # core has its table of layers: tree.layering.
    for component in ("libfabric-provider", "preload"):
        rooms = Rooms(root, component)
        if not rooms.found:
            yield component, f"{component}/README.md has no table of rooms"
        for violation in rooms.violations() if rooms.found else ():
            yield f"{component}/{violation.split(':')[0]}", f"{component}/{violation}"


# --- sizes ----------------------------------------------------------------------------------------

def files(root):
    for path in all_sources(root, MEASURED):
        most = MOST_HEADER_LINES if path.suffix in (".h", ".hpp") else MOST_LINES
        count = len(lines_of(path))
        if count > most:
            name = str(path.relative_to(root))
            yield name, f"{name} has {count} lines, {most} are allowed"


def folders(root):
    counts = Counter(path.parent for path in all_sources(root, [*MEASURED, "tests"]))
    for folder, count in sorted(counts.items()):
        if count > MOST_SOURCES:
            name = str(folder.relative_to(root))
            yield name, f"{name} has {count} sources, {MOST_SOURCES} are allowed"


def functions(root):
    for path in all_sources(root, MEASURED):
        for function, first, count in cxx.functions(path.read_text(errors="replace")):
            if count > MOST_FUNCTION_LINES:
                name = str(path.relative_to(root))
                yield (
                    f"{name} {function.split('::')[-1]}",
                    f"{name}:{first}: {function} has {count} lines, {MOST_FUNCTION_LINES} are "
                    "allowed"
                )


def written_files(root):
    for path in [*root.iterdir(), *(p for d in WRITTEN for p in (root / d).rglob("*"))]:
        if path.suffix in (".cc", ".h", ".py", ".md", ".cmake") or path.name == "CMakeLists.txt":
            yield path


def columns(root):
    for path in written_files(root):
        name, in_example = str(path.relative_to(root)), False
        for number, line in enumerate(lines_of(path), 1):
            if path.suffix == ".md":
                in_example ^= line.lstrip().startswith("```")
                if in_example or line.lstrip().startswith(("|", "#")):
                    continue
            if len(line) > MOST_COLUMNS:
                yield name, f"{name}:{number} has {len(line)} columns, {MOST_COLUMNS} are allowed"


# --- words ----------------------------------------------------------------------------------------

# CONTRIBUTING.md, Prose: a thread is "it", verbs are active, and the subject comes first.
PERSONS = re.compile(r"\b(?:who|whom|whoever|he|him|his|nought|in\s+vain)\b", re.I)
NOT_WRITTEN = re.compile(
    r"\b(?:as\s+above|of\s+ours|likewise|that\s+(?:is|are)\s+none|"
    r"(?:is|are|was|were|be|been|being)\s+told(?!\s+apart)|(?:told|tells?)\s+of|"
    r"hear[sd]?\s+(?:of|from)|look(?:s|ed|ing)\s+at|look(?:s|ed)?\s+whether|"
    r"(?<!shakes\s)hand(?:s|ed)\s+on|besides\s+(?:our|its|their)\s+own|"
    r"stands(?!\s+(?:in\s+)?for\b))\b", re.I)
OBJECT_FIRST = re.compile(r"(?:\A|(?<=[.:;]\s)|(?<=\s\s))Of(?!\s+course)\s+\S+")
COMMENT = {".cc": "//", ".h": "//", ".py": "#", ".cmake": "#", ".txt": "#"}
DOCSTRING = re.compile(r'(^[ \t]*)?"""(.*?)"""', re.M | re.S)


def prose(path):
    """(first line, text) of each comment and docstring, or of each paragraph of a document."""
    lines, mark = lines_of(path), COMMENT.get(path.suffix, "")
    if path.suffix == ".py":
        text = "\n".join(lines)
        for match in DOCSTRING.finditer(text):
            if match.group(1) is not None:
                yield text.count("\n", 0, match.start()) + 1, match.group(2)
    block = []
    for number, line in enumerate([*lines, ""], 1):
        before, found, text = line.partition(mark) if mark else ("", line.strip(), line)
        if block and (before.strip() or not found or text.startswith("|")):
            yield number - len(block), "\n".join(block)
            block = []
        if found:
            block.append(text.strip(" /!<#"))


def words(root):
    for path in written_files(root):
        name, patterns = str(path.relative_to(root)), [NOT_WRITTEN, OBJECT_FIRST]
        if path.suffix in COMMENT:  # documents also speak of people
            patterns.append(PERSONS)
        for first, text in prose(path):
            # Code in backticks and quotations may have any word.
            text = re.sub(r'`[^`]*`|"[^"]*"', lambda m: re.sub(r"[^\n]", "_", m.group(0)), text)
            for match in (match for pattern in patterns for match in pattern.finditer(text)):
                number, found = first + text.count("\n", 0, match.start()), match.group(0).split()
                yield name, f"{name}:{number}: \"{' '.join(found)}\": see CONTRIBUTING.md, Prose"


# --- atomics --------------------------------------------------------------------------------------

def orders(root):
    for path in all_sources(root, ORDERED):
        lines, code = lines_of(path), cxx.code_of(path.read_text(errors="replace")).splitlines()
        name = str(path.relative_to(root))
        for index, line in enumerate(code):
            if STRONG.search(line) and not any(
                    REASON.search(l) for l in lines[max(0, index - REACH):index + 1]):
                yield name, f"{name}:{index + 1}: an order without its PAIR: {lines[index].strip()}"


def arguments_of_call(code, opening):
    depth = 0
    for at in range(opening, min(len(code), opening + 2000)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return code[opening + 1:at]
    return ""


def declared_atomics(*paths):
    return {name for path in paths if path.is_file()
            for name in DECLARED.findall(cxx.code_of(path.read_text(errors="replace")))}


def atomics(root):
    everywhere = declared_atomics(*all_sources(root, ORDERED))
    for path in all_sources(root, ORDERED):
        code, name = cxx.code_of(path.read_text(errors="replace")), str(path.relative_to(root))
        declared = declared_atomics(path, path.with_suffix(".h"))
        for match in ATOMIC_CALL.finditer(code):
            if ORDER.search(arguments_of_call(code, match.end() - 1)):
                continue
            subject = re.search(r"(\w+)(?:\[[^\]]*\])?\s*$", code[:match.start()])
            known = declared if match.group(1) in OF_CONTAINERS else everywhere
            if match.group(1) in COMMON and (not subject or subject.group(1) not in known):
                continue
            number = code.count("\n", 0, match.start()) + 1
            yield name, f"{name}:{number}: {match.group(1)}() without a memory order"
        for subject in declared:
            for match in re.finditer(rf"(?:\+\+|--)\s*{subject}\b(?!\s*[.(])|(?<![\w.]){subject}\s*"
                                     rf"(?:\+\+|--|[-+|&^]=)", code):
                number = code.count("\n", 0, match.start()) + 1
                yield name, f"{name}:{number}: {subject} changed without a memory order"


# --- tests ----------------------------------------------------------------------------------------

# Where the mirror of a component is; a component's folders are the test's folders.
MIRRORS = {"core": "tests/unit", "core/link/udp": "tests/unit/udp",
           "libfabric-provider": "tests/unit/libfabric", "preload": "tests/unit/preload"}


def modules(root, component):
    """Paths without suffix: x.cc and x.h are one. Public headers are tested with what implements
    them."""
    own = [root / other for other in MIRRORS if other.startswith(component + "/")]
    for path in sources(root / component):
        relative = path.relative_to(root / component)
        if "include" not in relative.parts and not any(path.is_relative_to(other) for other in own):
            yield relative.with_suffix("")


def mirrored(tests, module):
    """x_test.cc is the test of x, and of x_send and x_receive, the steps of x."""
    words = module.name.split("_")
    return any((tests / module.parent / f"{'_'.join(words[:n])}_test.cc").is_file()
               for n in range(len(words), 0, -1))


CALL_DEFINED = re.compile(r"^CLAN_INTERPOSE(?:D\w*\(|\b)[^;{}()]*?\b(\w+)(?:\s*\(|,\s*\()", re.M)
CALL_THAT_JUMPS = re.compile(r'\bCLAN_JUMP\("(\w+)"')


def tested_as_calls(root, module):
    """A source of preload/calls that defines interposed calls, which no unit test can link:
    preload/calls.def names the test of each, and rule `calls` checks that it does use them."""
    path = root / "preload" / module.with_suffix(".cc")
    if module.parts[0] != "calls" or not path.is_file():
        return False
    text = path.read_text(errors="replace")
    defined = {*CALL_DEFINED.findall(cxx.code_of(text)), *CALL_THAT_JUMPS.findall(text)}
    return bool(defined) and defined <= {name for name, _ in interposed_calls(root)}


def mirrors(root):
    for component, tests in MIRRORS.items():
        for module in sorted(set(modules(root, component))):
            if component == "preload" and tested_as_calls(root, module):
                continue
            if not mirrored(root / tests, module):
                name = f"{component}/{module}"
                yield name, f"{name} has no test {tests}/{module}_test.cc"


def defined_tests(root):
    """{"Suite.Name"} of GoogleTest, in all of tests/."""
    found = set()
    for path in [*sources(root / "tests"), *sources(root / "tools")]:
        found.update(
            f"{suite}.{name}"
            for suite, name in re.findall(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)",
                                          path.read_text(errors="replace")))
    return found


SUITE = re.compile(r"^\*?[A-Z]\w*\.(?:[A-Z*]\w*|\*\w*)(?:…|\*)?$")
LABELS = r"interpose|libfabric|tree|omniorb|sunrpc|mpi|tools|examples|bench"
CTEST = re.compile(rf"^(?:{LABELS})\.([a-z][a-z0-9_]*)$")
PATH = re.compile(r"^(?:tests|bench|examples|tools)/[\w./-]+\.(?:cc|py|h|sh|c)$")
TEST_FILE = re.compile(r"^\w+(?:_test\.cc|\.py)$")


def tests_of_cmake(root):
    """Words of the CMake files of tests, in which the names of ctests are put together."""
    words = set()
    for path in [*root.glob("tests/**/CMakeLists.txt"), *root.glob("examples/CMakeLists.txt"),
                 *root.glob("bench/**/CMakeLists.txt")]:
        words.update(re.findall(r"[a-z][a-z0-9_]*", path.read_text()))
    return words


def documents(root):
    return sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("*/README.md"),
                   *root.glob("*/*/README.md")])


def named_tests(root):
    defined, words = defined_tests(root), tests_of_cmake(root)
    suites = {name.split(".")[0] for name in defined}
    programs = {path.name for path in (root / "tests").rglob("*") if path.suffix in (".py", ".cc")}
    for document in documents(root):
        name = str(document.relative_to(root))
        if "build" in document.relative_to(root).parts:
            continue
        for number, line in enumerate(lines_of(document), 1):
            suite, in_table = "", line.startswith("|")
            for token in re.findall(r"`([^`]+)`", line):
                missing = False
                if in_table and token.startswith(".") and suite:
                    token = suite + token
                if PATH.match(token):
                    missing = not (root / token).is_file()
                elif CTEST.match(token):
                    missing = CTEST.match(token).group(1) not in words
                elif SUITE.match(token) and (in_table or token.split(".")[0] in suites):
                    suite = token.split(".")[0]
                    pattern = token.replace("…", "*")
                    missing = not any(fnmatchcase(test, pattern) for test in defined)
                elif in_table and TEST_FILE.match(token.split()[0]) and "test" in line.lower():
                    missing = token.split()[0] not in programs
                if missing:
                    yield f"{name} {token}", f"{name}:{number}: the test {token} is not there"


# --- exports --------------------------------------------------------------------------------------

CALL = re.compile(r"^CLAN_(?:SECOND\(|(?:CALL|NUMBERED)\([^,]*, )(\w+),[^\"]*\"([^\"]*)\"\)", re.M)


def interposed_calls(root):
    """(name, test) of each entry of preload/calls.def."""
    return CALL.findall((root / "preload/calls.def").read_text())


def calls(root):
    for name, test in interposed_calls(root):
        path = root / "tests/interpose" / test
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(),
                      flags=re.DOTALL) if path.is_file() else ""
        if not re.search(rf"(?<![\w.>]){name}\b", text):
            yield name, f"preload/calls.def: {name}() is not used by {path.relative_to(root)}"


def exports(root, nm, library, *names):
    wanted = {name for name, _ in interposed_calls(root)} if names == ("@calls",) else set(names)
    text = subprocess.run([nm, "-D", "--defined-only", "--format=posix", library], check=True,
                          capture_output=True, text=True).stdout
    found = {
        line.split()[0].split("@")[0]
        for line in text.splitlines() if line.split()[1] not in "A"
    }
    library = Path(library).name
    for name in sorted(found - wanted):
        yield f"{library} {name}", f"{library} exports {name}, which is not in its list"
    for name in sorted(wanted - found):
        yield f"{library} {name}", f"{library} does not export {name}"


RULES = {
    rule.__name__: rule
    for rule in (includes, files, folders, functions, columns, words, orders, atomics, mirrors,
                 named_tests, calls, exports)
}


def exceptions(path, rule):
    for line in lines_of(path) if path.is_file() else []:
        words = line.split("#")[0].split(None, 1)
        if len(words) == 2 and words[0] == rule:
            yield words[1].strip()


def check(root, rule, arguments=(), listed=None):
    """Lines that say what is wrong."""
    listed = set(exceptions(HERE / "exceptions.txt", rule) if listed is None else listed)
    needed = set()
    for item, text in RULES[rule](root, *arguments):
        needed.add(item)
        if item not in listed:
            yield text
    if rule != "exports":
        for item in sorted(listed - needed):
            yield f"exceptions.txt: `{rule} {item}` is not needed any more: take it out"


def main():
    if len(sys.argv) > 3 and sys.argv[2] == "--list":
        items = {item for item, _ in RULES[sys.argv[3]](Path(sys.argv[1]).resolve(), *sys.argv[4:])}
        print("\n".join(f"{sys.argv[3]} {item}" for item in sorted(items)))
        return 0
    if len(sys.argv) < 3 or sys.argv[2] not in RULES:
        sys.exit(__doc__)
    rule = sys.argv[2]
    violations = list(check(Path(sys.argv[1]).resolve(), rule, sys.argv[3:]))
    left = len(list(exceptions(HERE / "exceptions.txt", rule)))
    print("\n".join(violations) or f"{rule}: no violation, {left} exceptions left")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
