#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hbm-replay's figures against what follows from its placements alone.

    figures_test.py HBM_REPLAY TRACES_FOLDER

For every recorded trace: where each block was put (--placements), and the trace's own
sizes and order, give how large each chunk was, what was free, and how high the blocks
reached. The definitions are those of --help; nothing of the library is used.
"""
import bisect
import csv
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

UNIT = 256
MAX_WASTE = 128 << 20  # XLA's: a remainder of this much is always split off
REPLAY, TRACES = None, None


def read_trace(path):
    """(is_allocation, block number, bytes) of each event, as the trace has them."""
    live, blocks = {}, 0
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["Action"] == "allocate":
                live[row["Pointer"]] = blocks
                yield True, blocks, int(row["Size"])
                blocks += 1
            elif row["Action"] == "free" and row["Pointer"] in live:
                yield False, live.pop(row["Pointer"]), 0


class Pool:
    """One region, of which only the places of blocks are told."""

    def __init__(self, size):
        self.size, self.starts, self.chunks = size, [], {}
        self.in_use = self.requested = self.highest = 0

    def put(self, at, size):
        need = -(-size // UNIT) * UNIT
        place = bisect.bisect_left(self.starts, at)
        end = self.starts[place] if place < len(self.starts) else self.size
        gap = end - at
        taken = need if gap >= 2 * need or gap - need >= MAX_WASTE else gap
        self.starts.insert(place, at)
        self.chunks[at] = (taken, size)
        self.in_use += taken
        self.requested += size
        self.highest = max(self.highest, at + need)

    def take(self, at):
        taken, size = self.chunks.pop(at)
        del self.starts[bisect.bisect_left(self.starts, at)]
        self.in_use -= taken
        self.requested -= size

    def external_fragmentation(self):
        free = self.size - self.in_use
        largest, end = 0, 0
        for at in self.starts:
            largest = max(largest, at - end)
            end = at + self.chunks[at][0]
        return 1 - max(largest, self.size - end) / free if free else 0.0


def compute(path, offsets, size):
    pool, where = Pool(size), {}
    peak_live = peak_in_use = 0
    at_peak = None
    for is_allocation, block, bytes_ in read_trace(path):
        if not is_allocation:
            if block in where:
                pool.take(where.pop(block))
            continue
        if bytes_ == 0:
            continue
        where[block] = offsets[block]
        pool.put(offsets[block], bytes_)
        peak_in_use = max(peak_in_use, pool.in_use)
        if pool.requested > peak_live:
            peak_live = pool.requested
            at_peak = (list(pool.starts), dict(pool.chunks), pool.in_use, pool.requested)
    highest = pool.highest
    pool.starts, pool.chunks, pool.in_use, pool.requested = at_peak
    return {"peak_live_bytes": peak_live, "peak_bytes_in_use": peak_in_use,
            "peak_pool_bytes": size,
            "external_fragmentation": pool.external_fragmentation(),
            "rounding_waste": 1 - pool.requested / pool.in_use,
            "utilization_at_peak": peak_in_use / size,
            "height_over_load": highest / peak_live}


class FiguresTest(unittest.TestCase):
    def test_figures_follow_from_placements(self):
        paths = sorted(TRACES.glob("*.csv.gz"))
        self.assertGreaterEqual(len(paths), 10)
        for path in paths:
            with self.subTest(trace=path.name), tempfile.TemporaryDirectory() as folder:
                placements = pathlib.Path(folder) / "placements.csv"
                report = subprocess.run(
                    [REPLAY, "--strategy=bfc:memory_fraction=1", "--repeat=1", "--format=json",
                     "--allow-failures", f"--placements={placements}", path],
                    check=True, capture_output=True, text=True)
                told = json.loads(report.stdout)[0]
                self.assertEqual(told["failures"], 0)
                with open(placements) as file:
                    offsets = {int(row["id"]): int(row["offset"]) for row in csv.DictReader(file)
                               if row["offset"] not in ("", "-1")}
                for name, value in compute(path, offsets, told["peak_pool_bytes"]).items():
                    self.assertAlmostEqual(told[name], value, delta=abs(value) * 1e-6 + 1e-9,
                                           msg=name)


if __name__ == "__main__":
    REPLAY, TRACES = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
