#!/usr/bin/env python3
"""layering.py and memory_model_doc.py find what they are there to find: each case writes a small
tree and checks the answer."""

import tempfile
import unittest
from pathlib import Path

import layering
import memory_model_doc

README = """
| layer | may include | public headers it owns | its sources also |
|---|---|---|---|
| base | | result.h | |
| shm | base | |
| engine/low | base shm | face/engine.h | engine |
| engine/high | base engine/low | | |
| top | engine | | |
| clan | clan/detail | | |
| clan/face | clan clan/detail | | |
| clan/detail | | | |
"""

STORE = "tail.store(t, release);  // PAIR ring.tail: publishes slots\n"
LOAD = "// PAIR ring.tail: sees slots\nreturn\n  tail.load(acquire);\n"


class Layering(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory).resolve()
            for name, text in {"core/README.md": README, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return layering.check_tree(root)

    def assert_one(self, files, *expected):
        found = self.check(files)
        self.assertEqual(len(found), 1, found)
        for text in expected:
            self.assertIn(text, found[0])

    def test_accepts_downward_includes_and_complete_pairs(self):
        self.assertEqual(self.check({
            "core/shm/ring.h": '#include "base/fd.h"\n#include <clan/result.h>\n' + STORE + LOAD,
            "core/engine/low/a.cc": '#include "shm/ring.h"\n// volatile\nasm volatile("pause");\n',
            "core/include/clan/face/engine.h": "#include <clan/result.h>\n",
            "bench/ring_bench.cc": '#include "shm/ring.h"\n',
            "tests/unit/shm/ring_test.cc": '#include "shm/ring.h"\n',
            "tools/clan/main.cc": '#include <clan/face/engine.h>\n#include "doctor.h"\n',
        }), [])

    def test_upward_include(self):
        self.assert_one({"core/base/fd.cc": '\n#include "shm/ring.h"\n'},
                        "core/base/fd.cc:2:", "layer base may not include shm")

    def test_upward_include_of_a_public_header(self):
        self.assert_one({"core/shm/a.cc": "#include <clan/face/engine.h>\n"},
                        "may not include engine/low")

    def test_rooms_of_a_layer(self):
        self.assertEqual(self.check({
            "core/engine/high/a.h": '#include "engine/low/a.h"\n',
            "core/engine/low/a.cc": '#include "engine/high/a.h"\n',
            "core/top/a.h": '#include "engine/high/a.h"\n',
        }), [])
        self.assert_one({"core/engine/low/a.h": '#include "engine/high/a.h"\n'},
                        "layer engine/low may not include engine/high")
        self.assert_one({"core/engine/high/a.cc": '#include "top/a.h"\n'},
                        "may not include top")
        self.assert_one({"core/engine/a.h": ""}, "core/engine is not a layer")

    def test_folders_of_public_headers(self):
        includes = "#include <clan/detail/a.h>\n#include <clan/b.h>\n"
        self.assertEqual(self.check({"core/include/clan/face/x.h": includes,
                                     "core/include/clan/x.h": includes}), [])
        self.assert_one({"core/include/clan/x.h": "#include <clan/face/engine.h>\n"},
                        "layer clan may not include clan/face")
        self.assert_one({"core/include/clan/detail/x.h": "#include <clan/b.h>\n"},
                        "layer clan/detail may not include clan ")

    def test_include_around_the_include_path(self):
        self.assert_one({"core/shm/a.cc": '#include "../base/fd.h"\n'}, "by its path from core/")

    def test_unknown_layer(self):
        self.assert_one({"core/util/a.h": ""}, "not a layer")

    def test_public_header_that_includes_an_internal_one(self):
        self.assert_one({"core/include/clan/x.h": '#include "base/fd.h"\n'}, "public header")

    def test_internals_used_from_outside(self):
        for name in ("preload/a.cc", "plugins/mpi/a.c", "libfabric-provider/a.c", "tools/clan/a.cc",
                     "bench/runner.cc", "examples/a.cc"):
            with self.subTest(name):
                self.assert_one({name: '#include "shm/ring.h"\n'}, name, "core internal")
                self.assert_one({name: '#include "../core/include/clan/x.h"\n'}, "core by path")

    def test_pair_without_its_load(self):
        self.assert_one({"core/shm/a.h": STORE}, "occurs once")
        self.assert_one({"core/shm/a.h": STORE + "\n\n\n\n" + STORE}, "no load or acquire")

    def test_pair_without_its_store(self):
        self.assert_one({"core/shm/a.h": LOAD + LOAD}, "no store")

    def test_pair_by_functions_that_have_the_orders_in_them(self):
        publish = "words::store_release(tail, 1);  // PAIR ring.tail: publishes slots\n"
        look = "words::load_acquire(tail);  // PAIR ring.tail: sees slots\n"
        swap = "dekker::swap(tail, 1);  // PAIR ring.tail: both\n"
        self.assertEqual(self.check({"core/shm/a.h": publish + "\n\n\n\n" + look}), [])
        self.assertEqual(self.check({"core/shm/a.h": swap + "\n\n\n\n" + look}), [])
        self.assert_one({"core/shm/a.h": publish + "\n\n\n\n" + publish}, "no load or acquire")
        self.assert_one({"core/shm/a.h": look + "\n\n\n\n" + look}, "no store")

    def test_pair_far_from_any_atomic(self):
        far = "// PAIR x: sees\nint a;\nint b;\nint c;\nv.load(acquire);\n"
        self.assert_one({"core/shm/a.h": far + "int d;\nint e;\nint f;\n" + far}, "PAIR x")

    def test_release_in_a_comment_is_not_a_store(self):
        self.assert_one(
            {"core/shm/a.h": "// PAIR x: release\nint a;\n// PAIR x: acquire\nint b;\n"},
            "no store")

    def test_volatile_in_core(self):
        self.assert_one({"core/base/a.h": "volatile int x;\n"}, "volatile")

    def test_missing_table(self):
        with self.assertRaises(SystemExit):
            self.check({"core/README.md": "no table"})


class MemoryModelDoc(unittest.TestCase):
    def check(self, source, document):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory).resolve()
            for name, text in (("core/a.h", source), ("docs/shared-memory.md", document)):
                (root / name).parent.mkdir()
                (root / name).write_text(text)
            return list(memory_model_doc.check(root)), list(memory_model_doc.table(root))

    def test_a_pair_with_a_reason_at_one_place_is_listed_with_both(self):
        wrong, rows = self.check("t.store(1);  // PAIR ring.tail: publishes\n// the slots\n"
                                 "t.load();  // PAIR ring.tail\n",
                                 "| tag | why |\n|---|---|\n| `ring.tail` | x |\n")
        self.assertEqual(wrong, [])
        self.assertEqual(rows[2:], ["| `ring.tail` | core/a.h:1 | publishes the slots |",
                                    "| `ring.tail` | core/a.h:3 |  |"])

    def test_a_pair_without_a_reason(self):
        wrong, _ = self.check("t.load();  // PAIR ring.tail\nint x;\n", "")
        self.assertEqual(wrong, ["core/a.h:1: PAIR ring.tail says its reason nowhere"])

    def test_a_pair_of_the_document_that_is_not_in_the_sources(self):
        wrong, _ = self.check("", "| tag | why |\n|---|---|\n| `ring.tail` | x |\n")
        self.assertEqual(wrong, ["docs/shared-memory.md:3: no PAIR ring.tail in the sources"])


if __name__ == "__main__":
    unittest.main()
