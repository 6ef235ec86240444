#!/usr/bin/env bash
# Fuzzes what Muster reads from outside: builds the targets of tests/fuzz with clang, libFuzzer, ASAN and UBSAN, and runs them.
#
#   bench/fuzz.sh [--runs 10000000] [--seconds N] [--jobs N] [--max-len 4096] [TARGET…]
#
# As many run at a time as the machine has cores, or --jobs says. Tells one line of JSON a target: executions, the most memory it held,
# whether it crashed or leaked. They are built without hooks of comparisons, which take a third of the time; texts are compared by functions
# that ASAN has hooks of. New inputs that reach new branches lie in build/fuzz/corpus/TARGET; an input that crashes in
# build/fuzz/crashes/TARGET.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
source deploy/common.sh

runs=10000000 seconds=0 jobs=$(nproc) max_len=4096 targets=()
while (($#)); do
  case "$1" in
    --runs) runs=$2; shift ;;
    --seconds) seconds=$2; shift ;;
    --jobs) jobs=$2; shift ;;
    --max-len) max_len=$2; shift ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    -*) die "$1: no such option (see bench/fuzz.sh --help)" ;;
    *) targets+=("$1") ;;
  esac
  shift
done
if ((${#targets[@]} == 0)); then mapfile -t targets < <(cd tests/fuzz/corpus && ls); fi
command -v clang++-14 > /dev/null || deploy/setup.sh --no-trainer --fuzz > /dev/null
cmake --preset fuzz > /dev/null
ninja -C build/fuzz -j "${MUSTER_BUILD_JOBS:-$(nproc)}" "${targets[@]/#/fuzz_}" >&2

# Stacks of allocations are the half of what ASAN costs here: an input that crashes is run again with them.
export ASAN_OPTIONS=malloc_context_size=0:quarantine_size_mb=8

# fuzz TARGET: runs it and prints its line; status 1 if it crashed, leaked, hung or held too much.
fuzz() {
  local target=$1 log=build/fuzz/$1.log crashed=false program=build/fuzz/tests/fuzz_$1
  local corpus=build/fuzz/corpus/$1 fewer=build/fuzz/fewer/$1 crashes=build/fuzz/crashes/$1
  mkdir -p "$corpus" "$crashes"
  # Weighing inputs by the rarity of their branches takes libFuzzer longer than most of these parsers take (agent_stream: 6 of 7 seconds).
  local limits=(-runs="$runs" -entropic=0 -max_len="$max_len" -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 -verbosity=0)
  # Each start runs every input that is kept: of many, those that reach what all together reach. One that crashes is left out of them, and told.
  if (($(find "$corpus" -type f | wc -l) > 2000)); then
    rm -rf "$fewer" "$corpus.all"
    mkdir -p "$fewer"
    touch "$fewer.begun"
    if "$program" -merge=1 -rss_limit_mb=1024 -timeout=10 -artifact_prefix="$crashes/" "$fewer" "$corpus" > "$log" 2>&1; then
      mv "$corpus" "$corpus.all" && mv "$fewer" "$corpus" && rm -r "$corpus.all"
    fi
    if [[ -n $(find "$crashes" -type f -newer "$fewer.begun") ]]; then crashed=true; fi
  fi
  if ((seconds)); then limits+=(-max_total_time="$seconds"); fi
  "$program" "${limits[@]}" -artifact_prefix="$crashes/" "$corpus" "tests/fuzz/corpus/$target" > "$log" 2>&1 || crashed=true
  if [[ $crashed == true ]]; then
    for input in "$crashes"/*; do env -u ASAN_OPTIONS "$program" "$input" >> "$log" 2>&1 || true; done
    tail -40 "$log" >&2
  fi
  printf '{"target": "%s", "runs": %s, "peak_rss_mb": %s, "crashed": %s}\n' "$target" \
    "$(awk '/number_of_executed_units/ {n = $2} END {print n + 0}' "$log")" "$(awk '/peak_rss_mb/ {n = $2} END {print n + 0}' "$log")" "$crashed"
  [[ $crashed == false ]]
}

trap 'kill $(jobs -p) 2> /dev/null; exit 130' INT TERM
code=0 running=0
for target in "${targets[@]}"; do
  if ((running == jobs)); then wait -n || code=1; running=$((running - 1)); fi
  fuzz "$target" &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n || code=1; done
exit $code
