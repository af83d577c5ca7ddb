#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the line coverage of folders of the source tree from gcov's data.

    line_coverage.py BUILD_DIR FOLDER...

A line that is compiled into several programs counts as covered if any of them ran it.
"""
import collections
import json
import os
import pathlib
import subprocess
import sys


def counts_of(gcda):
    """Yields (file, line, count) for everything that one .gcda file knows."""
    answer = subprocess.run(["gcov", "--json-format", "--stdout", gcda.name], cwd=gcda.parent,
                            check=True, capture_output=True, text=True)
    for document in filter(None, answer.stdout.split("\n")):
        for source in json.loads(document)["files"]:
            for line in source["lines"]:
                yield source["file"], line["line_number"], line["count"]


def main():
    build, folders = pathlib.Path(sys.argv[1]), sys.argv[2:]
    root = pathlib.Path.cwd()
    lines = collections.defaultdict(lambda: collections.defaultdict(int))
    for gcda in build.rglob("*.gcda"):
        for file, number, count in counts_of(gcda):
            relative = os.path.relpath(os.path.join(root, file), root)
            if any(relative.startswith(folder + "/") for folder in folders):
                lines[relative][number] += count
    for folder in folders:
        total = covered = 0
        for file in sorted(f for f in lines if f.startswith(folder + "/")):
            ran = sum(1 for count in lines[file].values() if count)
            total, covered = total + len(lines[file]), covered + ran
            print(f"  {file:48} {ran:5} of {len(lines[file]):5}  {100 * ran / len(lines[file]):5.1f}%")
        if total:
            print(f"{folder:50} {covered:5} of {total:5}  {100 * covered / total:5.1f}%")


if __name__ == "__main__":
    main()
