#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the tables of docs/preallocation.md, each under its name. No GPU needed.
#
#   bench/preallocation_tables.sh [BUILD_FOLDER]         (default build/release)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/release}
strategies="bfc;on_demand;on_demand:garbage_collection=true;platform;elastic;elastic:idle_release=10ms"
traces=()
for name in gpt2_train_varlen llama_decode_growing_kv resnet50_train_varbatch gnn_train_vargraph \
            moe_train_routed mlp_train_multistream unet_train_varsize xla_train_1 xla_eager_1; do
  traces+=("bench/traces/$name.csv.gz")
done
csv=$(mktemp)
trap 'rm -f "$csv"' EXIT

"$build/src/tools/hbm-replay" --strategy="$strategies" --find-capacity --repeat=1 \
  --allow-failures --format=csv "${traces[@]}" >"$csv"

table() {  # NAME ARGUMENTS OF pivot.py
  local name=$1
  shift
  printf '\n%s\n\n' "$name"
  bench/pivot.py "$@" <"$csv"
}
collecting="on_demand:garbage_collection=true"
table peak pool_over_live --without="$collecting"
table mean mean_pool_over_live --digits=2 --without="$collecting"
table needs needs_over_live
table calls driver_calls --digits=0 --without="$collecting"
table driver driver_us --share-of=trace_duration_us --scale=100 --digits=2 --without="$collecting"

# Other programs disturb times: of several runs the fastest counts.
for _ in 1 2 3 4 5; do
  "$build/src/tools/hbm-replay" --strategy="bfc;on_demand;platform;elastic" --repeat=9 --allow-failures \
    --format=csv "${traces[@]}"
done >"$csv"
table speed warm_ns_per_event --over=bfc --digits=2

printf '\nback\n\n'
"$build/bench/what_comes_back" "${strategies/";$collecting"/}" "${traces[@]}"
