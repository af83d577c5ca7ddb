#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU tests and figures from binaries that were built elsewhere.
#   tests/gpu/run.sh BINARIES LOGS [--sanitize]
# BINARIES: the folder that holds gpu_test and gpu_bench (build/release/tests/gpu).
set -uo pipefail
if [ $# -lt 2 ]; then sed -n '3,5p' "$0"; exit 2; fi
binaries=$1 logs=$2
mkdir -p "$logs"
run() {
  local name=$1 start=$SECONDS; shift
  timeout 400 "$@" >"$logs/$name.log" 2>&1
  rows+=("$(printf '%-24s exit %-4s %4s s' "$name" $? $((SECONDS - start)))")
}
rows=()
run tests "$binaries/gpu_test"
run figures "$binaries/gpu_bench"
if [ "${3:-}" = --sanitize ]; then
  run memcheck compute-sanitizer --tool memcheck "$binaries/gpu_test" --gtest_filter='GpuTest.*-*Wrong*WithoutTheRule'
fi
grep -E "PASSED|FAILED|SKIPPED" "$logs/tests.log" | tail -20
cat "$logs/figures.log"
printf '%s\n' "${rows[@]}"
