#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every trace through every strategy and every peer: one table, one JSON file, one plot.

    bench/report.py --build=build/release                 into build/report
    bench/report.py --build=build/release --gpu=RESULTS   with what a GPU machine measured
    bench/report.py --reuse --docs                        docs/benchmarks.md from figures that exist

Memory and driver time of hbmalloc's strategies are hbm-replay's, on sim; times of all are by
one loop, that of the peers' programs (hbmalloc_peer for the strategies), in turn, round after
round. --gpu names folders that bench/peers/run_gpu.sh has filled, with commas between, or a
gpu.json of an earlier report: its times are of another machine and stand in tables and a plot
of their own.

Figures, for each trace and allocator:
  time      nanoseconds of processor time per event (an allocate or a free), warm: median over
            the rounds, and the range of their medians. On a GPU wall time, the driver's in it
  first     the cold pass, wall time
  pool/live most bytes held from the device over most bytes live; left out where the allocator
            takes whatever it is given at the start
  mean      the same of the integrals over the trace's time
  needs     smallest device, on a 2 MiB grid, in which every request is met, over most bytes live
  driver    what the cost model charges for the driver calls of one cold pass
The plot sets host time plus driver time per event against pool/live (needs/live for those that
take what they are given), as geometric means over the recorded traces.
"""

import argparse
import datetime
import glob
import json
import math
import os
import shutil
import sys

import measure
import plot

# Name in the tables, policy, whether it takes its whole capacity at the start.
STRATEGIES = [
    ("bfc", "bfc:memory_fraction=1", True),
    ("on_demand", "on_demand:memory_fraction=1", False),
    ("platform", "platform:memory_fraction=1", False),
    ("elastic slack=0", "elastic:memory_fraction=1,slack=0", False),
    ("elastic", "elastic:memory_fraction=1", False),
    ("elastic slack=0.25", "elastic:memory_fraction=1,slack=0.25", False),
    ("elastic slack=inf", "elastic:memory_fraction=1,slack=inf", False),
]
# Name in the tables, program, flags, takes its capacity, whose driver calls it makes.
PEERS = [
    ("original BFC", "tensorflow_bfc_peer", [], True, "bfc"),
    ("original BFC, growth", "tensorflow_bfc_peer", ["--growth"], False, "on_demand"),
    ("OffsetAllocator", "offset_allocator_peer", [], True, "bfc"),
]
# File that run_gpu.sh writes -> name in the tables, takes its capacity.
GPU_PEERS = {
    "pytorch": ("PyTorch", False), "pytorch_expandable": ("PyTorch, expandable segments", False),
    "cuda_malloc_async": ("cudaMallocAsync", False), "rmm_pool": ("RMM pool", False),
    "rmm_arena": ("RMM arena", True), "tensorflow_bfc": ("original BFC, no GPU", True),
    "tensorflow_bfc_growth": ("original BFC, growth, no GPU", False),
    "offset_allocator": ("OffsetAllocator, no GPU", True),
}
CAPACITY = 24 * measure.GIB
GROWTH_CAPACITY = 40 * measure.GIB  # doubling regions take more than the blocks need
BEGIN, END = "<!-- report: begin -->", "<!-- report: end -->"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(measure.ROOT, "build", "release"),
                        help="folder, or several with commas, in which the programs are built")
    parser.add_argument("--traces", help="names, with commas between (all)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each program (3)")
    parser.add_argument("--passes", type=int, default=7, help="passes over the trace in one turn (7)")
    parser.add_argument("--no-needs", action="store_true", help="leave out the search for the smallest device")
    parser.add_argument("--gpu", help="folders, or one file, of results from a machine with a GPU")
    parser.add_argument("--reuse", action="store_true", help="measure nothing: take report.json (and gpu.json) of --out")
    parser.add_argument("--out", default=os.path.join(measure.ROOT, "build", "report"), help="folder for the report")
    parser.add_argument("--docs", action="store_true", help="also renew docs/benchmarks.md, docs/benchmarks/ and README.md's figures")
    return parser.parse_args()


# ------------------------------------------------------------------ measuring


def recorded(trace):
    """Traces of real programs: those that the summary and the plot speak of."""
    return not trace.startswith("random_") and trace != "edges"


def capacity_of(takes_all, trace, capacities, growth):
    return capacities.get((trace, "on_demand" if growth else "bfc"),
                          GROWTH_CAPACITY if growth and not takes_all else CAPACITY)


class Allocator:
    """One line of the tables: how to run it on a trace, and what came out. `time` and `memory`
    make a command of a trace's path; what the second prints is not timed."""

    def __init__(self, name, family, takes_all, time, memory, driver_of=None):
        self.name, self.family, self.takes_all = name, family, takes_all
        self.time, self.memory, self.driver_of = time, memory, driver_of
        self.runs = {}  # trace -> rows, one of each round
        self.held = {}  # trace -> row of the memory figures
        self.problem = None

    def run(self, path, command, store):
        if self.problem is not None:
            return
        try:
            store(measure.trace_name(path), measure.run_json(command(path))[0])
        except (RuntimeError, IndexError) as error:
            self.problem = str(error)
            print(f"{self.name}: {error}", file=sys.stderr)

    def run_timed(self, path):
        self.run(path, self.time, lambda trace, row: self.runs.setdefault(trace, []).append(row))

    def run_memory(self, path):
        self.run(path, self.memory, self.held.__setitem__)


