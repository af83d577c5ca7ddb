# SPDX-License-Identifier: Apache-2.0
"""What the benchmark scripts share: finding programs and traces, running one and
reading its JSON, medians.

    programs = Programs(["build/release"])
    rows = run_json([programs.need("hbm-replay"), "--format=json", trace])
"""

import csv
import json
import os
import re
import shutil
import statistics
import subprocess
import sys

BENCH = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(BENCH)
TRACES = os.path.join(BENCH, "traces")
GOLDEN_POOLS = os.path.join(ROOT, "tests", "golden", "pools.csv")
GIB = 1 << 30


class Programs:
    """Programs of one or more build folders, by name."""

    def __init__(self, folders):
        self.folders = folders
        self.found = {}

    def get(self, name):
        """The program's path, or None where it is not built."""
        if name not in self.found:
            self.found[name] = self._search(name)
        return self.found[name]

    def need(self, name, how):
        """The program's path; ends the script with `how` to build it otherwise."""
        path = self.get(name)
        if path is None:
            sys.exit(f"{name} is not built under {', '.join(self.folders)}: {how}")
        return path

    def _search(self, name):
        for folder in self.folders:
            for path, folders, files in os.walk(folder):
                # Packages that pip has unpacked there hold thousands of folders.
                folders[:] = [f for f in folders if f not in ("peer_packages", "CMakeFiles", "_deps")]
                full = os.path.join(path, name)
                if name in files and os.access(full, os.X_OK):
                    return full
        return None


def all_traces(names=None):
    """Paths of the recorded traces, or of those named."""
    if names:
        return [os.path.join(TRACES, f"{name}.csv.gz") for name in names.split(",")]
    return sorted(os.path.join(TRACES, f) for f in os.listdir(TRACES) if f.endswith(".csv.gz"))


def trace_name(path):
    return os.path.basename(path).removesuffix(".gz").removesuffix(".csv")


def golden_capacities():
    """(trace, strategy) -> the capacity of the golden file, where limit equals it."""
    capacities = {}
    with open(GOLDEN_POOLS, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["limit"] == row["capacity"]:
                capacities[row["trace"], row["strategy"]] = int(row["capacity"])
    return capacities


def run_json(command, timeout=600):
    """Runs a program that prints a JSON array; raises RuntimeError with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{' '.join(command)}: stopped after {timeout} s") from late
    try:
        return json.loads(done.stdout)
    except ValueError as bad:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {' | '.join(words)}") from bad


def median(values):
    return statistics.median(values)


def spread(values):
    """(median, least, greatest)."""
    return statistics.median(values), min(values), max(values)


def first_line(*command):
    """The first line that a program prints, or an empty text where it cannot run."""
    if shutil.which(command[0]) is None and not os.path.exists(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (done.stdout.strip().splitlines() or [""])[0]


def machine():
    """What the figures were measured on, as a dictionary of texts."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = re.search(r"model name\s*: (.*)", file.read())
    gpu = first_line("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = ""
    if os.path.exists(nvcc):
        text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        toolkit = (re.search(r"V([\d.]+)", text) or [None, ""])[1]
    commit = first_line("git", "-C", ROOT, "rev-parse", "--short", "HEAD")
    return {
        "cpu": cpu.group(1) if cpu else "unknown",
        "cores": str(os.cpu_count()),
        "gpu": gpu or "none",
        "cuda toolkit": toolkit or "none",
        "compiler": first_line("c++", "--version"),
        "system": first_line("uname", "-sr"),
        "commit": commit or "unknown",
    }
