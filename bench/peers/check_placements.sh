#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Replays every trace through the original BFC as the golden files were made, and
# compares placements, peak pool and failures with them. Exit code 1: some differ.
#   check_placements.sh PROGRAM TRACES_FOLDER GOLDEN_FOLDER
set -uo pipefail
program=$1 traces=$2 golden=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0 compared=0

field() { grep -o "\"$1\": [0-9]*" "$work/result.json" | grep -o '[0-9]*$'; }

# check GOLDEN_NAME TRACE LIMIT CAPACITY POOL FAILURES [FLAG]; POOL or FAILURES may be -
check() {
  local name=$1 trace=$2 limit=$3 capacity=$4 pool=$5 failures=$6
  shift 6
  if ! "$program" --passes=1 --limit="$limit" --capacity="$capacity" "$@" \
      --placements="$work/placements" --out="$work/result.json" "$traces/$trace.csv.gz"; then
    echo "FAILED  $name: the program did not end well"
    bad=1
    return
  fi
  compared=$((compared + 1))
  if ! gzip -dc "$golden/$name.csv.gz" | cmp -s - "$work/placements"; then
    echo "DIFFERS $name: placements"
    bad=1
  elif [ "$pool" != - ] && [ "$(field peak_pool_bytes)" != "$pool" ]; then
    echo "DIFFERS $name: peak pool $(field peak_pool_bytes), golden $pool"
    bad=1
  elif [ "$failures" != - ] && [ "$(field failures)" != "$failures" ]; then
    echo "DIFFERS $name: failures $(field failures), golden $failures"
    bad=1
  else
    echo "same    $name"
  fi
}

while IFS=, read -r trace strategy limit capacity pool _ failures; do
  [ "$trace" = trace ] && continue
  name=$trace.$strategy
  [ "$limit" != "$capacity" ] && name=${name}_pressed
  growth=()
  [ "$strategy" = on_demand ] && growth=(--growth)
  check "$name" "$trace" "$limit" "$capacity" "$pool" "$failures" "${growth[@]}"
done < "$golden/pools.csv"
# What XLA itself handed out, on a pool of this size.
for trace in xla_train_1 xla_eager_1; do
  check "$trace.bfc" "$trace" 112583507968 112583507968 - 0 --no-memory
done
echo "$compared golden files compared"
[ "$compared" -gt 2 ] || bad=1
exit $bad