def strategy_allocators(programs, args, capacities):
    replay, peer = programs.get("hbm-replay"), programs.get("hbmalloc_peer")
    if replay is None or peer is None:
        print("hbm-replay or hbmalloc_peer is not built: hbmalloc's own strategies are left out", file=sys.stderr)
        return []
    made = []
    for name, policy, takes_all in STRATEGIES:

        def time(path, policy=policy, takes_all=takes_all):
            size = capacity_of(takes_all, measure.trace_name(path), capacities, not takes_all)
            return [peer, f"--policy={policy}", f"--capacity={size}", f"--passes={args.passes}", "--no-memory", path]

        def memory(path, policy=policy, takes_all=takes_all):
            size = capacity_of(takes_all, measure.trace_name(path), capacities, not takes_all)
            needs = [] if args.no_needs else ["--find-capacity"]
            return [replay, f"--strategy={policy}", "--device=sim", f"--capacity={size}", "--format=json",
                    "--allow-failures", "--repeat=1", *needs, path]

        made.append(Allocator(name, "hbmalloc", takes_all, time, memory))
    return made


def peer_allocators(programs, args, capacities):
    made = []
    for name, program, flags, takes_all, driver_of in PEERS:
        path = programs.get(program)
        if path is None:
            print(f"{program} is not built: {name} is left out (bench/peers/README.md)", file=sys.stderr)
            continue

        def time(trace, path=path, flags=flags, takes_all=takes_all):
            size = capacity_of(takes_all, measure.trace_name(trace), capacities, not takes_all)
            return [path, *flags, f"--capacity={size}", f"--passes={args.passes}", "--no-memory", trace]

        def memory(trace, path=path, flags=flags, takes_all=takes_all):
            size = capacity_of(takes_all, measure.trace_name(trace), capacities, not takes_all)
            needs = [] if args.no_needs else ["--find-capacity"]
            return [path, *flags, f"--capacity={size}", "--passes=1", *needs, trace]

        made.append(Allocator(name, "peer", takes_all, time, memory, driver_of))
    return made


def measure_all(allocators, traces, args):
    for path in traces:
        print(f"{measure.trace_name(path)} ...", file=sys.stderr)
        for _ in range(args.rounds):
            for allocator in allocators:
                allocator.run_timed(path)
        for allocator in allocators:
            allocator.run_memory(path)


def summarize(allocator, trace):
    """The figures of one trace and allocator, over its rounds."""
    rows, held = allocator.runs[trace], allocator.held.get(trace, {})
    warm = measure.spread([r["warm_cpu_ns_per_event"] for r in rows])
    return {
        "allocator": allocator.name, "family": allocator.family, "trace": trace, "events": rows[-1]["events"],
        "runs": len(rows), "failures": rows[-1]["failures"], "takes_all": allocator.takes_all,
        "warm_ns_per_event": warm[0], "warm_ns_per_event_min": warm[1], "warm_ns_per_event_max": warm[2],
        "first_ns_per_event": measure.median([r["first_ns_per_event"] for r in rows]),
        "pool_over_live": None if allocator.takes_all else held.get("pool_over_live"),
        "mean_pool_over_live": None if allocator.takes_all else held.get("mean_pool_over_live"),
        "needs_over_live": held.get("needs_over_live"),
        "driver_us": held.get("driver_us"), "driver_calls": held.get("driver_calls"),
    }


