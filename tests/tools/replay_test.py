#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs hbm-replay as its users do, and recomputes what it reports.

    replay_test.py PROGRAM SOURCE_DIR
"""
import csv
import gzip
import io
import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
SOURCE = ""
GIB = 1 << 30
GRID = 2 << 20

OK, USAGE, BAD_INPUT, FAILED = 0, 1, 2, 3
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
FIELDS = {
    "trace", "file", "strategy", "policy", "device", "events", "failures", "peak_live_bytes",
    "peak_bytes_in_use", "peak_pool_bytes", "pool_over_live", "mean_pool_over_live",
    "first_ns_per_event", "warm_ns_per_event", "driver_calls", "driver_us", "setup_driver_calls",
    "setup_driver_us", "waits", "wait_us", "external_fragmentation", "rounding_waste",
    "utilization_at_peak", "height_over_load", "trace_duration_us", "streams",
    "recorded_failures", "unknown_frees", "passes"}


def trace_file(name):
    return os.path.join(SOURCE, "bench", "traces", name + ".csv.gz")


def golden(name):
    with gzip.open(os.path.join(SOURCE, "tests", "golden", name + ".csv.gz"), "rt") as file:
        return file.read()


def rows_of(name):
    with gzip.open(trace_file(name), "rt") as file:
        return list(csv.DictReader(file))


def live_figures(rows):
    """Peak of live bytes, their integral over time, and the duration."""
    sizes, live, peak, integral, last = {}, 0, 0, 0, int(rows[0]["Time"])
    for row in rows:
        now = int(row["Time"])
        integral += live * (now - last)
        last = now
        if row["Action"] == "allocate":
            sizes[row["Pointer"]] = int(row["Size"])
            live += int(row["Size"])
            peak = max(peak, live)
        else:
            live -= sizes.pop(row["Pointer"])
    return peak, integral, last - int(rows[0]["Time"])


class ReplayTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, *arguments, expect=OK):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, expect, done.stderr)
        self.out, self.err = done.stdout, done.stderr
        return done.stdout

    def json_of(self, *arguments, expect=OK):
        return json.loads(self.run_program("--format=json", *arguments, expect=expect))

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        return path

    # ---- The command line -------------------------------------------------------------------

    def test_help_and_version_succeed_and_define_every_figure(self):
        text = self.run_program("--help")
        for name in FIELDS | {"needs_bytes", "needs_over_live"}:
            self.assertIn(name, text)
        for flag in ("--strategy", "--device", "--capacity", "--repeat", "--find-capacity",
                     "--placements", "--allow-failures", "--format", "--out"):
            self.assertIn(flag, text)
        self.assertRegex(self.run_program("--version"), r"^hbm-replay \d+\.\d+\.\d+\n$")

    def test_bad_usage_is_exit_code_1_and_says_what_is_wrong(self):
        edges = trace_file("edges")
        for arguments, words in [
                ([], "no trace"),
                (["--nonsense", edges], "--nonsense: no such flag"),
                (["-x", edges], "-x: no such flag"),
                (["--htm=x.html", edges], "--htm=x.html: no such flag"),
                (["--repeat=0", edges], "from 1 to 1000000"),
                (["--repeat=many", edges], "--repeat=many"),
                (["--repeat"], "needs a value"),
                (["--find-capacity=yes", edges], "takes no value"),
                (["--format=xml", edges], "table, json or csv"),
                (["--capacity=lots", edges], "--capacity=lots"),
                (["--device=floppy", edges], "floppy"),
                (["--device=", edges], "needs a value"),
                (["--strategy=worst_fit", edges], "worst_fit"),
                (["--strategy=bfc:nonsense=1", edges], "nonsense"),
                (["--strategy=bfc;;elastic", edges], "empty strategy"),
                (["--strategy=bfc;all", edges], "all cannot be combined"),
                (["--strategy=cuda_async", edges], "cuda_async"),
                (["--find-capacity", "--device=host:64MiB", edges], "--find-capacity"),
                (["--placements=" + self.folder + "/p", "--strategy=bfc;platform", edges],
                 "{strategy}"),
                (["--strategy=bfc", "--out=/no/such/folder/x", edges], "/no/such/folder/x"),
        ]:
            with self.subTest(arguments=arguments):
                self.assertEqual(self.run_program(*arguments, expect=USAGE), "")
                self.assertIn(words, self.err)
                self.assertTrue(self.err.startswith("hbm-replay: "), self.err)

    def test_bad_input_is_exit_code_2_with_file_and_line(self):
        bad = {
            "size.csv": (HEADER + "0,1,allocate,0x10,12x,0\n", ":2: column Size: \"12x\""),
            "column.csv": ("Thread,Time,Action,Pointer,Stream\n", ":1: column Size is missing"),
            "twice.csv": (HEADER + "0,1,allocate,0x10,1,0\n0,1,allocate,0x10,1,0\n",
                          ":3: pointer 0x10: allocated again"),
            "text.csv": ("hello\n", ":1: not a trace"),
            "empty.csv": ("", ": is empty"),
        }
        for name, (text, words) in bad.items():
            path = self.write(name, text)
            self.assertEqual(self.run_program("--strategy=bfc", path, expect=BAD_INPUT), "")
            self.assertIn(path + words, self.err)
        self.run_program(self.folder + "/missing.csv", expect=BAD_INPUT)
        self.assertIn("missing.csv: cannot be opened", self.err)
        self.run_program(self.folder, expect=BAD_INPUT)

    def test_every_bad_file_is_named_and_nothing_is_replayed(self):
        first = self.write("a.csv", "a\n")
        second = self.write("b.csv", "b\n")
        self.run_program("--strategy=bfc", first, trace_file("edges"), second, expect=BAD_INPUT)
        self.assertIn(first, self.err)
        self.assertIn(second, self.err)

    def test_a_full_disk_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        self.run_program("--strategy=bfc", "--out=/dev/full", trace_file("edges"), expect=USAGE)
        self.assertIn("/dev/full: cannot be written", self.err)

    # ---- Failures -----------------------------------------------------------------------------

    def test_failed_requests_are_exit_code_3_with_their_count(self):
        tight = [trace_file("random_tight"), "--device=sim:3GiB"]
        bfc = "--strategy=bfc:memory_fraction=1"
        results = self.json_of(bfc, *tight, expect=FAILED)
        self.assertEqual(results[0]["failures"], 641)
        self.assertIn("641 requests failed", self.err)
        results = self.json_of(bfc, "--allow-failures", *tight)
        self.assertEqual(results[0]["failures"], 641)
        # Failed requests count as live.
        self.assertEqual(results[0]["peak_live_bytes"], live_figures(rows_of("random_tight"))[0])

    def test_unknown_frees_and_recorded_failures_are_reported_and_not_fatal(self):
        path = self.write("odd.csv", HEADER + "0,1,free,0xdead0,4,0\n0,2,allocate,0x10,4,0\n"
                          "0,3,allocate failure,(nil),99,0\n0,4,free,0x10,4,0\n")
        result = self.json_of("--strategy=bfc", path)[0]
        self.assertEqual((result["events"], result["unknown_frees"], result["recorded_failures"]),
                         (2, 1, 1))
        self.assertIn("line 2: 0xdead0", self.err)

    # ---- Figures ------------------------------------------------------------------------------

    def test_live_figures_are_those_of_an_independent_computation(self):
        for name in ("gpt2_train_varlen", "mlp_train_multistream", "xla_train_1"):
            rows = rows_of(name)
            peak, integral, duration = live_figures(rows)
            result = self.json_of("--strategy=bfc:memory_fraction=1", "--device=sim:24GiB",
                                  trace_file(name))[0]
            self.assertTrue(FIELDS <= set(result), FIELDS - set(result))
            self.assertEqual(result["trace"], name)
            self.assertEqual(result["events"], len(rows))
            self.assertEqual(result["peak_live_bytes"], peak)
            self.assertEqual(result["trace_duration_us"], duration)
            self.assertEqual(result["peak_pool_bytes"], 24 * GIB)
            self.assertAlmostEqual(result["pool_over_live"], 24 * GIB / peak, places=6)
            # The pool is there from the first event to the last.
            self.assertAlmostEqual(result["mean_pool_over_live"], 24 * GIB * duration / integral,
                                   delta=1e-6 * result["mean_pool_over_live"])
            self.assertAlmostEqual(result["utilization_at_peak"],
                                   result["peak_bytes_in_use"] / (24 * GIB), places=6)
            self.assertEqual(result["streams"], len({row["Stream"] for row in rows}))

    def test_height_is_what_the_placements_say(self):
        name = "unet_train_varsize"
        path = os.path.join(self.folder, "p.csv")
        for strategy in ("bfc:memory_fraction=1", "on_demand:memory_fraction=1"):
            result = self.json_of("--strategy=" + strategy, "--device=sim:40GiB",
                                  "--placements=" + path, trace_file(name))[0]
            sizes = [int(row["Size"]) for row in rows_of(name) if row["Action"] == "allocate"]
            with open(path, encoding="utf-8") as file:
                offsets = [int(row["offset"]) for row in csv.DictReader(file)]
            self.assertEqual(len(offsets), len(sizes))
            height = max(offset + size for offset, size in zip(offsets, sizes))
            self.assertAlmostEqual(result["height_over_load"], height / result["peak_live_bytes"],
                                   places=6)

    def test_placements_are_the_golden_ones(self):
        path = os.path.join(self.folder, "{trace}.{strategy}.csv")
        self.run_program("--strategy=bfc:memory_fraction=1", "--device=sim:24GiB",
                         "--placements=" + self.folder + "/a.csv", trace_file("gpt2_train_varlen"))
        with open(self.folder + "/a.csv", encoding="utf-8") as file:
            self.assertEqual(file.read(), golden("gpt2_train_varlen.bfc"))
        self.run_program("--strategy=on_demand:memory_fraction=1", "--device=sim:3GiB",
                         "--allow-failures", "--placements=" + path, trace_file("random_tight"))
        name = self.folder + "/random_tight.on_demand:memory_fraction=1.csv"
        with open(name, encoding="utf-8") as file:
            self.assertEqual(file.read(), golden("random_tight.on_demand"))

    def test_capacity_is_the_devices_total(self):
        result = self.json_of("--strategy=bfc:memory_fraction=0.5", "--capacity=16GiB",
                              trace_file("unet_train_varsize"))[0]
        self.assertEqual(result["peak_pool_bytes"], 8 * GIB)
        self.assertIn("16GiB", result["device"])

    def test_needs_is_the_smallest_device(self):
        trace = trace_file("unet_train_varsize")
        result = self.json_of("--strategy=bfc", "--find-capacity", trace)[0]
        needs = result["needs_bytes"]
        self.assertEqual(needs % GRID, 0)
        self.assertAlmostEqual(result["needs_over_live"], needs / result["peak_live_bytes"],
                               places=6)
        bfc = "--strategy=bfc:memory_fraction=1"
        self.run_program(bfc, f"--capacity={needs}", trace)
        self.run_program(bfc, f"--capacity={needs - GRID}", trace, expect=FAILED)

    def test_warm_time_needs_a_second_pass(self):
        trace = trace_file("xla_eager_1")
        self.assertIsNone(self.json_of("--repeat=1", "--strategy=bfc", trace)[0]["warm_ns_per_event"])
        result = self.json_of("--repeat=3", "--strategy=bfc", trace)[0]
        self.assertGreater(result["warm_ns_per_event"], 0)
        self.assertGreater(result["first_ns_per_event"], 0)
        self.assertEqual(result["passes"], 3)

    def test_host_memory_works_too(self):
        result = self.json_of("--strategy=on_demand;platform", "--device=host:2GiB",
                              trace_file("xla_eager_1"))
        self.assertEqual([r["failures"] for r in result], [0, 0])
        self.assertEqual(result[0]["device"], "host:2GiB")

    def test_all_three_take_under_two_seconds(self):
        # Processor time, so that a busy machine is no failure.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        results = self.json_of("--strategy=all", trace_file("gpt2_train_varlen"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.assertTrue({"bfc", "on_demand", "platform"} <= {r["strategy"] for r in results})
        self.assertIn("left out: cuda_async", self.err)
        if "SANITIZED_TESTS" not in os.environ:
            self.assertLess(took, 2.0)

    # ---- Formats ------------------------------------------------------------------------------

    def test_csv_has_the_fields_of_json(self):
        arguments = ["--strategy=bfc;on_demand", "--find-capacity", "--repeat=1",
                     trace_file("xla_eager_1")]
        results = self.json_of(*arguments)
        rows = list(csv.DictReader(io.StringIO(self.run_program("--format=csv", *arguments))))
        self.assertEqual([list(row) for row in rows], [list(result) for result in results])
        for row, result in zip(rows, results):
            self.assertEqual(row["peak_pool_bytes"], str(result["peak_pool_bytes"]))
            self.assertEqual(row["strategy"], result["strategy"])
            self.assertEqual(row["warm_ns_per_event"], "")

    def test_the_table_is_aligned_and_marks_the_best(self):
        out = self.folder + "/table.txt"
        self.assertEqual(self.run_program("--strategy=bfc;on_demand", "--out=" + out,
                                          "--capacity=24GiB", trace_file("unet_train_varsize"),
                                          trace_file("xla_eager_1")), "")
        with open(out, encoding="utf-8") as file:
            lines = file.read().split("\n")
        self.assertTrue(lines[0].startswith("unet_train_varsize: 23,274 events in "), lines[0])
        column = lines[1].index("pool/live") + len("pool/live")
        for line in lines[2:4]:
            self.assertRegex(line[column - 5:column + 1], r"^[ 0-9]+\.[0-9]{3}[* ]$")
        self.assertTrue(lines[2].startswith("  bfc "))
        self.assertEqual(lines[3][column], "*")  # growth holds less than 18 GiB
        self.assertTrue(any(line.startswith("xla_eager_1: 7,014 events") for line in lines))

    def test_the_table_of_a_tiny_trace_stays_narrow(self):
        tiny = self.write("tiny.csv", HEADER + "0,1,allocate,0x10,1,0\n0,2,free,0x10,1,0\n")
        lines = self.run_program("--strategy=bfc;platform", tiny).split("\n")
        self.assertIn(">99,999", lines[2])
        self.assertTrue(all(len(line) <= 110 for line in lines))

    def test_progress_is_shown_to_a_terminal_and_to_nobody_else(self):
        mother, child = pty.openpty()
        with subprocess.Popen([PROGRAM, "--strategy=bfc;platform", "--repeat=1", trace_file("xla_eager_1")],
                              stdout=subprocess.DEVNULL, stderr=child) as running:
            os.close(child)
            shown = b""
            while True:
                try:
                    got = os.read(mother, 4096)
                except OSError:  # the other end is closed
                    break
                if not got:
                    break
                shown += got
            self.assertEqual(running.wait(), OK)
        os.close(mother)
        self.assertIn(b"[1/2] xla_eager_1: bfc", shown)
        self.assertIn(b"[2/2] xla_eager_1: platform", shown)
        self.assertTrue(shown.endswith(b"\r\x1b[K"), "the line is taken away at the end")
        self.run_program("--strategy=bfc", "--repeat=1", trace_file("xla_eager_1"))
        self.assertEqual(self.err, "")

    # ---- Files that it writes -----------------------------------------------------------------

    def test_no_output_overwrites_a_trace(self):
        text = HEADER + "0,1,allocate,0x10,1,0\n"
        trace = self.write("trace.csv", text)
        link = os.path.join(self.folder, "link.csv")
        os.symlink(trace, link)
        hard = os.path.join(self.folder, "hard.csv")
        os.link(trace, hard)
        os.mkdir(os.path.join(self.folder, "sub"))
        roundabout = os.path.join(self.folder, "sub", "..", "trace.csv")
        for flag in ("--out=", "--html=", "--placements="):
            for name in (trace, link, hard, roundabout):
                self.run_program("--strategy=bfc", flag + name, trace, expect=BAD_INPUT)
                self.assertIn("would be overwritten", self.err)
                with open(trace, encoding="utf-8") as file:
                    self.assertEqual(file.read(), text)
        self.run_program("--strategy=bfc", "--placements=" + os.path.join(self.folder, "{trace}.csv"), trace,
                         expect=BAD_INPUT)
        self.run_program("--strategy=bfc", "--out=/dev/null", trace)

    def test_two_outputs_need_two_files(self):
        both = os.path.join(self.folder, "both")
        self.run_program("--strategy=bfc", "--out=" + both, "--html=" + both, trace_file("xla_eager_1"), expect=USAGE)
        self.assertIn("another output goes there", self.err)
        self.assertFalse(os.path.exists(both))

    def test_placements_of_traces_with_one_name_are_numbered(self):
        traces = []
        for i, size in enumerate((512, 1024)):
            os.mkdir(os.path.join(self.folder, str(i)))
            traces.append(self.write(f"{i}/same.csv", HEADER + f"0,1,allocate,0x10,{size},0\n"
                                     f"0,2,allocate,0x20,{size},0\n"))
        self.run_program("--strategy=bfc", "--placements=" + os.path.join(self.folder, "at.{trace}.csv"), *traces)
        self.assertIn("at.same-2.csv instead", self.err)
        for name, second in (("at.same.csv", 512), ("at.same-2.csv", 1024)):
            with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                self.assertEqual(file.read(), f"id,offset\n0,0\n1,{second}\n")

    def test_the_page_is_one_file_that_refers_to_nothing(self):
        page = os.path.join(self.folder, "page.html")
        self.run_program("--html=" + page, "--strategy=bfc;elastic", trace_file("gpt2_train_varlen"),
                         trace_file("unet_train_varsize"))
        self.assertIn("gpt2_train_varlen", self.out)  # the report as ever
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertLess(len(text), 8 << 20)
        self.assertEqual(re.findall(r"https?:|\ssrc=|@import|url\(", text), [])
        self.assertNotIn("{{", text)
        about = json.loads(re.search(r'id="about-data">(.*?)</script>', text, re.S).group(1))
        self.assertEqual([len(trace["strategies"]) for trace in about["traces"]], [2, 2])
        self.assertEqual(len(about["results"]), 4)

    def test_odd_file_names_make_valid_json(self):
        name = os.path.join(self.folder, 'a"b\\c\n\u00e9.csv').encode() + b"\xff"
        with open(name, "wb") as file:
            file.write((HEADER + "0,1,allocate,0x10,1,0\n").encode())
        done = subprocess.run([PROGRAM, "--format=json", "--strategy=bfc", name],
                              capture_output=True, check=True)
        result = json.loads(done.stdout.decode("utf-8"))[0]
        self.assertTrue(result["file"].endswith('a"b\\c\n\u00e9.csv\ufffd'), result["file"])

    def test_flags_may_follow_traces_and_values_may_stand_apart(self):
        results = self.json_of(trace_file("xla_eager_1"), "--strategy", "bfc", "--repeat", "1")
        self.assertEqual(len(results), 1)

    def test_an_empty_trace_gives_no_ratios(self):
        result = self.json_of("--strategy=bfc", "--find-capacity", self.write("e.csv", HEADER))[0]
        self.assertEqual(result["events"], 0)
        for name in ("pool_over_live", "mean_pool_over_live", "height_over_load",
                     "needs_over_live"):
            self.assertIsNone(result[name])


if __name__ == "__main__":
    PROGRAM, SOURCE = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
