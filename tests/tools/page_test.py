#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the page of `hbm-replay --html` in a headless Chromium and uses it as people do.

    page_test.py PROGRAM SOURCE_DIR [--screenshots=FOLDER]

What the page says is compared with the trace and with `--placements`. Exit code 77: there is no
Chromium here (set CHROMIUM to its path if it has another name).
"""
import csv
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

from browser import Browser, find_chromium

PROGRAM = SOURCE = SCREENSHOTS = ""
HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"
MARGIN = {"left": 84, "right": 16, "top": 8, "bottom": 24}
READY = "document.documentElement?.dataset.ready"


def trace_file(name):
    return os.path.join(SOURCE, "bench", "traces", name + ".csv.gz")


class Block:
    def __init__(self, size, begin, stream):
        self.size, self.begin, self.end, self.stream, self.offset = size, begin, None, stream, None


def blocks_of(path, placements):
    """The trace's blocks, read here and not by the program, with their places; and its last time."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    first, live, blocks = int(rows[0]["Time"]), {}, []
    for row in rows:
        now = int(row["Time"]) - first
        if row["Action"] == "allocate":
            live[row["Pointer"]] = Block(int(row["Size"]), now, row["Stream"])
            blocks.append(live[row["Pointer"]])
        else:
            live.pop(row["Pointer"]).end = now
    last = int(rows[-1]["Time"]) - first
    with open(placements, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            blocks[int(row["id"])].offset = int(row["offset"])
    for block in blocks:
        block.end = last if block.end is None else block.end
    return blocks, last


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(find_chromium())

    @classmethod
    def tearDownClass(cls):
        cls.browser.__exit__()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def page_of(self, *arguments, expect=0):
        """Writes the page and gives its path, and the results as JSON."""
        path = os.path.join(self.folder, "page.html")
        done = subprocess.run([PROGRAM, "--format=json", "--repeat=2", "--html=" + path, *arguments],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, expect, done.stderr)
        return path, json.loads(done.stdout)

    def open(self, path, height=1600):
        page = self.browser.open("file://" + path, 1280, height)
        page.wait_for(READY)
        page.settle()
        self.addCleanup(lambda: self.assertEqual(page.errors, []))
        return page

    def box_of(self, page, canvas):
        """The plot's rectangle in the window: left, top, width, height."""
        box = page.evaluate(f"(() => {{ const b = document.getElementById('{canvas}').getBoundingClientRect();"
                            "return [b.left, b.top, b.width, b.height]; })()")
        return (box[0] + MARGIN["left"], box[1] + MARGIN["top"], box[2] - MARGIN["left"] - MARGIN["right"],
                box[3] - MARGIN["top"] - MARGIN["bottom"])

    def range_of(self, page):
        return page.evaluate("[view.from, view.to, map.upward.from, map.upward.to]")

    def keep(self, page, name):
        if SCREENSHOTS:
            os.makedirs(SCREENSHOTS, exist_ok=True)
            with open(os.path.join(SCREENSHOTS, name), "wb") as file:
                file.write(page.screenshot())

    def write_large_trace(self, events):
        path = os.path.join(self.folder, "large.csv")
        source, live, address = random.Random(7), [], 0
        with open(path, "w", encoding="utf-8") as file:
            file.write(HEADER)
            for i in range(events):
                if live and (len(live) > 3000 or source.random() < 0.49):
                    pointer, size = live.pop(source.randrange(len(live)))
                    file.write(f"1,{i * 11},free,{pointer:#x},{size},0\n")
                else:
                    address += 1
                    size = int(2 ** source.uniform(6, 23))
                    live.append((address, size))
                    file.write(f"1,{i * 11},allocate,{address:#x},{size},{source.randrange(3)}\n")
        return path

    # ---- Small, fast, alone -------------------------------------------------------------------

    def test_a_large_trace_makes_a_small_page_that_opens_fast(self):
        path, results = self.page_of("--strategy=all", self.write_large_trace(180000))
        self.assertGreaterEqual(len(results), 4)
        self.assertLess(os.path.getsize(path), 8 << 20)
        page = self.open(path)
        self.assertLess(int(page.evaluate(READY)), 2000)
        self.assertEqual(page.requests, ["file://" + path])
        self.assertEqual(page.evaluate("data.traces[0].events"), 180000)

    # ---- It says what is so -------------------------------------------------------------------

    def test_hover_names_the_block_that_placements_put_there(self):
        trace, placements = trace_file("unet_train_varsize"), os.path.join(self.folder, "placements.csv")
        path, _ = self.page_of("--strategy=bfc:memory_fraction=1", "--device=sim:24GiB", "--placements=" + placements,
                               trace)
        blocks, last = blocks_of(trace, placements)
        page = self.open(path)
        left, top, width, height = self.box_of(page, "map")
        ceiling = self.range_of(page)[3]
        self.assertEqual(ceiling, max(b.offset + b.size for b in blocks if b.offset >= 0))
        # Those of which the middle is well inside what is drawn.
        wide = [(i, b) for i, b in enumerate(blocks)
                if (b.end - b.begin) / last * width > 6 and b.size / ceiling * height > 3]
        self.assertGreater(len(wide), 20)
        for i, block in random.Random(3).sample(wide, 20):
            x = left + (block.begin + block.end) / 2 / last * width
            y = top + height - (block.offset + block.size / 2) / ceiling * height
            page.move(x, y)
            text = page.evaluate("document.getElementById('tip').textContent")
            self.assertIn(f"block {i}, ", text)
            self.assertIn(f"({block.size:,} bytes)", text)
            self.assertIn(f"at {block.offset:#x} from", text)
            self.assertFalse(page.evaluate("document.getElementById('tip').hidden"))
        page.move(left - 40, top)
        self.assertTrue(page.evaluate("document.getElementById('tip').hidden"))

    def test_curves_and_blocks_are_those_of_the_report(self):
        path, results = self.page_of("--strategy=all", trace_file("gpt2_train_varlen"))
        page = self.open(path)
        for i, result in enumerate(results):
            page.evaluate(f"chooseStrategy({i})")
            self.assertEqual(page.evaluate("Math.max(...memory.chosen.samples.pool)"), result["peak_pool_bytes"])
            self.assertEqual(page.evaluate("Math.max(...memory.chosen.samples.use)"), result["peak_bytes_in_use"])
        self.assertEqual(page.evaluate("traceOf(0).live.reduce((a, b) => Math.max(a, b), 0)"),
                         results[0]["peak_live_bytes"])
        self.assertEqual(page.evaluate("sizes.found.counts.reduce((a, b) => a + (b || 0), 0)"),
                         page.evaluate("data.traces[0].blocks"))
        shown = page.evaluate("document.getElementById('compare').innerText")
        for result in results:
            self.assertIn(f"{result['pool_over_live']:.3f}", shown)
            self.assertIn(f"{result['driver_calls']:,}", shown)

    def test_fragmentation_is_the_report_s_at_the_live_peak(self):
        # Few enough events that each has its own sample.
        path, results = self.page_of("--strategy=bfc;on_demand;platform;elastic", "--device=sim:24GiB",
                                     trace_file("xla_train_1"))
        page = self.open(path)
        peak = page.evaluate("traceOf(0).live.indexOf(Math.max(...traceOf(0).live))")
        for i, result in enumerate(results):
            page.evaluate(f"chooseStrategy({i})")
            shown = page.evaluate(f"sampleAt(memory.chosen.samples, memory.chosen.samples.fragmentation, {peak})")
            if result["external_fragmentation"] is None:
                self.assertIsNone(shown)  # not a number
            else:
                self.assertAlmostEqual(shown, result["external_fragmentation"], delta=0.0001)

    def test_tags_colour_and_name_the_blocks(self):
        trace = os.path.join(self.folder, "tagged.csv")
        with open(trace, "w", encoding="utf-8") as file:
            file.write(HEADER.strip() + ",Tag\n0,0,allocate,0x10,4096,0,\n0,0,allocate,0x20,4096,0,weights\n"
                       "0,0,allocate,0x30,4096,0,<b>cache</b>\n0,900,free,0x30,4096,0,\n0,1000,free,0x20,4096,0,\n")
        path, _ = self.page_of("--strategy=bfc", trace)
        page = self.open(path)
        self.assertEqual(page.evaluate("document.getElementById('color').value"), "label")
        self.assertEqual(page.evaluate("document.getElementById('color-key').textContent"), "noneweights<b>cache</b>")
        left, top, width, height = self.box_of(page, "map")
        for i, tag in enumerate(("none", "weights", "<b>cache</b>")):
            page.move(left + width / 2, top + height - (i + 0.5) / 3 * height)
            text = page.evaluate("document.getElementById('tip').textContent")
            self.assertTrue(text.startswith(f"block {i}, ") and text.endswith("tag " + tag), text)

    # ---- Zoom ---------------------------------------------------------------------------------

    def test_zoom_shows_less_and_finds_what_was_too_small(self):
        trace, placements = trace_file("xla_train_1"), os.path.join(self.folder, "placements.csv")
        path, _ = self.page_of("--strategy=bfc:memory_fraction=1", "--device=sim:24GiB", "--placements=" + placements,
                               trace)
        page = self.open(path)
        whole, drawn = self.range_of(page), page.evaluate("document.getElementById('map').toDataURL()")
        left, top, width, height = self.box_of(page, "map")
        page.drag(left + width * 0.25, top + height * 0.25, left + width * 0.75, top + height * 0.75)
        half = self.range_of(page)
        for got, expected in zip(half, (whole[1] / 4, whole[1] * 3 / 4, whole[3] / 4, whole[3] * 3 / 4)):
            self.assertAlmostEqual(got, expected, delta=max(whole[1], whole[3]) / 200)
        self.assertNotEqual(page.evaluate("document.getElementById('map').toDataURL()"), drawn)
        page.wheel(left + width / 2, top + height / 2, -400)
        closer = self.range_of(page)
        self.assertLess(closer[1] - closer[0], (half[1] - half[0]) * 0.8)
        self.assertEqual(closer[2:], half[2:])
        page.wheel(left + width / 2, top + height / 2, -400, shift=True)
        self.assertLess(self.range_of(page)[3] - self.range_of(page)[2], (half[3] - half[2]) * 0.8)
        self.find_small_blocks(page, blocks_of(trace, placements)[0])
        page.mouse("mousePressed", left + 50, top + 50, button="left", buttons=1, clickCount=2)
        page.mouse("mouseReleased", left + 50, top + 50, button="left", clickCount=2)
        page.settle()
        self.assertEqual(self.range_of(page), whole)
        page.evaluate("document.getElementById('zoom-in').click()")
        self.assertAlmostEqual(self.range_of(page)[1] - self.range_of(page)[0], whole[1] / 2, delta=1)

    def find_small_blocks(self, page, blocks):
        """Blocks far smaller than a pixel of the whole are found once they are zoomed to."""
        left, top, width, height = self.box_of(page, "map")
        small = [(i, b) for i, b in enumerate(blocks) if 256 <= b.size < 65536 and b.end - b.begin > 100]
        for i, block in random.Random(5).sample(small, 5):
            life = block.end - block.begin
            page.evaluate(f"map.upward.set({block.offset - block.size}, {block.offset + 2 * block.size});"
                          f"view.set({block.begin - life}, {block.end + life})")
            page.settle()
            t0, t1, a0, a1 = self.range_of(page)
            page.move(left + ((block.begin + block.end) / 2 - t0) / (t1 - t0) * width,
                      top + height - (block.offset + block.size / 2 - a0) / (a1 - a0) * height)
            self.assertIn(f"block {i}, ", page.evaluate("document.getElementById('tip').textContent"))

    # ---- Everything can be chosen -------------------------------------------------------------

    def test_every_choice_draws_without_a_complaint(self):
        path, results = self.page_of("--strategy=all", trace_file("mlp_train_multistream"), trace_file("xla_eager_1"))
        page = self.open(path)
        seen = set()
        for trace in range(2):
            for strategy in range(len(results) // 2):
                for kind in ("size", "label", "life"):
                    for across in ("events", "time"):
                        for name, value in (("trace", trace), ("strategy", strategy), ("color", kind),
                                            ("across", across)):
                            page.evaluate(f"(() => {{ const s = document.getElementById('{name}'); s.value = '{value}';"
                                          "s.dispatchEvent(new Event('change')); })()")
                        page.settle()
                        seen.add(page.evaluate("document.getElementById('map').toDataURL()"))
        self.assertGreater(len(seen), len(results) * 3)

    def test_light_and_dark(self):
        path, _ = self.page_of("--strategy=bfc;elastic", trace_file("unet_train_varsize"))
        page = self.open(path)
        paper = "getComputedStyle(document.body).backgroundColor"
        colors = {}
        for scheme in ("light", "dark"):
            page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            page.settle()
            colors[scheme] = page.evaluate(paper)
        self.assertEqual(colors, {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"})
        page.evaluate("document.getElementById('theme').click()")
        self.assertEqual(page.evaluate(paper), colors["light"])
        page.evaluate("document.getElementById('theme').click()")
        self.assertEqual(page.evaluate(paper), colors["dark"])

    # ---- Odd input ----------------------------------------------------------------------------

    def test_odd_names_empty_traces_and_failures(self):
        odd = os.path.join(self.folder, "<script>alert(1)<!--{{script}}.csv")
        with open(odd, "w", encoding="utf-8") as file:
            file.write(HEADER + "0,1,allocate,0x10,1,0\n")
        empty = os.path.join(self.folder, "empty.csv")
        with open(empty, "w", encoding="utf-8") as file:
            file.write(HEADER)
        path, _ = self.page_of("--strategy=bfc:memory_fraction=1;platform", "--device=sim:3GiB", "--allow-failures", odd,
                               empty, trace_file("random_tight"))
        page = self.open(path)
        self.assertIn("<script>alert(1)<!--{{script}}: 1 events",
                      page.evaluate("document.getElementById('about').textContent"))
        for trace in range(3):
            page.evaluate(f"chooseTrace({trace})")
            page.settle()
        self.assertIn("failed", page.evaluate("document.getElementById('compare').innerText"))

    # ---- For the docs -------------------------------------------------------------------------

    def test_screenshots(self):
        path, _ = self.page_of("--strategy=bfc;on_demand;platform;elastic", "--find-capacity", "--device=sim:24GiB",
                               trace_file("gpt2_train_varlen"))
        page = self.open(path, 1420)
        self.keep(page, "page_light.png")
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        page.evaluate("chooseStrategy(3)")
        page.settle()
        left, top, width, height = self.box_of(page, "map")
        page.drag(left + width * 0.47, top + height * 0.55, left + width * 0.56, top + height * 0.95)
        for step in range(8, 92):  # any block will do
            page.move(left + width * step / 100, top + height * 0.4)
            if not page.evaluate("document.getElementById('tip').hidden"):
                break
        self.assertIn("block ", page.evaluate("document.getElementById('tip').textContent"))
        self.keep(page, "page_dark.png")


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if not a.startswith("--screenshots=")]
    SCREENSHOTS = "".join(a.split("=", 1)[1] for a in sys.argv[1:] if a.startswith("--screenshots="))
    PROGRAM, SOURCE = (os.path.abspath(a) for a in arguments[:2])
    if find_chromium() is None:
        print("skipped: no Chromium here (Debian's package chromium; or set CHROMIUM to its path)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *arguments[2:]], verbosity=1)
