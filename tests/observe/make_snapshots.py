#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the small pickles in tests/observe/data, with Python's own pickler.

    make_snapshots.py [FOLDER]

They have the shape of torch.cuda.memory._dump_snapshot: a history that starts in
the middle of a run, and the segments at its end.
"""
import os
import pathlib
import pickle
import sys

BASE = 0x7F1200000000
FRAMES = [{"filename": "train.py", "line": 12, "name": "forward"},
          {"filename": "model.py", "line": 7, "name": "__call__"}]


def event(action, address, size, time_us, stream=0):
    return {"action": action, "addr": BASE + address, "size": size, "stream": stream,
            "time_us": 1_700_000_000_000_000 + time_us, "compile_context": "N/A",
            "user_metadata": "", "frames": FRAMES}


def block(address, size, requested, state):
    return {"address": BASE + address, "size": size, "requested_size": requested, "state": state,
            "frames": FRAMES}


def segment(address, size, blocks, stream=0, device=0):
    return {"device": device, "address": BASE + address, "total_size": size, "stream": stream,
            "allocated_size": 0, "active_size": 0, "requested_size": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}


def small():
    history = [
        event("segment_alloc", 0, 0x200000, 100),
        event("alloc", 0x1000, 1000, 110),
        event("free_requested", 0x0, 300, 120),     # live before the history began
        event("free_completed", 0x0, 300, 121),
        event("alloc", 0x0, 200, 130, stream=0x55AA),
        event("free_requested", 0x1000, 1000, 140),
        event("free_completed", 0x1000, 1000, 150),
        event("oom", 0, 1 << 40, 160),
        event("snapshot", 0, 0, 170),
        event("free_requested", 0x0, 200, 180),     # not complete when it ends
    ]
    del history[7]["addr"]
    history[7]["device_free"] = 12345
    segments = [
        segment(0, 0x200000, [block(0x0, 0x200, 200, "active_pending_free"),
                              block(0x200, 0xE00, 0, "inactive"),
                              block(0x1000, 0x400, 0, "inactive"),
                              block(0x1400, 0x1FEC00, 0, "inactive")]),
        # Live before, during and after; the second on a stream of its own.
        segment(0x4000000, 0x200000, [block(0x4000000, 0x200000, 2_000_000, "active_allocated")]),
        segment(0x2000000, 0x200000, [block(0x2000000, 0x200000, 1_500_000, "active_allocated")],
                stream=7),
        segment(0x8000000, 0x200000, [block(0x8000000, 0x200000, 9, "active_allocated")],
                device=1),
    ]
    return {"segments": segments, "device_traces": [history, [], []],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1,
                                   "garbage_collection_threshold": 0.0,
                                   "roundup_power2_divisions": {"1": 0}},
            "external_annotations": []}


def two_devices():
    snapshot = small()
    snapshot["device_traces"][1] = [event("alloc", 0x8000000, 9, 1)]
    return snapshot


class Evil:
    def __reduce__(self):
        return os.system, ("touch pickle_ran",)


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else (
        pathlib.Path(__file__).parent / "data")
    folder.mkdir(parents=True, exist_ok=True)
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps(small(), protocol=protocol)
        (folder / f"snapshot_p{protocol}.pickle").write_bytes(data)
    (folder / "two_devices.pickle").write_bytes(pickle.dumps(two_devices(), protocol=4))
    for protocol in (2, 4):
        evil = {"segments": [], "device_traces": [[Evil()]]}
        (folder / f"evil_p{protocol}.pickle").write_bytes(pickle.dumps(evil, protocol=protocol))
    values = {"none": None, "true": True, "false": False, "small": 7, "word": 60000,
              "negative": -5, "int": 2**31 - 1, "long": 2**63 + 12345, "deep": -(2**62),
              "huge": 2**200, "float": 1.5, "text": "h\u00e9llo", "bytes": b"\x00\xff",
              "tuple": (1, 2, 3, 4), "pair": (1, "two"), "empty": [(), [], {}, set()],
              "set": {5}, "long_text": "x" * 300, "shared": [FRAMES, FRAMES]}
    values["frozen"] = frozenset([6])
    for protocol in (2, 3, 4, 5):
        if protocol < 4:  # sets are calls before protocol 4, and bytes before 3
            plain = {k: v for k, v in values.items()
                     if k not in ("set", "frozen") and not (k == "bytes" and protocol < 3)}
            plain["empty"] = [(), [], {}]
        else:
            plain = values
        (folder / f"values_p{protocol}.pickle").write_bytes(pickle.dumps(plain, protocol=protocol))


if __name__ == "__main__":
    main()
