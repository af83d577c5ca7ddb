#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The driver time of elastic on a GPU against the cost model's, on recorded traces.

    tests/gpu/elastic_model.py HBM_REPLAY TRACE... [--most=2]

Fails if the two are more than --most times apart. The time on a GPU is the middle of
three passes, each from cold.
"""
import json
import statistics
import subprocess
import sys


def driver_milliseconds(replay, device, trace):
    command = [replay, "--strategy=elastic:slack=0", f"--device={device}", "--format=json", trace]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()[-400:]}")
    row = json.loads(done.stdout)[0]
    if row["failures"]:
        sys.exit(f"{trace} on {device}: {row['failures']} requests failed")
    return row["driver_us"] / 1000, row["driver_calls"]


def main(arguments):
    most = 2.0
    paths = []
    for argument in arguments:
        if argument.startswith("--most="):
            most = float(argument.split("=")[1])
        else:
            paths.append(argument)
    if len(paths) < 2:
        sys.exit(__doc__)
    replay, traces = paths[0], paths[1:]
    apart = False
    for trace in traces:
        model, model_calls = driver_milliseconds(replay, "sim:h200", trace)
        runs = [driver_milliseconds(replay, "cuda:0", trace) for _ in range(3)]
        real = statistics.median(time for time, _ in runs)
        ratio = real / model
        apart |= not 1 / most <= ratio <= most
        times = ", ".join(f"{time:.0f}" for time, _ in runs)
        print(f"{trace.split('/')[-1]:32} model {model:6.0f} ms in {model_calls} calls, GPU {times} ms "
              f"in {runs[0][1]} calls, {ratio:.2f} times the model")
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
