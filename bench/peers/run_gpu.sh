#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the peers on a machine with a GPU, one JSON file for each run of
# each peer, and says for each that fails why. One peer's failure does not stop the
# others. `bench/report.py --gpu=FOLDER` makes tables and a plot of what it wrote.
#
#   bench/peers/run_gpu.sh [--out=FOLDER] [--pack=FOLDER] [--only=PEER[,PEER]]
#       [--traces=NAME[,NAME]] [--runs=N] [--seconds=N] [--total=N] [-- FLAGS]
#
# --out      results (bench_gpu): PEER.RUN.json, PEER.needs.json, PEER.threads.json
# --pack     what pack.sh gathered: wheels, and programs built elsewhere
# --only     of: pytorch pytorch_expandable cuda_malloc_async rmm_pool rmm_arena
#            hbm_replay (the strategies on the GPU) tensorflow_bfc
#            tensorflow_bfc_growth offset_allocator hbmalloc hbmalloc_threads
# --runs     how often each peer replays all traces, in turn with the others (3)
# --seconds  the most that one run may take (120); what it had by then stays
# --total    no run begins later than this many seconds after the start (3600)
# After --:  passed on to the peers' programs, e.g. --passes=11
#
# Peers that need no GPU run beside those that do: the machine should have four
# cores or more. Needs a CUDA toolkit, a C++20 compiler, CMake, and for PyTorch's
# allocator a python3 that has torch. Exit code 1: some peer failed; its reason is
# in FOLDER/summary.txt.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=bench_gpu pack='' only='' names='' runs=3 seconds=120 total=3600
flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --out=*) out=${1#*=} ;;
    --pack=*) pack=${1#*=} ;;
    --only=*) only=${1#*=} ;;
    --traces=*) names=${1#*=} ;;
    --runs=*) runs=${1#*=} ;;
    --seconds=*) seconds=${1#*=} ;;
    --total=*) total=${1#*=} ;;
    --) shift; flags=("$@"); break ;;
    *) sed -n '3,25p' "$0"; exit 2 ;;
  esac
  shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
summary=$out/summary.txt
: > "$summary"

