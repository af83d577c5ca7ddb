#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns hbm-replay's CSV into one Markdown table of one figure: a row for each
trace, a column for each strategy.

    hbm-replay --format=csv --strategy="bfc;on_demand" TRACE... | bench/pivot.py pool_over_live
    ... | bench/pivot.py driver_us --scale=0.001 --digits=2
    ... | bench/pivot.py warm_ns_per_event --over=bfc      # as a multiple of bfc's

Several reports may come one after another; of a figure that occurs more than once
the smallest is shown, which for a time is the least disturbed run.
"""
import argparse
import csv
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", help="a column of hbm-replay's CSV")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply every value")
    parser.add_argument("--digits", type=int, default=3)
    parser.add_argument("--over", metavar="STRATEGY", help="divide by this strategy's value on the same trace")
    parser.add_argument("--share-of", metavar="FIGURE", help="divide by another figure of the same row")
    parser.add_argument("--without", metavar="STRATEGY", help="leave this strategy out")
    arguments = parser.parse_args()

    strategies, traces = [], {}
    for row in csv.DictReader(sys.stdin):
        strategy = row["strategy"]
        if row["trace"] == "trace" or strategy == arguments.without:
            continue  # the header of a further report, or not wanted
        if strategy not in strategies:
            strategies.append(strategy)
        text = row[arguments.figure]
        value = float(text) * arguments.scale if text else None
        if value is not None and arguments.share_of:
            value /= float(row[arguments.share_of])
        seen = traces.setdefault(row["trace"], {}).get(strategy)
        if seen is not None and value is not None:
            value = min(value, seen)
        traces[row["trace"]][strategy] = value

    print("| trace | " + " | ".join(strategies) + " |")
    print("|---" * (len(strategies) + 1) + "|")
    for trace, values in traces.items():
        base = values[arguments.over] if arguments.over else 1.0
        cells = []
        for strategy in strategies:
            value = values.get(strategy)
            cells.append("-" if value is None else f"{value / base:,.{arguments.digits}f}")
        print(f"| {trace} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
