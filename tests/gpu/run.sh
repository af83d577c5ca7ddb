#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU tests and figures from binaries that were built elsewhere.
#   tests/gpu/run.sh BINARIES LOGS [--sanitize]
# BINARIES: the folder that holds gpu_test, exit_check and gpu_bench
# (build/release/tests/gpu). Where python3 has PyTorch, its allocator is measured too.
set -uo pipefail
if [ $# -lt 2 ]; then sed -n '3,6p' "$0"; exit 2; fi
here=$(cd "$(dirname "$0")" && pwd)
binaries=$1 logs=$2
mkdir -p "$logs"
failed=0
rows=()
run() {
  local name=$1 start=$SECONDS code; shift
  timeout 400 "$@" >"$logs/$name.log" 2>&1
  code=$?
  [ $code = 0 ] || failed=1
  rows+=("$(printf '%-24s exit %-4s %4s s' "$name" $code $((SECONDS - start)))")
}
build_pytorch() {
  local torch cuda
  torch=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null) || return 1
  cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
  g++ -std=c++20 -O2 -I"$torch/include" -I"$cuda/include" "$here/pytorch_pairs.cc" \
    -o "$logs/pytorch_pairs" -L"$torch/lib" -L"$cuda/lib64" -lc10_cuda -lc10 -lcudart \
    -Wl,-rpath,"$torch/lib:$cuda/lib64" >"$logs/pytorch_build.log" 2>&1
}
run tests "$binaries/gpu_test"
run figures "$binaries/gpu_bench"
if build_pytorch; then run pytorch "$logs/pytorch_pairs"; fi
if [ "${3:-}" = --sanitize ]; then
  run memcheck compute-sanitizer --tool memcheck "$binaries/gpu_test" \
    --gtest_filter='GpuTest.*:GpuCaptureTest.*-*WithoutTheRule:*WithoutAPool'
fi
grep -E "PASSED|FAILED|SKIPPED" "$logs/tests.log" | tail -20
cat "$logs/figures.log"
[ ! -f "$logs/pytorch.log" ] || cat "$logs/pytorch.log"
printf '%s\n' "${rows[@]}"
exit $failed
