#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one operator or constant of src/core at a time and sees whether a test notices.

    tests/mutation/mutate.py [--sample=N] [--seed=N] [--build=build/release] [FILE...]

For each mutant only the library and the tests below are built. A mutant is caught if it
does not compile, or a test fails, crashes or takes ten times as long as it should. The
sources are put back afterwards, also after an interrupt. Prints each survivor, and the
share that was caught; fails if that is under 85%.
"""
import argparse
import pathlib
import random
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTS = ["core_free_index_test", "core_address_map_test", "strategies_pool_test",
         "strategies_random_model_test", "strategies_elastic_test",
         "strategies_stream_order_test", "golden_golden_test", "conformance_conformance_test"]
# What is written, and what is put in its place.
SWAPS = [(r" \+ ", " - "), (r" - ", " + "), (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "),
         (r" >= ", " > "), (r" == ", " != "), (r" != ", " == "), (r" && ", " || "),
         (r" \|\| ", " && "), (r"\+\+", "--"), (r" << ", " >> "), (r" \+= ", " -= "),
         (r" -= ", " += "), (r"\btrue\b", "false"), (r"\bfalse\b", "true"),
         (r"(?<![\w.])0(?![\w.])", "1"), (r"(?<![\w.])1(?![\w.])", "2")]
SKIP = re.compile(r"^\s*(//|#|template|static_assert|using|namespace)|operator|alignas|memory_order")


def mutants(path):
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if SKIP.search(code):
            continue
        for pattern, replacement in SWAPS:
            for found in re.finditer(pattern, code):
                yield number, line[:found.start()] + replacement + line[found.end():]


def caught(build):
    made = subprocess.run(["cmake", "--build", build, "--target", *TESTS],
                          cwd=ROOT, capture_output=True)
    if made.returncode != 0:
        return "compiler"
    for test in TESTS:
        try:
            ran = subprocess.run([f"{build}/tests/{test}", "--gtest_brief=1", "--gtest_fail_fast",
                                  "--gtest_filter=-*Slow*"],
                                 cwd=ROOT, capture_output=True, timeout=300)
        except subprocess.TimeoutExpired:
            return f"{test} (time)"
        if ran.returncode != 0:
            return test
    return None


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # sources are put back then too
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    files = [pathlib.Path(name).resolve() for name in options.files]
    files = files or sorted((ROOT / "src/core").glob("*.cc")) + sorted((ROOT / "src/core").glob("*.h"))
    every = [(path, *mutant) for path in files for mutant in mutants(path)]
    sample = random.Random(options.seed).sample(every, min(options.sample, len(every)))
    survivors = 0
    for path, number, line in sample:
        original = path.read_text()
        lines = original.split("\n")
        before, lines[number] = lines[number], line
        try:
            path.write_text("\n".join(lines))
            by = caught(options.build)
        finally:
            path.write_text(original)
        survivors += by is None
        where = f"{path.relative_to(ROOT)}:{number + 1}"
        print(f"{where}: {'caught by ' + by if by else 'SURVIVED'}: "
              f"{before.strip()}  ->  {line.strip()}", flush=True)
    share = 1 - survivors / max(len(sample), 1)
    print(f"{len(sample)} of {len(every)} mutants tried, {share:.0%} caught")
    sys.exit(0 if share >= 0.85 else 1)


if __name__ == "__main__":
    main()