def share_driver_time(results, allocators):
    """The original makes the same requests of the device as the strategy of its kind."""
    by_key = {(r["allocator"], r["trace"]): r for r in results}
    for allocator in allocators:
        for trace in allocator.runs:
            twin = by_key.get((allocator.driver_of, trace))
            if twin is not None:
                by_key[allocator.name, trace].update(driver_us=twin["driver_us"], driver_calls=twin["driver_calls"])


# -------------------------------------------------------------------- the GPU


def own_name(row):
    """hbm-replay's or hbmalloc_peer's name for a strategy, as in the tables."""
    text = str(row.get("strategy") or row.get("peer", "")).removeprefix("hbmalloc ")
    fields = [f for f in text.partition(":")[2].split(",") if f and not f.startswith(("memory_", "reserve"))]
    return " ".join([text.partition(":")[0], *fields])


class GpuResults:
    """What run_gpu.sh wrote: PEER.RUN.json, PEER.needs.json, PEER.threads.json."""

    def __init__(self):
        self.machine, self.threads = {}, []
        self.runs = {}  # (name, trace) -> rows, one of each run
        self.needs = {}  # (name, trace) -> ratio
        self.of_name = {}  # name -> (family, takes_all)

    def read_folder(self, folder):
        for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
            try:
                with open(path, encoding="utf-8") as file:
                    content = json.load(file)
                if os.path.basename(path) == "environment.json":
                    self.machine.update(content)
                elif isinstance(content, list):
                    self._read_rows(*os.path.basename(path).split(".")[:2], content)
            except (ValueError, KeyError) as error:
                print(f"{path} is left out: {error!r}", file=sys.stderr)

    def _read_rows(self, peer, run, rows):
        for row in rows:
            name, takes_all = GPU_PEERS.get(peer, (own_name(row), own_name(row).startswith("bfc")))
            if peer == "hbmalloc":
                name += ", no GPU"
            family = "peer" if peer in GPU_PEERS else "hbmalloc"
            if "threads" in row:
                self.threads.append({"allocator": name.removesuffix(", no GPU"), "family": family, **row})
            elif run == "needs":
                self.needs[name, row["trace"]] = row.get("needs_over_live")
            elif row.get("warm_ns_per_event") is not None:
                self.of_name[name] = (family, takes_all)
                self.runs.setdefault((name, row["trace"]), []).append(row)

    def _summarize(self, name, trace):
        rows, (family, takes_all) = self.runs[name, trace], self.of_name[name]
        warm = measure.spread([r["warm_ns_per_event"] for r in rows])
        held = next((r for r in rows if "pool_over_live" in r), {})
        return {
            "allocator": name, "family": family, "trace": trace, "events": rows[0]["events"], "runs": len(rows),
            "failures": rows[0]["failures"], "takes_all": takes_all,
            "warm_ns_per_event": warm[0], "warm_ns_per_event_min": warm[1], "warm_ns_per_event_max": warm[2],
            "first_ns_per_event": measure.median([r["first_ns_per_event"] for r in rows]),
            "pool_over_live": None if takes_all else held.get("pool_over_live"),
            "mean_pool_over_live": None if takes_all else held.get("mean_pool_over_live"),
            "needs_over_live": self.needs.get((name, trace)),
            # The clock saw the driver at work: nothing is to be added. (On sim it did not.)
            "driver_us": held.get("driver_us") if held.get("device", "").startswith("sim") else None,
            "driver_calls": held.get("driver_calls"),
        }

    def report(self):
        # hbmalloc first; within a family as the files come.
        keys = sorted(self.runs, key=lambda key: (self.of_name[key[0]][0] != "hbmalloc", "no GPU" in key[0]))
        return {"machine": self.machine, "results": [self._summarize(*key) for key in keys], "threads": self.threads}


def share_needs(gpu, results):
    """Placements, and so the smallest device, do not depend on the machine."""
    needs = {(r["allocator"], r["trace"]): r["needs_over_live"] for r in results}
    for row in gpu["results"]:
        if row["needs_over_live"] is None:
            row["needs_over_live"] = needs.get((row["allocator"].removesuffix(", no GPU"), row["trace"]))


def read_gpu(source):
    """{"machine", "results", "threads"} from folders of run_gpu.sh's, or from a gpu.json."""
    if os.path.isfile(source):
        with open(source, encoding="utf-8") as file:
            return json.load(file)
    gathered = GpuResults()
    for folder in source.split(","):
        gathered.read_folder(folder)
    return gathered.report()


