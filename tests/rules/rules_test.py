#!/usr/bin/env python3
"""rules.py finds what it is there to find: each case writes a small tree and checks the answer."""

import re
import sys
import tempfile
import unittest
from pathlib import Path

import cxx
import rules

PROVIDER = """
| room | files | may include | its sources also |
|---|---|---|---|
| low | `low` `os/` | | |
| middle | `middle` | low | high |
| high | all others | low middle | |
"""

CALLS_DEF = """// CLAN_CALL(result, name, parameters, test) is not one
CLAN_NUMBERED(ssize_t, read, (int, void*, size_t), SYS_read, "a_test.cc")
CLAN_CALL(int, pipe, (int*),
          "a_test.cc")
CLAN_SECOND(__read, "a_test.cc")
"""


class Rules(unittest.TestCase):
    def check(self, rule, files, listed=()):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory).resolve()
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return list(rules.check(root, rule, listed=listed))

    def assert_one(self, rule, files, expected):
        found = self.check(rule, files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(expected, found[0])

    def provider(self, files):
        return {"libfabric-provider/README.md": PROVIDER, "preload/README.md": PROVIDER,
                "preload/low.h": "", "preload/middle.h": "", "libfabric-provider/low.h": "",
                "libfabric-provider/middle.h": "", "libfabric-provider/other.h": "",
                **{"libfabric-provider/" + name: text for name, text in files.items()}}

    def test_an_exception_that_is_not_needed_is_a_violation(self):
        long = {"core/a.cc": "\n" * 401}
        self.assertEqual(self.check("files", long, ["core/a.cc"]), [])
        self.assertIn("not needed",
                      self.check("files", {"core/a.cc": "\n" * 400}, ["core/a.cc"])[0])
        self.assertEqual(len(self.check("files", long, ["core/b.cc"])), 2)

    def test_includes_go_downward(self):
        self.assertEqual(self.check("includes", self.provider({"middle.h": '#include "low.h"\n'})),
                         [])
        self.assert_one("includes", self.provider({"low.h": '\n#include "middle.h"\n'}),
                        "low.h:2: room low may not include middle.h")
        self.assert_one("includes", self.provider({"os/a.cc": '#include "middle.h"\n'}),
                        "room low may not")

    def test_a_source_may_include_what_its_header_may_not(self):
        self.assertEqual(
            self.check("includes", self.provider({"middle.cc": '#include "other.h"\n'})), [])
        self.assert_one("includes", self.provider({"middle.h": '#include "other.h"\n'}),
                        "may not include")

    def test_a_room_without_its_file_and_a_component_without_a_table(self):
        files = self.provider({})
        del files["libfabric-provider/middle.h"]
        self.assert_one("includes", files, "middle of room middle is not there")
        self.assert_one("includes", {**self.provider({}), "preload/README.md": "words"}, "no table")

    def test_headers_are_shorter_than_sources(self):
        self.assert_one("files", {"core/a.h": "\n" * 201, "core/a.cc": "\n" * 400},
                        "core/a.h has 201")

    def test_folders_with_many_sources(self):
        files = {f"tests/a/{n}.cc": "" for n in range(30)}
        self.assertEqual(self.check("folders", {**files, "tests/a/b/c.cc": "", "tests/a/d.py": ""}),
                         [])
        self.assert_one("folders", {**files, "tests/a/e.h": ""}, "tests/a has 31 sources")

    def test_columns_but_not_of_tables_and_examples(self):
        long = "x" * 101
        self.assertEqual(len(self.check("columns", {"core/a.cc": f"// {long}\n"})), 1)
        self.assertEqual(len(self.check("columns", {"tests/a.py": f"# {long}\n"})), 1)
        self.assertEqual(len(self.check("columns", {"README.md": f"{long}\n"})), 1)
        for text in (f"| {long} |", f"```\n{long}\n```", f"# {long}", "é" * 100):
            self.assertEqual(self.check("columns", {"README.md": text + "\n"}), [])

    def test_old_words_in_comments_but_not_in_code_and_names(self):
        self.assert_one("words", {"core/a.h": "int a;  // whoever sees it\n"}, "whoever")
        self.assert_one("words", {"tests/a.py": f"# a socket {'of'} ours\n"}, "tests/a.py:1")
        for text in ("auto who = f();\n", "// `who` is a name, and so is here\n"):
            self.assertEqual(self.check("words", {"core/a.cc": text}), [])

    def test_comments_and_documents_begin_with_the_subject_and_use_active_verbs(self):
        for text in ("the peer is told", "It looks at", "it hears of", "Likewise, b", "handed on",
                     "a value that is none", "a line stands there", "besides our own", "as above"):
            self.assert_one("words", {"core/a.cc": f"int a;  // {text}\n"}, "core/a.cc:1")
            self.assert_one("words", {"docs/a.md": f"A document. {text}\n"}, "docs/a.md:1")
        for text in ("/// Of a process: its size.\n", "// All. Of these\n// one is set.\n",
                     "// One is\n// told so.\n", "// One.\n//\n// Of two.\n"):
            self.assert_one("words", {"core/a.cc": text}, "core/a.cc:")
        self.assert_one("words", {"tests/a.py": 'def f():\n    """Of a file."""\n'}, "tests/a.py:2")
        for text in ("// Of course, both can be told apart.\n", "// One shakes hands on it.\n",
                     "// x stands for y.\n", "// the copy is\nint told;\n", '// Not "looks at".\n'):
            self.assertEqual(self.check("words", {"core/a.cc": text}), [])

    def test_long_functions(self):
        body = "  x();\n" * 58
        self.assertEqual(self.check("functions", {"core/a.cc": f"void f() {{\n{body}}}\n" * 2}), [])
        self.assert_one("functions",
                        {"core/a.cc": f"void f() {{\n{body}\n}}\nvoid g() {{\n{body}}}\n"},
                        "f has 61 lines")

    def test_functions_are_told_from_what_looks_like_them(self):
        text = """
namespace a { namespace {
struct S : T<int> {
  S() : a_{1}, b_(2) {
    if (x) { y(); }
  }
  int get() const noexcept { return a_; }
  bool operator==(const S&) const {
    return true;
  }
};
int table[] = {1, 2};
auto f = [](int x) { return x; };
template <typename T>
auto h(T t) -> decltype(t) {
  return [&] { return t; }();
}
const char* text = "} {";  // }
extern "C" {
int c(void)
{ return '{'; }
}
}}
"""
        found = [(name, count) for name, _, count in cxx.functions(text)]
        self.assertEqual(found, [("S", 3), ("get", 1), ("operator==", 3), ("h", 4), ("c", 2)])

    def test_an_order_needs_its_pair(self):
        store = "x.store(1, std::memory_order_release);\n"
        self.assertEqual(self.check("orders", {"core/a.h": "// PAIR a.b: publishes\n" + store}), [])
        self.assertEqual(self.check("orders", {"core/a.h": "// order: as the kernel's\n" + store}),
                         [])
        self.assertEqual(self.check("orders", {"core/a.h": "x.load(std::memory_order_relaxed);\n"}),
                         [])
        self.assert_one("orders", {"core/a.h": store}, "core/a.h:1")
        self.assert_one("orders", {"core/a.h": "// PAIR a.b: far\n" + "\n" * 6 + store},
                        "core/a.h:8")

    def test_an_atomic_needs_an_order(self):
        declared = "std::atomic<int> count_{0};\n"
        for text in ("x = count_.load();", "count_++;", "count_ += 2;", "count_.fetch_add(1);",
                     "count_.compare_exchange_strong(a, b);"):
            with self.subTest(text):
                self.assert_one("atomics", {"core/a.h": declared + text + "\n"}, "core/a.h:2")
        self.assertEqual(
            self.check(
                "atomics", {
                    "core/a.h": declared +
                    ("count_.load(std::memory_order_relaxed);\ncount_.fetch_add(f(1),\n    "
                     "std::memory_order_relaxed);\n"
                     "list.clear();\nlibrary.load();\nother++;\n")
                }), [])

    def test_a_source_needs_its_test(self):
        self.assertEqual(
            self.check("mirrors", {"core/shm/ring.h": "", "tests/unit/shm/ring_test.cc": ""}), [])
        self.assertEqual(
            self.check("mirrors",
                       {"core/shm/ring_send.cc": "", "tests/unit/shm/ring_test.cc": ""}), [])
        self.assert_one("mirrors", {"core/shm/rings.cc": "", "tests/unit/shm/ring_test.cc": ""},
                        "core/shm/rings has no test")
        self.assert_one("mirrors",
                        {"core/shm/ring.h": "", "core/shm/ring.cc": "",
                         "tests/unit/shm/x_test.cc": ""},
                        "core/shm/ring has no test")
        self.assert_one("mirrors", {"libfabric-provider/transport/a.cc": ""},
                        "tests/unit/libfabric/transport/a_test.cc")

    def test_a_source_of_interposed_calls_needs_them_in_the_list(self):
        tree = {"preload/calls.def": CALLS_DEF}
        source = "CLAN_INTERPOSE ssize_t read(int fd) { return recv(fd); }\n"
        self.assertEqual(self.check("mirrors", {**tree, "preload/calls/bytes.cc": source}), [])
        by_macro = "CLAN_INTERPOSED_BYTES(ssize_t, read, (int fd), (fd)) { return recv(fd); }\n"
        self.assertEqual(self.check("mirrors", {**tree, "preload/calls/bytes.cc": by_macro}), [])
        jump = 'asm(CLAN_JUMP("read", "before_read"));\n'
        self.assertEqual(self.check("mirrors", {**tree, "preload/calls/bytes.cc": jump}), [])
        self.assert_one("mirrors",
                        {**tree, "preload/calls/bytes.cc": jump.replace("read", "write")},
                        "preload/calls/bytes has no test")
        for text in ("CLAN_INTERPOSE ssize_t write(int fd) {}\n" + source, "int read(int) {}\n",
                     ""):
            self.assert_one("mirrors", {**tree, "preload/calls/bytes.cc": text},
                            "preload/calls/bytes has no test")
        self.assert_one("mirrors", {**tree, "preload/os/bytes.cc": source},
                        "preload/os/bytes has no test")

    def test_tests_that_are_named_exist(self):
        tests = {"tests/a_test.cc": "TEST_F(Poll, WakesAtTheEnd) {}\n",
                 "tests/CMakeLists.txt": "foreach(program IN ITEMS redis nginx)"}
        self.assertEqual(
            self.check(
                "named_tests", {
                    **tests, "README.md": (
                        "| tests |\n| `Poll.*`, `Poll.Wakes…`, `.WakesAtTheEnd` "
                        "|\n`tests/a_test.cc` `interpose.redis`\n"
                        "`Unknown.Word` outside of a table\n")
                }), [])
        for text in ("| `Poll.Sleeps…` |", "| `Poll.*`, `.Sleeps` |", "`Poll.Sleeps`",
                     "`tests/b_test.cc`", "`interpose.memcached`", "| a test | `b_test.cc` |"):
            with self.subTest(text):
                self.assert_one("named_tests", {**tests, "docs/a.md": text + "\n"}, "is not there")

    def test_each_interposed_call_is_used_by_its_test(self):
        tree = {"preload/calls.def": CALLS_DEF}
        uses = {
            "read": "read(fd, p, n);", "pipe": "::pipe(ends); // read()",
            "__read": "__read(fd, p, n);"
        }
        self.assertEqual(
            self.check("calls", {**tree, "tests/interpose/a_test.cc": "\n".join(uses.values())}),
            [])
        for missing in uses:
            with self.subTest(missing):
                text = "\n".join(use for call, use in uses.items() if call != missing)
                self.assert_one("calls", {**tree, "tests/interpose/a_test.cc": text},
                                f"{missing}() is not used")

    def test_every_rule_has_its_ctest(self):
        text = (Path(__file__).resolve().parent / "CMakeLists.txt").read_text()
        for rule in rules.RULES:
            self.assertTrue(re.search(rf"\b{rule}\b", text), rule)


class Exports(unittest.TestCase):
    def check(self, names, lines):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            nm = root / "nm"
            nm.write_text("#!/bin/sh\nprintf '%s\\n' " + " ".join(f"'{line}'"
                                                                  for line in lines) + "\n")
            nm.chmod(0o755)
            (root / "preload").mkdir()
            (root / "preload/calls.def").write_text(CALLS_DEF)
            return list(rules.check(root, "exports", [str(nm), "library.so", *names]))

    def test_exactly_the_list(self):
        for names in (["@calls"], ["read", "pipe", "__read"]):
            with self.subTest(names):
                self.assertEqual(
                    self.check(names, ["read T 1 2", "pipe T", "__read@@V1 W 1 2", "V1 A 0"]), [])
                self.assertIn("exports send",
                              self.check(names, ["read T", "pipe T", "__read T", "send T"])[0])
                self.assertIn("does not export pipe", self.check(names, ["read T", "__read T"])[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
