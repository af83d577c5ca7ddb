#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes go down the layers and that only sources know a driver.

    check_includes.py [SOURCE_DIR]

Prints one line per include that breaks a rule, and fails if there is one.
"""
import pathlib
import re
import sys

# For each room of src/, the rooms (or single headers) that it may include. Public
# headers are open to all of them, and each may include itself.
ALLOWED = {
    "core": set(),
    "policy": {"core", "observe/log.h"},
    "observe": {"core", "policy"},
    # What several processes know of a device that only exists in memory.
    "sources": {"core", "policy", "observe", "sharing/shared_capacity.h"},
    # memory_bytes.h is an interface alone: what a source may offer beside memory_source.h.
    "strategies": {
        "core",
        "policy",
        "observe",
        "sharing/membership.h",
        "sources/memory_bytes.h",
    },
    "sharing": {"core", "policy", "observe"},
    "interop": {"core", "policy", "observe"},
    "tools": {"core", "policy", "observe", "sharing"},
}

# Headers of a driver: for src/sources/cuda alone.
DRIVER = re.compile(r"^(cuda|cuda_runtime|cuda_runtime_api|driver_types|nvml|cudaTypedefs)\.h$")
# What core does without: input and output, the environment, the operating system.
OUTSIDE_WORLD = re.compile(
    r"^(cstdio|stdio\.h|iostream|fstream|filesystem|unistd\.h|sys/.*|fcntl\.h|dlfcn\.h)$")
# The one file of the core that gets pages for its tables, as operator new would.
HOST_MEMORY = {("core/paged_array.cc", "sys/mman.h"),
               # Barriers in other threads, for a lock that costs its usual thread nothing.
               ("core/thread_barrier.cc", "sys/syscall.h"), ("core/thread_barrier.cc", "unistd.h")}
ENVIRONMENT = re.compile(r"\b(getenv|setenv|secure_getenv)\s*\(")
# What a public header may stand on, beside the standard library (names without a dot).
PUBLIC = re.compile(r"^(hbmalloc/.*\.h|absl/(status|time|types)/.*\.h|[a-z_0-9]+|[a-z_0-9]+\.h)$")

# The one adaptor to another library's headers, which its users have.
ADAPTORS = {"cccl.h": re.compile(r"^cuda/(memory_resource|stream_ref|version)$")}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]')


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        found = INCLUDE.match(line)
        if found:
            yield number, found.group(1)


def room_violation(room, header, rooms):
    target = header.split("/")[0]
    if target not in rooms or target == room or target in ALLOWED[room] or header in ALLOWED[room]:
        return None
    return f"{room} must not include {target}"


def check_source(root, path):
    relative = path.relative_to(root / "src")
    room = relative.parts[0]
    if room not in ALLOWED:
        yield 1, f"src/{room} is not a room that tests/layering/check_includes.py knows"
        return
    for number, header in includes(path):
        why = room_violation(room, header, ALLOWED.keys())
        if why is None and DRIVER.match(header) and relative.parts[:2] != ("sources", "cuda"):
            why = "only src/sources/cuda may include a driver's headers"
        if (relative.as_posix(), header) in HOST_MEMORY:
            continue
        if why is None and room == "core" and OUTSIDE_WORLD.match(header):
            why = "core does no input or output and makes no system calls"
        if why is not None:
            yield number, f'"{header}": {why}'
    if room == "core" and ENVIRONMENT.search(path.read_text(encoding="utf-8")):
        yield 1, "core reads no environment"


def check_public(path):
    for number, header in includes(path):
        if path.name in ADAPTORS and ADAPTORS[path.name].match(header):
            continue
        if not PUBLIC.match(header) or DRIVER.match(header):
            yield number, f'"{header}": a public header stands on the standard library and absl only'


def violations(root):
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in (".h", ".cc"):
            yield from ((path, *found) for found in check_source(root, path))
    for path in sorted((root / "include").rglob("*.h")):
        yield from ((path, *found) for found in check_public(path))


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2]
    found = list(violations(root))
    for path, number, text in found:
        print(f"{path.relative_to(root)}:{number}: {text}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
