#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The layering rule sees what it is there to see."""
import pathlib
import tempfile
import unittest

import check_includes


def found_in(files):
    """The violations in a tree of {path: text}, as (path, text) pairs."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [(str(path.relative_to(root)), number) for path, number, _ in
                check_includes.violations(root)]


class CheckIncludesTest(unittest.TestCase):
    def test_downward_includes_are_fine(self):
        self.assertEqual(found_in({
            "src/core/a.h": "#include <vector>\n#include \"hbmalloc/stats.h\"\n",
            "src/strategies/a.cc": "#include \"core/a.h\"\n#include \"observe/log.h\"\n",
            "src/sources/cuda/a.cc": "#include <cuda.h>\n",
            "include/hbmalloc/a.h": "#include <cstddef>\n#include \"absl/status/status.h\"\n"}), [])

    def test_upward_includes_are_found(self):
        for room, header in [("core", "strategies/bfc.h"), ("core", "observe/log.h"),
                             ("core", "policy/text.h"), ("strategies", "sources/sim.h"),
                             ("sources", "strategies/bfc.h"), ("policy", "observe/stats.h")]:
            name = f"src/{room}/a.cc"
            self.assertEqual(found_in({name: f"\n#include \"{header}\"\n"}), [(name, 2)], name)

    def test_driver_headers_belong_to_the_cuda_source(self):
        for name in ["src/strategies/a.cc", "src/sources/a.cc", "src/core/a.h",
                     "include/hbmalloc/a.h"]:
            for header in ["cuda.h", "cuda_runtime_api.h", "nvml.h"]:
                self.assertEqual(found_in({name: f"#include <{header}>\n"}), [(name, 1)], header)

    def test_core_knows_no_outside_world(self):
        for text in ["#include <fstream>\n", "#include <sys/mman.h>\n", "int a = *getenv(\"A\");\n"]:
            self.assertEqual(found_in({"src/core/a.cc": text}), [("src/core/a.cc", 1)], text)

    def test_a_new_room_must_be_declared(self):
        self.assertEqual(found_in({"src/attic/a.cc": ""}), [("src/attic/a.cc", 1)])


if __name__ == "__main__":
    unittest.main()
