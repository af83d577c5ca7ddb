#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads exported files as the tools they are for would.

    check_exports.py json SCHEMA FILE | pickle FILE... | prometheus FILE | timeline FILE

Set HBMALLOC_MEMORY_VIZ to PyTorch's torch/cuda/_memory_viz.py to have that read the
pickles too. Fails with a message if a file is not what it should be.
"""
import importlib.util
import json
import os
import pickle
import re
import sys

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
         "null": type(None)}


def check_schema(schema, value, root, where="$"):
    """The part of JSON Schema that docs/snapshot.schema.json uses."""
    if "$ref" in schema:
        check_schema(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, root, where)
    if "const" in schema:
        assert value == schema["const"], f"{where}: {value!r}"
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r}"
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, TYPES[t]) for t in types) and not isinstance(value, bool), \
            f"{where}: {value!r} is no {types}"
    if "minimum" in schema:
        assert value >= schema["minimum"], f"{where}: {value}"
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), f"{where}: {value!r}"
    for name in schema.get("required", []):
        assert name in value, f"{where}: {name} is missing"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        for name, member in value.items():
            if name in known:
                check_schema(known[name], member, root, f"{where}.{name}")
            else:
                assert rest is not False, f"{where}: {name} is not in the schema"
                if isinstance(rest, dict):
                    check_schema(rest, member, root, f"{where}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            check_schema(schema["items"], item, root, f"{where}[{i}]")


def check_json(schema_file, file):
    with open(schema_file, encoding="utf-8") as text:
        schema = json.load(text)
    with open(file, encoding="utf-8") as text:
        state = json.load(text)
    check_schema(schema, state, schema)
    for region in state["regions"]:
        at = int(region["address"], 16)
        for chunk in region["chunks"]:
            assert int(chunk["address"], 16) == at, "chunks follow each other"
            at += chunk["bytes"]
        assert at == int(region["address"], 16) + region["bytes"]


class PlainData(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}: only plain data is allowed")


SEGMENT = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size",
           "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}
BLOCK = {"address", "size", "requested_size", "state", "frames"}


def check_pickle(file):
    with open(file, "rb") as data:
        snapshot = PlainData(data).load()
    assert {"segments", "device_traces", "allocator_settings",
            "external_annotations"} <= snapshot.keys()
    for segment in snapshot["segments"]:
        assert SEGMENT <= segment.keys(), segment.keys()
        assert segment["segment_pool_id"] == (0, 0) and segment["address"] >= 0
        at = segment["address"]
        for block in segment["blocks"]:
            assert BLOCK <= block.keys(), block.keys()
            assert block["state"] in ("active_allocated", "active_pending_free", "inactive")
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
    for trace in snapshot["device_traces"]:
        for entry in trace:
            assert {"action", "size", "stream", "time_us", "frames"} <= entry.keys()
            assert "device_free" in entry if entry["action"] == "oom" else "addr" in entry
            for frame in entry["frames"]:
                assert {"filename", "line", "name"} == frame.keys()
    viz_file = os.environ.get("HBMALLOC_MEMORY_VIZ")
    if viz_file:
        spec = importlib.util.spec_from_file_location("memory_viz", viz_file)
        viz = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(viz)
        # Its flame graphs would be drawn by a script from the network.
        for view in (viz.segments, viz.memory):
            assert view(snapshot, format_flamegraph=lambda lines: lines), view.__name__
        for view in (viz.trace, viz.segsum, viz.trace_plot, viz.segment_plot):
            assert view(snapshot), view.__name__
        viz.compare(snapshot["segments"], snapshot["segments"],
                    format_flamegraph=lambda lines: lines)
        print("read by", viz_file)


SAMPLE = re.compile(r'^([a-z_:][a-z0-9_:]*)\{([a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
                    r'(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*)\} (-?[0-9.]+(?:e[-+]?[0-9]+)?)$')


def check_prometheus(file):
    with open(file, encoding="utf-8", newline="") as text:
        lines = text.read().split("\n")
    assert lines.pop() == "", "ends in a newline"
    helped, typed, seen, current = set(), {}, set(), None
    for line in lines:
        if line.startswith("# HELP "):
            current = line.split(" ")[2]
            assert current not in helped and len(line.split(" ", 3)[3]) > 5
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current and kind in ("counter", "gauge")
            assert (kind == "counter") == name.endswith("_total"), name
            typed[name] = kind
        else:
            sample = SAMPLE.match(line)
            assert sample, line
            assert sample.group(1) == current and current in typed, line
            key = (sample.group(1), sample.group(2))
            assert key not in seen, line
            seen.add(key)
            float(sample.group(3))
    for name in helped:
        assert re.search(r"_(bytes|chunks|ratio|seconds_total|total|regions)$", name), name
    assert len(seen) > 100


def check_timeline(file):
    with open(file, encoding="utf-8") as text:
        events = json.load(text)["traceEvents"]
    phases = {}
    for event in events:
        phases.setdefault(event["ph"], []).append(event)
        if event["ph"] != "M":
            assert event["ts"] >= 0
    assert {"M", "C", "X", "i"} == phases.keys(), phases.keys()
    for event in phases["X"]:
        assert event["dur"] > 0 and event["args"]["calls"] > 0 and event["name"].startswith("driver: ")
    names = {event["name"] for event in phases["C"]}
    assert names == {"memory (bytes)", "external fragmentation"}
    for event in phases["C"]:
        assert all(isinstance(value, (int, float)) for value in event["args"].values())


def main():
    kind, files = sys.argv[1], sys.argv[2:]
    if kind == "json":
        check_json(*files)
    for file in files if kind != "json" else []:
        {"pickle": check_pickle, "prometheus": check_prometheus,
         "timeline": check_timeline}[kind](file)


if __name__ == "__main__":
    main()
