#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hbmalloc's bfc and on_demand against the original BFC, as ratios of one run.

For each trace the original (tensorflow_bfc_peer) and hbmalloc (hbmalloc_peer: the same
loop) take turns, round after round, so that whatever else the machine does falls on
both. Each strategy is set against the original with the same preallocation. Compared is
the processor time of the warm passes; with --through=replay hbm-replay times hbmalloc,
by the wall clock, and so wants an idle machine. Exit code 1: some ratio of the times per
event is above the target.

    bench/compare_bfc.py                        every trace, build/release
    bench/compare_bfc.py --traces=gnn_train_vargraph --rounds=9
    bench/compare_bfc.py --threads=16           total throughput of 16 threads
"""

import argparse
import json
import os
import sys

import measure

HOW_PEER = "configure with -DHBMALLOC_PEER_TENSORFLOW_BFC=ON (bench/peers/README.md)"
# Ours, and the flags that make the original do the same.
PAIRS = [("bfc", []), ("on_demand", ["--growth"])]
DEFAULT_CAPACITY = {"bfc": 24 * measure.GIB, "on_demand": 40 * measure.GIB}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(measure.ROOT, "build", "release"),
                        help="folder, or several with commas, in which the programs are built")
    parser.add_argument("--traces", help="names, with commas between (all)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program (5)")
    parser.add_argument("--passes", type=int, default=9, help="passes over the trace in one turn (9)")
    parser.add_argument("--target", type=float, default=1 / 3, help="greatest ratio of times (1/3)")
    parser.add_argument("--through", choices=["peer", "replay"], default="peer",
                        help="time hbmalloc by the peers' own loop, or by hbm-replay (peer)")
    parser.add_argument("--threads", type=int, help="compare the throughput of this many threads instead")
    parser.add_argument("--json", help="also write the figures to this file")
    return parser.parse_args()


def original_command(programs, args, trace, capacity, flags):
    return [programs.need("tensorflow_bfc_peer", HOW_PEER), "--no-memory", f"--passes={args.passes}",
            f"--capacity={capacity}", *flags, trace]


def our_command(programs, args, trace, capacity, strategy):
    policy = f"{strategy}:memory_fraction=1"
    if args.through == "peer":
        return [programs.need("hbmalloc_peer", "it is built along with any peer"), "--no-memory",
                f"--passes={args.passes}", f"--capacity={capacity}", f"--policy={policy}", trace]
    return [programs.need("hbm-replay", "configure with -DHBMALLOC_BUILD_TOOLS=ON"), f"--strategy={policy}",
            "--device=sim", f"--capacity={capacity}", f"--repeat={args.passes}", "--format=json",
            "--allow-failures", trace]


def compare(programs, args, trace, strategy, flags, capacities):
    """One line of the table: medians, and the ratio of each round."""
    name = measure.trace_name(trace)
    capacity = capacities.get((name, strategy), DEFAULT_CAPACITY[strategy])
    field = "warm_cpu_ns_per_event" if args.through == "peer" else "warm_ns_per_event"
    theirs, ours, first, best = [], [], [], []
    failures = set()
    for _ in range(args.rounds):
        original = measure.run_json(original_command(programs, args, trace, capacity, flags))[0]
        own = measure.run_json(our_command(programs, args, trace, capacity, strategy))[0]
        theirs.append(original[field])
        ours.append(own[field])
        best.append((original.get(field + "_min", original[field]), own.get(field + "_min", own[field])))
        first.append((original["first_ns_per_event"], own["first_ns_per_event"]))
        failures.add((original["failures"], own["failures"]))
    ratios = [b / a for a, b in zip(theirs, ours)]
    return {
        "trace": name, "strategy": strategy, "events": original["events"], "capacity": capacity,
        "original_ns": measure.spread(theirs), "ns": measure.spread(ours), "ratio": measure.spread(ratios),
        "original_first_ns": measure.median([a for a, _ in first]),
        "first_ns": measure.median([b for _, b in first]),
        # The least of all passes: the least disturbed.
        "best_ratio": min(b for _, b in best) / min(a for a, _ in best),
        # Failing alike is a sign of placing alike.
        "same_failures": all(a == b for a, b in failures),
    }


def show(row, target):
    original, own, ratio = row["original_ns"], row["ns"], row["ratio"]
    verdict = "met" if ratio[0] <= target else "MISSED"
    if not row["same_failures"]:
        verdict += ", FAILURES DIFFER"
    print(f"| {row['trace']} | {row['strategy']} | {original[0]:.1f} ({original[1]:.1f}-{original[2]:.1f}) "
          f"| {own[0]:.1f} ({own[1]:.1f}-{own[2]:.1f}) | {ratio[0]:.3f} ({ratio[1]:.3f}-{ratio[2]:.3f}) "
          f"| {row['best_ratio']:.3f} | {row['original_first_ns']:.0f} / {row['first_ns']:.0f} | {verdict} |", flush=True)


def compare_times(programs, args):
    capacities = measure.golden_capacities()
    clock = "processor time" if args.through == "peer" else "wall clock"
    print(f"Nanoseconds per event ({clock}), one thread, warm; median of {args.rounds} rounds in turn (least-greatest). "
          f"Target: ratio at most {args.target:.3f}.\n")
    print("| trace | strategy | original BFC | hbmalloc | ratio | ratio of the best passes | first pass, both | |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for trace in measure.all_traces(args.traces):
        for strategy, flags in PAIRS:
            rows.append(compare(programs, args, trace, strategy, flags, capacities))
            show(rows[-1], args.target)
    missed = [r for r in rows if r["ratio"][0] > args.target or not r["same_failures"]]
    worst = max(rows, key=lambda r: r["ratio"][0])
    print(f"\n{len(rows) - len(missed)} of {len(rows)} meet the target; the worst ratio is "
          f"{worst['ratio'][0]:.3f} ({worst['trace']}, {worst['strategy']}).")
    return rows, bool(missed)


def throughput(command, rounds):
    return [measure.run_json(command)[0]["operations_per_second"] for _ in range(rounds)]


def compare_threads(programs, args):
    """Target: no collapse, and three times the original; with the cache, eight times one thread."""
    original = programs.need("tensorflow_bfc_peer", HOW_PEER)
    own = programs.need("hbmalloc_peer", "it is built along with any peer")
    commands = {"original BFC": [original], "bfc": [own, "--policy=bfc"],
                "bfc, thread_cache": [own, "--policy=bfc:thread_cache=true"]}
    rates = {}
    for _ in range(args.rounds):
        for name, command in commands.items():
            for threads in (1, args.threads):
                rates.setdefault((name, threads), []).extend(
                    throughput([*command, f"--threads={threads}", "--rounds=3"], 1))
    print(f"Million operations a second, all threads together; median of {args.rounds} rounds (least-greatest).\n")
    print(f"| allocator | 1 thread | {args.threads} threads | {args.threads} over 1 | over the original's {args.threads} |")
    print("|---|---|---|---|---|")
    many = {name: measure.median(rates[name, args.threads]) for name in commands}
    one = {name: measure.median(rates[name, 1]) for name in commands}
    rows = []
    for name in commands:
        cells = []
        for threads in (1, args.threads):
            middle, least, greatest = (value / 1e6 for value in measure.spread(rates[name, threads]))
            cells.append(f"{middle:.1f} ({least:.1f}-{greatest:.1f})")
        rows.append({"allocator": name, "one": one[name], "many": many[name], "threads": args.threads})
        print(f"| {name} | {cells[0]} | {cells[1]} | {many[name] / one[name]:.2f} "
              f"| {many[name] / many['original BFC']:.2f} |")
    checks = [("bfc: at least 0.8x one thread", many["bfc"] >= 0.8 * one["bfc"]),
              ("bfc: at least 3x the original", many["bfc"] >= 3 * many["original BFC"]),
              ("with thread_cache: at least 8x one thread", many["bfc, thread_cache"] >= 8 * one["bfc, thread_cache"])]
    print()
    for text, met in checks:
        print(f"{'met   ' if met else 'MISSED'} {text}")
    if (os.cpu_count() or 1) < args.threads:
        print(f"This machine has {os.cpu_count()} cores: the targets are for one with {args.threads}.")
    return rows, not all(met for _, met in checks)


def main():
    args = arguments()
    programs = measure.Programs(args.build.split(","))
    try:
        rows, missed = compare_threads(programs, args) if args.threads else compare_times(programs, args)
    except RuntimeError as error:
        sys.exit(str(error))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": measure.machine(), "results": rows}, file, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
