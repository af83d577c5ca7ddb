#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions per event of three fixed workloads, against a stored budget.

Counted by valgrind's callgrind, so the figures do not depend on the machine's
load; they do on the compiler, so that the budget leaves a margin.

    bench/check_instructions.py                          build/release, all workloads
    bench/check_instructions.py --update                 store today's figures
    bench/check_instructions.py --scaling                1,000 against 1,000,000 live blocks
    bench/check_instructions.py --elastic                elastic against bfc, pages in place

Exit code 1: over budget. 77: no valgrind here.
"""

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGET = os.path.join(ROOT, "bench", "instruction_budget.csv")
WORKLOADS = ["llama", "random 1000", "random 100000"]
TRACES = ["gpt2_train_varlen", "llama_decode_growing_kv", "resnet50_train_varbatch",
          "gnn_train_vargraph", "moe_train_routed", "mlp_train_multistream", "unet_train_varsize",
          "xla_train_1", "xla_eager_1"]


def count(program, workload):
    """Instructions per event inside the measured part."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no",
                   "--toggle-collect=*MeasuredEvents*",
                   f"--callgrind-out-file={folder}/out", program, *workload.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    events = re.search(r"events: (\d+)", done.stdout)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not events or not collected:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return int(collected.group(1)) / int(events.group(1))


def nanoseconds(program, workload, rounds=5):
    """The fastest of some runs."""
    texts = [subprocess.run([program, *workload.split()], capture_output=True, text=True,
                            check=True).stdout for _ in range(rounds)]
    return min(float(re.search(r"ns_per_event: ([\d.]+)", text).group(1)) for text in texts)


def check_scaling(program):
    few, many = "random 1000", "random 1000000"
    instructions = [count(program, workload) for workload in (few, many)]
    times = [nanoseconds(program, workload) for workload in (few, many)]
    for what, (a, b), most in (("instructions", instructions, 1.5), ("nanoseconds", times, 6.0)):
        print(f"{what} per event, 1,000 -> 1,000,000 live blocks: {a:.1f} -> {b:.1f}, "
              f"{b / a:.2f}x (at most {most}x)")
    return instructions[1] <= 1.5 * instructions[0] and times[1] <= 6 * times[0]


def check_elastic(program):
    """Second passes, with a slack that lets every page stay where it is."""
    within = True
    for trace in TRACES:
        bfc, elastic = (f"warm {trace} {policy}" for policy in ("bfc", "elastic:slack=inf"))
        instructions = [count(program, workload) for workload in (bfc, elastic)]
        times = [nanoseconds(program, workload) for workload in (bfc, elastic)]
        within &= times[1] <= 1.5 * times[0]
        print(f"{trace}: bfc {instructions[0]:.0f} instructions and {times[0]:.1f} ns per event, "
              f"elastic {instructions[1]:.0f} and {times[1]:.1f}: "
              f"{instructions[1] / instructions[0]:.2f}x and {times[1] / times[0]:.2f}x "
              f"(time: at most 1.5x)")
    return within


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program",
                        default=os.path.join(ROOT, "build", "release", "bench", "instructions"))
    parser.add_argument("--margin", type=float, default=0.05, help="allowed above the budget (0.05)")
    parser.add_argument("--update", action="store_true", help="store today's figures as the budget")
    parser.add_argument("--scaling", action="store_true", help="check the growth of the cost instead")
    parser.add_argument("--elastic", action="store_true", help="check elastic's warm cost instead")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing counted")
        return 77
    if args.scaling:
        return 0 if check_scaling(args.program) else 1
    if args.elastic:
        return 0 if check_elastic(args.program) else 1
    if args.update:
        with open(BUDGET, "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(["workload", "instructions_per_event"])
            for workload in WORKLOADS:
                writer.writerow([workload, f"{count(args.program, workload):.1f}"])
        return 0
    within = True
    with open(BUDGET, newline="", encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            budget = float(row["instructions_per_event"])
            measured = count(args.program, row["workload"])
            good = measured <= budget * (1 + args.margin)
            within &= good
            print(f"{row['workload']}: {measured:.1f} instructions per event, budget {budget:.1f}, "
                  f"{'within' if good else 'OVER'}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