# -------------------------------------------------------------------- showing


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def memory_of(row):
    return row["needs_over_live"] if row["takes_all"] else row["pool_over_live"]


def time_of(row):
    return row["warm_ns_per_event"] + (row["driver_us"] or 0) * 1000 / row["events"]


def names_in_order(results):
    return list(dict.fromkeys(r["allocator"] for r in results))


def plot_points(results):
    """One point for each allocator that has figures for every recorded trace."""
    traces = {r["trace"] for r in results if recorded(r["trace"])}
    points, left_out = [], []
    for name in names_in_order(results):
        rows = [r for r in results if r["allocator"] == name and r["trace"] in traces]
        if {r["trace"] for r in rows} == traces and all(memory_of(r) for r in rows) and rows:
            points.append(plot.Point(name, geometric_mean([time_of(r) for r in rows]),
                                     geometric_mean([memory_of(r) for r in rows]), rows[0]["family"]))
        else:
            left_out.append(name)
    return points, left_out


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def driver_cell(row):
    if row["driver_us"] is None:
        return "-"
    return f"{row['driver_us'] / 1000:.2f} ms" if row["driver_us"] >= 100 else f"{row['driver_us']:.0f} µs"


def time_cell(row):
    text = f"{row['warm_ns_per_event']:.1f}"
    if row["warm_ns_per_event_min"] is not None:
        text += f" ({row['warm_ns_per_event_min']:.1f}-{row['warm_ns_per_event_max']:.1f})"
    return text


def table(results, trace):
    lines = [f"**{trace}**, {next(r['events'] for r in results if r['trace'] == trace):,} events\n",
             "| allocator | ns per event, warm (range) | first pass | pool/live | mean pool/live | needs/live | driver |",
             "|---|---|---|---|---|---|---|"]
    for row in (r for r in results if r["trace"] == trace):
        name = row["allocator"] + (f" ({row['failures']} failures)" if row["failures"] else "")
        lines.append(f"| {name} | {time_cell(row)} | {row['first_ns_per_event']:.0f} | {number(row['pool_over_live'])} "
                     f"| {number(row['mean_pool_over_live'], 2)} | {number(row['needs_over_live'])} | {driver_cell(row)} |")
    return "\n".join(lines) + "\n"


def summary_table(results):
    traces = {r["trace"] for r in results if recorded(r["trace"])}
    lines = ["| allocator | ns per event, warm | with driver | pool/live | mean pool/live | needs/live |",
             "|---|---|---|---|---|---|"]
    for name in names_in_order(results):
        rows = [r for r in results if r["allocator"] == name and r["trace"] in traces]
        if {r["trace"] for r in rows} != traces:
            continue

        def mean(field, rows=rows, digits=3):
            values = [r[field] for r in rows]
            return "-" if any(v is None for v in values) else f"{geometric_mean(values):.{digits}f}"

        lines.append(f"| {name} | {mean('warm_ns_per_event', digits=1)} | {geometric_mean([time_of(r) for r in rows]):.1f} "
                     f"| {mean('pool_over_live')} | {mean('mean_pool_over_live', digits=2)} | {mean('needs_over_live')} |")
    return "\n".join(lines) + "\n"


def threads_table(threads):
    lines = ["| allocator | threads | million operations a second (range) |", "|---|---|---|"]
    for row in threads:
        low, high = row["operations_per_second_min"] / 1e6, row["operations_per_second_max"] / 1e6
        lines.append(f"| {row['allocator']} | {row['threads']} | {row['operations_per_second'] / 1e6:.2f} "
                     f"({low:.2f}-{high:.2f}) |")
    return "\n".join(lines) + "\n"


def machine_lines(machine):
    return "\n".join(f"- {key}: {value}" for key, value in machine.items()) + "\n"


def draw(points, title, stem, out):
    """The plot as SVG and PNG; the names of the files that were written."""
    if len(points) < 2:
        return []
    svg = os.path.join(out, f"{stem}.svg")
    with open(svg, "w", encoding="utf-8") as file:
        file.write(plot.scatter(points, title, "host and driver time per event (log scale)",
                                "memory held over live bytes (log scale of what is above 1)"))
    way = plot.to_png(svg, os.path.join(out, f"{stem}.png"))
    if way is None:
        print("no PNG: install rsvg-convert, inkscape, ImageMagick or the Python package cairosvg", file=sys.stderr)
        return [f"{stem}.svg"]
    return [f"{stem}.svg", f"{stem}.png"]


