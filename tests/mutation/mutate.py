#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one operator or constant of src/core at a time and sees whether a test notices.

    tests/mutation/mutate.py                     every mutant of src/core
    tests/mutation/mutate.py --sample=40 --seed=2
    tests/mutation/mutate.py --only=free_index   those of the files whose names hold this
    tests/mutation/mutate.py --list              the mutants, without running them
    tests/mutation/mutate.py --run-only          what an earlier run has built, perhaps elsewhere

All mutants are compiled into one library, in a copy of the tree under build/mutants, and
chosen by a variable of the environment (instrument.py). A mutant is caught if a test
program fails, crashes, or takes ten times as long as it does without, twice (a test that
fails now and then on a busy machine catches nothing). Constants that the
compiler evaluates (constexpr, template arguments, array lengths) are not mutated. Prints
each survivor and the share that was caught; fails if that is under 85%. Mutants that
change nothing that can be seen count as survivors too.

Needs clang's Python bindings and its library (Debian: python3-clang-14).
"""
import argparse
import concurrent.futures
import csv
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutants"
TREE, BUILD, TABLE = WORK / "tree", WORK / "build", WORK / "mutants.csv"
TESTS = ["core_address_map_test", "core_free_index_test", "core_mutex_test",
         "conformance_conformance_test", "golden_golden_test", "lifetime_lifetime_test",
         "misuse_misuse_test", "reliability_reliability_test", "sources_virtual_memory_test",
         "strategies_bad_source_test", "strategies_capture_test", "strategies_elastic_bytes_test",
         "strategies_elastic_faults_test", "strategies_elastic_figures_test",
         "strategies_elastic_lag_test", "strategies_elastic_test", "strategies_pool_test",
         "strategies_random_model_test", "strategies_region_callback_test",
         "strategies_stream_order_test", "strategies_thread_cache_test", "stress_stress_test",
         "fragmentation_fragmentation_test", "observe_figures_test", "observe_oom_report_test"]
MEMORY = 8 << 30  # bytes that a mutant may take before it counts as caught


def copy_tree():
    """The tree as it is, of which only what has changed is copied again."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                           cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, names):
        source, target = ROOT / name, TREE / name
        if not source.is_file() or name.startswith("src/core/"):
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_mutants(files, dropped):
    """src/core with every mutant in it; returns the sites by file."""
    import instrument
    write(TREE / "src/core/hbm_mutant.h", instrument.HEADER)
    arguments = ["-std=c++17", f"-I{ROOT}/include", f"-I{ROOT}/src"]
    number, table = 0, []
    for path in files:
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        sites = []
        for site in instrument.find(path, text, arguments):
            number += 1
            site.number = number
            if (name, site.line) not in dropped:
                sites.append(site)
                table.append((number, name, site.line, site.describe(text)))
        mutated = instrument.render(text, sites)
        if sites:  # after the guard, on its line
            mutated = re.sub(r"^(#include )", r'#include "core/hbm_mutant.h"' + "\n#line " + "@\n" +
                             r"\1", mutated, count=1, flags=re.M)
            before = mutated.index("#line @")
            mutated = mutated.replace("#line @", f"#line {mutated.count(chr(10), 0, before)}", 1)
        write(TREE / name, mutated)
    with TABLE.open("w", newline="") as out:
        csv.writer(out).writerows(table)


def build(jobs):
    """Builds the library and the tests; the lines of src/core that do not compile."""
    flags = "-O1 -Wno-narrowing -w"
    subprocess.run(["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    f"-DCMAKE_CXX_FLAGS_RELEASE={flags}", "-DHBMALLOC_CUDA=OFF",
                    "-DHBMALLOC_BUILD_BENCHMARKS=OFF"], check=True, capture_output=True)
    made = subprocess.run(["cmake", "--build", BUILD, "-j", str(jobs), "--target", *TESTS, "--",
                           "-k", "0"], capture_output=True, text=True)
    if made.returncode == 0:
        return set()
    bad = {("src/core/" + file, int(line)) for file, line in
           re.findall(r"src/core/(\w+\.(?:h|cc)):(\d+):\d+: error", made.stdout + made.stderr)}
    if not bad:
        sys.exit(made.stdout[-4000:] + made.stderr[-4000:])
    return bad


def programs():
    found = {path.name: path for path in BUILD.rglob("*_test") if path.is_file()}
    return [found[name] for name in TESTS if name in found]


def limits():
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(program, number, limit):
    """None if the program passes, else how it did not."""
    started = subprocess.Popen(
        [program, "--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=-*Slow*"],
        env={**os.environ, "HBMALLOC_MUTANT": str(number)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=limits,
        start_new_session=True)
    try:
        code = started.wait(limit)
        return None if code == 0 else f"{program.name} ({code})"
    except subprocess.TimeoutExpired:
        return f"{program.name} (time)"
    finally:
        try:  # and whatever it has forked
            os.killpg(started.pid, 9)
        except ProcessLookupError:
            pass
        started.wait()


def times(tests, jobs):
    """Seconds of each test without a mutant, quickest first; they run as many at once."""
    def one(program):
        start = time.monotonic()
        problem = run(program, 0, 600)
        if problem:
            sys.exit(f"without any mutant: {problem}")
        return time.monotonic() - start, program
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return sorted(pool.map(one, tests))


def caught(number, timed):
    for seconds, program in timed:
        limit = max(10, 10 * seconds)
        problem = run(program, number, limit) and run(program, number, limit)
        if problem:
            return problem
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--numbers", help="of mutants, with commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--run-only", action="store_true")
    options = parser.parse_args()
    if not options.run_only:
        copy_tree()
        core = ROOT / "src/core"
        dropped = set()
        while True:
            write_mutants(sorted([*core.glob("*.cc"), *core.glob("*.h")]), dropped)
            if options.list:
                break
            bad = build(options.jobs)
            if not bad:
                break
            print(f"{len(bad)} lines do not compile with their mutants; left as they are")
            if bad <= dropped:
                sys.exit(f"src/core does not compile at {sorted(bad)}")
            dropped |= bad
    with TABLE.open(newline="") as table:
        mutants = [row for row in csv.reader(table) if options.only in row[1]]
    if options.numbers:
        wanted = set(options.numbers.split(","))
        mutants = [row for row in mutants if row[0] in wanted]
    if options.sample:
        mutants = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    if options.list:
        for row in mutants:
            print("{}: {}:{}: {}".format(*row))
        return
    timed = times(programs(), options.jobs)
    print(", ".join(f"{program.name} {seconds:.1f} s" for seconds, program in timed), flush=True)
    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda row: caught(row[0], timed), mutants)
        for (number, name, line, change), by in zip(mutants, results):
            survivors += by is None
            print(f"{number}: {name}:{line}: {'caught by ' + by if by else 'SURVIVED'}: {change}",
                  flush=True)
    share = 1 - survivors / max(len(mutants), 1)
    print(f"{len(mutants)} mutants, {share:.1%} caught, {survivors} survived")
    sys.exit(0 if share >= 0.85 else 1)


if __name__ == "__main__":
    main()