traces=()
for name in ${names//,/ }; do traces+=("$here/../traces/$name.csv.gz"); done
[ -n "$names" ] || traces=("$here"/../traces/*.csv.gz)

if [ -n "$pack" ]; then
  pack=$(cd "$pack" && pwd)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=$pack/wheels
  cp -r "$pack/bin" "$pack/lib" "$work/"
  find "$work/lib" -name '*.xz' -exec unxz {} +
  chmod +x "$work"/bin/*
fi

wanted() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }
say() { echo "$1" | tee -a "$summary"; }
fail() {  # PEER WHAT LOG
  say "FAILED $1: $2"
  grep -iE 'error|not found|cannot|no such|undefined' "$3" | head -5 | sed 's/^/    /' | tee -a "$summary"
  tail -3 "$3" | sed 's/^/    /' | tee -a "$summary"
}

# build OPTION TARGET PEER...: the program into $work/bin, unless no peer of it is wanted.
build() {
  local option=$1 target=$2 peer any=0
  shift 2
  for peer in "$@"; do wanted "$peer" && any=1; done
  [ $any = 1 ] || return 0
  mkdir -p "$work/bin"
  if cmake -S "$here" -B "$work/build/$target" -DCMAKE_BUILD_TYPE=Release "-D$option=ON" \
      -DPython3_EXECUTABLE="$(command -v python3)" > "$work/$target.log" 2>&1 &&
    cmake --build "$work/build/$target" --parallel 4 >> "$work/$target.log" 2>&1; then
    cp "$work/build/$target/$target" "$work/bin/"
  else
    fail "$target" "it could not be built" "$work/$target.log"
  fi
}

# launch NAME SECONDS PROGRAM [ARGUMENT...]: one run; the program writes NAME's file.
launch() {
  local name=$1 limit=$2 program=$work/bin/$3
  shift 3
  wanted "${name%%.*}" || return 0
  if [ ! -x "$program" ]; then
    say "FAILED $name: no program (see above, or --pack)"
    return
  fi
  if [ $SECONDS -ge "$total" ]; then
    say "LATE   $name: not begun, $total s are over"
    return
  fi
  local start=$SECONDS status
  LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout "$limit" \
    "$program" "$@" --out="$out/$name.json" > "$work/$name.log" 2>&1
  status=$?
  case $status in
    0) say "ok     $name: $((SECONDS - start)) s" ;;
    124) say "SHORT  $name: stopped after $limit s, with $(grep -c '"trace"' "$out/$name.json" 2>/dev/null || echo 0) results" ;;
    *) fail "$name" "exit code $status" "$work/$name.log" ;;
  esac
}

# peer RUN PEER PROGRAM [FLAG...]: all traces. Memory is the same in every run: read once.
peer() {
  local run=$1 name=$2 program=$3 memory=()
  shift 3
  [ "$run" = 1 ] || memory=(--no-memory)
  launch "$name.$run" "$seconds" "$program" "$@" "${memory[@]}" "${flags[@]}" "${traces[@]}"
}
needs() {  # PEER PROGRAM [FLAG...]: the smallest capacity for each trace
  local name=$1 program=$2
  shift 2
  launch "$name.needs" "$seconds" "$program" "$@" --passes=1 --no-memory --find-capacity "${traces[@]}"
}
threads() {  # PEER PROGRAM [FLAG...]
  local name=$1 program=$2
  shift 2
  launch "$name.threads" "$seconds" "$program" "$@" --threads=1,16 --operations=40000 --rounds=5
}
replay() {  # RUN: hbmalloc's strategies on the GPU itself
  local strategy number=0
  for strategy in bfc on_demand elastic:slack=inf elastic cuda_async; do
    launch "hbm_replay.$1-$((++number))" "$seconds" hbm-replay --device=cuda:0 --allow-failures --format=json \
      --repeat=3 --strategy="$strategy" "${traces[@]}"
  done
}

on_the_gpu() {
  local run
  for ((run = 1; run <= runs; ++run)); do
    peer $run pytorch pytorch_peer
    peer $run pytorch_expandable pytorch_peer --expandable
    peer $run cuda_malloc_async cuda_async_peer
    peer $run rmm_pool rmm_peer --resource=pool
    peer $run rmm_arena rmm_peer --resource=arena
    replay $run
  done
  # Nothing is timed here, so all search at once.
  needs pytorch pytorch_peer &
  needs pytorch_expandable pytorch_peer --expandable &
  needs cuda_malloc_async cuda_async_peer &
  needs rmm_pool rmm_peer --resource=pool &
  needs rmm_arena rmm_peer --resource=arena &
  wait
  threads pytorch pytorch_peer
  threads pytorch_expandable pytorch_peer --expandable
  threads cuda_malloc_async cuda_async_peer
  threads rmm_pool rmm_peer --resource=pool
  threads rmm_arena rmm_peer --resource=arena
}
beside_it() {
  local run policy number=0
  for ((run = 1; run <= runs; ++run)); do
    peer $run tensorflow_bfc tensorflow_bfc_peer
    peer $run tensorflow_bfc_growth tensorflow_bfc_peer --growth --capacity=40GiB
    peer $run offset_allocator offset_allocator_peer
    peer $run hbmalloc hbmalloc_peer
  done
  threads tensorflow_bfc tensorflow_bfc_peer
  for policy in bfc bfc:thread_cache=true elastic elastic:thread_cache=true; do
    launch "hbmalloc_threads.$((++number))" "$seconds" hbmalloc_peer --policy=$policy \
      --threads=1,16 --operations=400000 --rounds=5
  done
}

environment() {
  python3 - "$out/environment.json" <<'PY'
import json, os, platform, re, subprocess, sys
def first(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except Exception as error:
        return f"not available ({error})"
def torch_version():
    try:
        import torch
        return torch.__version__
    except Exception as error:
        return f"not available ({error})"
cpu = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
gpu = first("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
nvcc = re.search(r"release [\d.]+, V([\d.]+)", first("nvcc", "--version"))
json.dump({
    "gpu": gpu, "cuda": nvcc.group(1) if nvcc else "not available",
    "cpu": cpu.group(1) if cpu else platform.processor(), "cores": os.cpu_count(),
    "compiler": first("g++", "--version").splitlines()[0] if first("g++", "--version") else "",
    "torch": torch_version(), "librmm": "26.10.0", "system": platform.platform(),
}, open(sys.argv[1], "w"), indent=1)
PY
}

environment
build HBMALLOC_PEER_CUDA_ASYNC cuda_async_peer cuda_malloc_async &
build HBMALLOC_PEER_PYTORCH pytorch_peer pytorch pytorch_expandable &
build HBMALLOC_PEER_RMM rmm_peer rmm_pool rmm_arena &
wait
beside_it &
on_the_gpu
wait
! grep -qE '^(FAILED|SHORT|LATE)' "$summary"
