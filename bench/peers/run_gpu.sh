#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs the peers on a machine with a GPU, one JSON file for each, and
# says for each that fails why. One peer's failure does not stop the others.
#
#   bench/peers/run_gpu.sh [--out=FOLDER] [--pack=FOLDER] [--only=PEER[,PEER]]
#       [--traces=NAME[,NAME]] [--seconds=N] [-- FLAGS OF THE PEER PROGRAMS]
#
# --out      results (bench_gpu)
# --pack     what pack.sh gathered: wheels, and programs built elsewhere
# --only     of: pytorch pytorch_expandable cuda_malloc_async rmm_pool rmm_arena
#            tensorflow_bfc tensorflow_bfc_growth offset_allocator hbmalloc
# --seconds  the most that one peer's run may take (120); what it had by then stays
# After --:  passed on, e.g. --find-capacity --passes=11 --threads=1,16
#
# Needs a CUDA toolkit, a C++20 compiler, CMake, and for PyTorch's allocator a
# python3 that has torch. Exit code 1: some peer failed; its reason is in
# FOLDER/summary.txt.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=bench_gpu pack='' only='' names='' seconds=120
flags=()
while [ $# -gt 0 ]; do
  case $1 in
    --out=*) out=${1#*=} ;;
    --pack=*) pack=${1#*=} ;;
    --only=*) only=${1#*=} ;;
    --traces=*) names=${1#*=} ;;
    --seconds=*) seconds=${1#*=} ;;
    --) shift; flags=("$@"); break ;;
    *) sed -n '3,20p' "$0"; exit 2 ;;
  esac
  shift
done
[ ${#flags[@]} -gt 0 ] || flags=("--threads=1,16")
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
summary=$out/summary.txt
: > "$summary"
failed=0

if [ -n "$names" ]; then
  traces=()
  for name in ${names//,/ }; do traces+=("$here/../traces/$name.csv.gz"); done
else
  traces=("$here"/../traces/*.csv.gz)
fi

if [ -n "$pack" ]; then
  pack=$(cd "$pack" && pwd)
  export PIP_NO_INDEX=1 PIP_FIND_LINKS=$pack/wheels
  cp -r "$pack/bin" "$pack/lib" "$work/"
  find "$work/lib" -name '*.gz' -exec gunzip {} +
  chmod +x "$work"/bin/*
fi

wanted() { [ -z "$only" ] || [[ ",$only," == *",$1,"* ]]; }
say() { echo "$1" | tee -a "$summary"; }
fail() {  # PEER WHAT LOG
  failed=1
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

# run PEER PROGRAM [FLAG...]
run() {
  local peer=$1 program=$work/bin/$2
  shift 2
  wanted "$peer" || return 0
  if [ ! -x "$program" ]; then
    failed=1
    say "FAILED $peer: no program (see above, or --pack)"
    return
  fi
  local start=$SECONDS status
  LD_LIBRARY_PATH=$work/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} timeout "$seconds" \
    "$program" "$@" "${flags[@]}" --out="$out/$peer.json" "${traces[@]}" > "$work/$peer.log" 2>&1
  status=$?
  if [ $status = 0 ]; then
    say "ok     $peer: $((SECONDS - start)) s"
  elif [ $status = 124 ]; then
    failed=1
    say "SHORT  $peer: stopped after $seconds s, with $(grep -c '"peer"' "$out/$peer.json" 2>/dev/null || echo 0) results"
  else
    fail "$peer" "exit code $status" "$work/$peer.log"
  fi
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
build HBMALLOC_PEER_CUDA_ASYNC cuda_async_peer cuda_malloc_async
build HBMALLOC_PEER_PYTORCH pytorch_peer pytorch pytorch_expandable
build HBMALLOC_PEER_RMM rmm_peer rmm_pool rmm_arena
run tensorflow_bfc tensorflow_bfc_peer
run tensorflow_bfc_growth tensorflow_bfc_peer --growth --capacity=40GiB
run offset_allocator offset_allocator_peer
run hbmalloc hbmalloc_peer
run cuda_malloc_async cuda_async_peer
run pytorch pytorch_peer
run pytorch_expandable pytorch_peer --expandable
run rmm_pool rmm_peer --resource=pool
run rmm_arena rmm_peer --resource=arena
exit $failed
