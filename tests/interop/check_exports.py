#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what the shared library exports, its name, and what it leaves to others.

    check_exports.py LIBRARY LIST

The C functions must be those of LIST, one a line: a function that goes is a break, one
that is added is added there too. C++ names must be of hbm:: itself, not of its rooms.
"""
import re
import subprocess
import sys

ROOMS = re.compile(r"\bhbm::(core|observe|policy|sources|strategies|sharing|interop|replay)::")


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    library, listing = sys.argv[1:]
    wanted = {line for line in open(listing).read().split("\n") if line and line[0] != "#"}
    names = [line.split(" ", 2)[-1].split("@")[0]
             for line in run("nm", "-DC", "--defined-only", library).splitlines()
             if " A " not in line]
    c_names = {name for name in names if "::" not in name}
    problems = [f"{name}: on the list, but not exported" for name in sorted(wanted - c_names)]
    problems += [f"{name}: exported, but not on the list" for name in sorted(c_names - wanted)]
    for name in names:
        if "::" in name and ("hbm::" not in name.split("(")[0] or ROOMS.search(name.split("(")[0])):
            problems.append(f"{name}: not a public name")
    if not any("hbm::MakeAllocator" in name for name in names):
        problems.append("hbm::MakeAllocator is not exported: C++ users could not link")
    dynamic = run("readelf", "-dW", library)
    if not re.search(r"SONAME.*\[libhbmalloc\.so\.\d+\.\d+\]", dynamic):
        problems.append("the SONAME is not libhbmalloc.so.MAJOR.MINOR")
    if "NODELETE" not in dynamic:
        problems.append("the library can be unloaded while threads keep its data")
    if re.search(r"NEEDED.*libcuda(rt)?\.so", dynamic):
        problems.append("the library needs CUDA's libraries when it is loaded")
    print("\n".join(problems) or f"{len(c_names)} C functions, {len(names) - len(c_names)} C++ names")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
