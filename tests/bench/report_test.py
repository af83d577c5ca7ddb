#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The report of bench/report.py: one made for real, and its parts on figures that were made up.

    report_test.py SOURCE_DIR BUILD_DIR
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

SOURCE = BUILD = ""
SVG = "{http://www.w3.org/2000/svg}"


def write(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file)


def row(trace, warm, **more):
    return {"trace": trace, "events": 100, "failures": 0, "warm_ns_per_event": warm, "first_ns_per_event": 2 * warm,
            **more}


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_one_command_makes_tables_json_and_plots(self):
        done = subprocess.run([sys.executable, os.path.join(SOURCE, "bench", "report.py"), "--build=" + BUILD,
                               "--traces=xla_eager_1", "--rounds=2", "--passes=2", "--out=" + self.folder],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        by_name = {r["allocator"]: r for r in report["results"]}
        self.assertTrue({"bfc", "on_demand", "platform", "elastic", "elastic slack=0"} <= set(by_name))
        for result in by_name.values():
            self.assertEqual(result["runs"], 2)
            self.assertLessEqual(result["warm_ns_per_event_min"], result["warm_ns_per_event"])
            self.assertLessEqual(result["warm_ns_per_event"], result["warm_ns_per_event_max"])
            self.assertGreaterEqual(result["needs_over_live"], 1)
        self.assertIsNone(by_name["bfc"]["pool_over_live"])
        self.assertGreaterEqual(by_name["elastic"]["pool_over_live"], 1)
        drawn = xml.parse(os.path.join(self.folder, "memory_against_time.svg")).iter(SVG + "text")
        self.assertTrue({r["allocator"] for r in report["results"]} <= {text.text for text in drawn})
        with open(os.path.join(self.folder, "report.md"), encoding="utf-8") as file:
            self.assertIn(f"| elastic | {by_name['elastic']['warm_ns_per_event']:.1f} |", file.read())

    def test_runs_of_a_gpu_machine_become_medians(self):
        for run, warm in enumerate((700.0, 300.0, 400.0), 1):
            held = {"pool_over_live": 1.5, "mean_pool_over_live": 2.5} if run == 1 else {}
            write(self.folder, f"pytorch.{run}.json", [row("gpt2_train_varlen", warm, **held)])
        write(self.folder, "pytorch.needs.json", [row("gpt2_train_varlen", 9.0, needs_over_live=1.25)])
        write(self.folder, "rmm_arena.1.json", [row("gpt2_train_varlen", 600.0, pool_over_live=9.0)])
        write(self.folder, "hbm_replay.1-4.json", [row("gpt2_train_varlen", 90.0, strategy="elastic", device="cuda:0",
                                                       pool_over_live=1.01, driver_us=7.0)])
        write(self.folder, "environment.json", {"gpu": "a GPU"})
        with open(os.path.join(self.folder, "broken.1.json"), "w", encoding="utf-8") as file:
            file.write("[{")
        found = report.read_gpu(self.folder)
        self.assertEqual(found["machine"], {"gpu": "a GPU"})
        by_name = {r["allocator"]: r for r in found["results"]}
        pytorch = by_name["PyTorch"]
        self.assertEqual([pytorch[f"warm_ns_per_event{end}"] for end in ("", "_min", "_max")], [400, 300, 700])
        self.assertEqual((pytorch["runs"], pytorch["pool_over_live"], pytorch["needs_over_live"]), (3, 1.5, 1.25))
        # It takes what it is given: its pool says nothing.
        self.assertIsNone(by_name["RMM arena"]["pool_over_live"])
        # The clock saw the driver at work already.
        self.assertIsNone(by_name["elastic"]["driver_us"])
        self.assertEqual(found["results"][0]["allocator"], "elastic")

    def test_the_front_joins_those_that_none_beats(self):
        points = [plot.Point(name, time, memory, "peer") for name, time, memory in
                  (("fast", 10, 2.0), ("beaten", 20, 2.5), ("middle", 30, 1.5), ("as good", 40, 1.4999),
                   ("tight", 1000, 1.01), ("slow", 2000, 1.01))]
        self.assertEqual([p.name for p in plot.pareto_front(points)], ["fast", "middle", "tight"])

    def test_every_point_has_a_name_of_its_own_place(self):
        points = [plot.Point(f"allocator {i}", 50 * 1.01 ** i, 1.1 + i / 500, "hbmalloc") for i in range(8)]
        axes = plot.Axes(points)
        boxes = [box for _, _, box in plot.place_labels(points, axes)]
        for i, one in enumerate(boxes):
            for other in boxes[:i]:
                self.assertTrue(one[2] < other[0] or one[0] > other[2] or one[3] < other[1] or one[1] > other[3])


if __name__ == "__main__":
    SOURCE, BUILD = (os.path.abspath(a) for a in sys.argv[1:3])
    sys.path.insert(0, os.path.join(SOURCE, "bench"))
    import plot
    import report
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