def section(heading, report, stem, out):
    """Markdown of one machine's figures, with its plot."""
    results = report["results"]
    points, left_out = plot_points(results)
    files = draw(points, f"Memory against time, {heading}", stem, out)
    text = [f"### {heading[0].upper()}{heading[1:]}\n", machine_lines(report["machine"])]
    if report.get("command"):
        text.append(f"Measured on {report['date']} by `{report['command']}`.\n")
    runs = sorted({r["runs"] for r in results})
    text.append(f"Times are medians over {' to '.join(map(str, dict.fromkeys([runs[0], runs[-1]])))} runs.\n")
    if files:
        text.append(f"![Memory against time]({{folder}}{files[0]})\n")
    if left_out and files:
        text.append(f"Not in the plot, for want of a figure on some recorded trace: {', '.join(left_out)}.\n")
    text.append("Geometric means over the recorded traces (`random_*` and `edges` left out):\n")
    text.append(summary_table(results))
    if report.get("threads"):
        text += ["Threads, each replacing blocks of its own:\n", threads_table(report["threads"])]
    text.append("<details><summary>Every trace</summary>\n")
    text += [table(results, trace) for trace in dict.fromkeys(r["trace"] for r in results)]
    text.append("</details>\n")
    return "\n".join(text), files


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def between_marks(page, content):
    """Puts `content` between the marks of a page."""
    path = os.path.join(measure.ROOT, page)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{page} lacks {BEGIN} or {END}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{head}{BEGIN}\n\n{content}\n{END}{tail}")


def readme_text(results):
    """The README's figures."""
    plain = [r for r in results if "slack" not in r["allocator"]]
    return (summary_table(plain) + "\nGeometric means over recorded traces of training and inference, device `sim`; "
            "[docs/benchmarks.md](docs/benchmarks.md)\nsays on which machine, and has every trace, more peers and "
            "the spread.\n")


def renew_docs(report, markdown, out, files):
    """Puts the report into docs/benchmarks.md and its summary into README.md, the pictures beside."""
    folder = os.path.join(measure.ROOT, "docs", "benchmarks")
    os.makedirs(folder, exist_ok=True)
    for name in files:
        shutil.copyfile(os.path.join(out, name), os.path.join(folder, name))
    between_marks(os.path.join("docs", "benchmarks.md"), markdown.replace("{folder}", "benchmarks/"))
    between_marks("README.md", readme_text(report["results"]))


def measure_here(args):
    programs = measure.Programs(args.build.split(","))
    capacities = measure.golden_capacities()
    allocators = strategy_allocators(programs, args, capacities) + peer_allocators(programs, args, capacities)
    if not allocators:
        sys.exit(f"no program to run under {args.build}")
    measure_all(allocators, measure.all_traces(args.traces), args)
    results = [summarize(a, measure.trace_name(path)) for path in measure.all_traces(args.traces)
               for a in allocators if measure.trace_name(path) in a.runs]
    share_driver_time(results, allocators)
    return {"machine": measure.machine(), "date": datetime.date.today().isoformat(),
            "command": " ".join(["bench/report.py", *(os.path.relpath(a) if os.path.exists(a) else a for a in sys.argv[1:])]),
            "rounds": args.rounds, "passes": args.passes, "results": results}, any(a.problem for a in allocators)


def reuse(args):
    with open(os.path.join(args.out, "report.json"), encoding="utf-8") as file:
        return json.load(file), False


def main():
    args = arguments()
    os.makedirs(args.out, exist_ok=True)
    report, problems = reuse(args) if args.reuse else measure_here(args)
    write_json(os.path.join(args.out, "report.json"), report)
    markdown, files = section("this machine, device sim", report, "memory_against_time", args.out)
    files.append("report.json")
    earlier = os.path.join(args.out, "gpu.json")
    if args.gpu or (args.reuse and os.path.exists(earlier)):
        gpu = read_gpu(args.gpu or earlier)
        share_needs(gpu, report["results"])
        write_json(earlier, gpu)
        more, gpu_files = section("a machine with a GPU", gpu, "memory_against_time_gpu", args.out)
        markdown += "\n" + more
        files += [*gpu_files, "gpu.json"]
    with open(os.path.join(args.out, "report.md"), "w", encoding="utf-8") as file:
        file.write(markdown.replace("{folder}", ""))
    if args.docs:
        renew_docs(report, markdown, args.out, files)
    print(f"wrote {', '.join(sorted([*files, 'report.md']))} to {args.out}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
