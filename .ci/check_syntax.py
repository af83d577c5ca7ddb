#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every compile command of a compilation database with -fsyntax-only.

    check_syntax.py build/clang/compile_commands.json

Fails if one fails, after printing what the compiler said.
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys


def check(entry):
    words = shlex.split(entry["command"])
    if "-o" in words:
        at = words.index("-o")
        del words[at:at + 2]
    if os.path.basename(words[0]) == "ccache":
        del words[0]
    words.append("-fsyntax-only")
    answer = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
    return answer.returncode, answer.stderr


def main():
    with open(sys.argv[1], encoding="utf-8") as database:
        entries = [entry for entry in json.load(database) if entry["file"].endswith((".cc", ".c"))]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(check, entries))
    for _, text in answers:
        sys.stderr.write(text)
    bad = sum(1 for code, _ in answers if code != 0)
    print(f"{len(entries)} files, {bad} with errors")
    sys.exit(1 if bad or not entries else 0)


if __name__ == "__main__":
    main()
