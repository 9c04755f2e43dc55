#!/usr/bin/env bash
# compute-sanitizer over a part of the conformance list that reaches every kernel and every feature, on the GPU here:
#   tools/sanitize.sh [-b BUILD] [-j JOBS] [TOOL...]        TOOL: memcheck racecheck initcheck synccheck (default: all)
# First without a tool, which fills a kernel cache and shows what fails anyhow, then under each. JOBS processes run at a time
# (default: all cores), so that a tool takes less than a minute on 16. Ends with a table; exit status 1 when something is wrong that
# docs/gpu.md ("Sanitizers") does not name as a false alarm. Logs stay in BUILD/sanitize.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/release jobs=$(nproc)
while getopts b:j: option; do
  case $option in b) build=$OPTARG ;; j) jobs=$OPTARG ;; *) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
done
shift $((OPTIND - 1))
tools=("${@:-memcheck}")
[ $# -gt 0 ] || tools=(memcheck racecheck initcheck synccheck)

algorithms=(fa2 wgmma fa1 unfused)
shards=4
# Lines of tests/conformance/cases.txt by seed. Features in all combinations, forward, then backward; then lines so plain that
# the baselines run them: all masks, grouped heads, lengths that are no multiple of any tile.
seeds=(13 23 26 29 31 47 57 66 88 103 108 123 136 141 159 168 170 172 253 257 314 316 317 318 319 356 360)

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) ||
  { echo "compute-sanitizer is not here: it comes with the CUDA toolkit (Debian and NVIDIA: cuda-sanitizer)"; exit 77; }
test=$build/tests/test_conformance
[ -x "$test" ] || { echo "$test is not there: build it (./test release, or -b BUILD)"; exit 2; }
logs=$build/sanitize
rm -rf "$logs"
mkdir -p "$logs"
export TILEWISE_CACHE_DIR=$PWD/$logs/cache

# False alarms, by tool and algorithm; docs/gpu.md says why they are.
known_alarm() { [ "$1 $2" = "racecheck wgmma" ]; }

# run_shard TOOL ALGORITHM SHARD
run_shard() {
  local log=$logs/$1.$2.$3 filter="" under=()
  for seed in $seeds_text; do filter+="Conformance/$2.*_seed_$seed:"; done
  [ "$1" = plain ] || under=("$sanitizer" --tool "$1" --error-exitcode 99 --print-limit 20)
  GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$3 timeout 300 "${under[@]}" "$test" --gtest_filter="$filter" >"$log" 2>&1 ||
    echo "exit status $?" >>"$log"
}
export -f run_shard
export logs sanitizer test shards seeds_text="${seeds[*]}"

for tool in plain "${tools[@]}"; do
  start=$SECONDS
  for algorithm in "${algorithms[@]}"; do
    for ((shard = 0; shard < shards; ++shard)); do echo "$tool $algorithm $shard"; done
  done | xargs -P "$jobs" -L 1 bash -c 'run_shard "$@"' run_shard
  echo "$tool: $((SECONDS - start)) s"
done

# The sum of the numbers that a pattern finds in a tool's logs for an algorithm.
count() { cat "$logs/$1.$2".? | sed -n "s/$3/\1/p" | awk '{ n += $1 } END { print n + 0 }'; }
status=0
printf '\n%-10s %-8s %6s %6s %7s   %s\n' tool kernels passed failed skipped verdict
for tool in plain "${tools[@]}"; do
  for algorithm in "${algorithms[@]}"; do
    passed=$(count "$tool" "$algorithm" '^\[  PASSED  \] \([0-9]*\) test.*')
    skipped=$(count "$tool" "$algorithm" '^\[  SKIPPED \] \([0-9]*\) test.*')
    failed=$(count "$tool" "$algorithm" '^ *\([0-9]*\) FAILED TEST.*')
    alarms=$(count "$tool" "$algorithm" '^=* ERROR SUMMARY: \([0-9]*\) error.*')
    [ "$tool" != racecheck ] ||
      alarms=$(count "$tool" "$algorithm" '^=* RACECHECK SUMMARY: \([0-9]*\) hazard.*')
    broken=$(cat "$logs/$tool.$algorithm".? | grep -c '^exit status' || true)
    if [ "$alarms" -gt 0 ] && known_alarm "$tool" "$algorithm" && [ "$failed" -eq 0 ]; then
      verdict="$alarms false alarms (docs/gpu.md)"
    elif [ "$alarms" -gt 0 ] || [ "$failed" -gt 0 ]; then
      verdict="WRONG: $alarms alarms, $failed failed tests"
    elif [ "$broken" -gt 0 ]; then
      verdict="WRONG: $(cat "$logs/$tool.$algorithm".? | grep '^exit status' | sort | uniq -c | tr -s '\n ' ' ')"
    elif [ "$passed" -eq 0 ]; then
      verdict="nothing ran"
    else
      verdict=clean
    fi
    case $verdict in WRONG* | nothing*) status=1 ;; esac
    printf '%-10s %-8s %6s %6s %7s   %s\n' "$tool" "$algorithm" "$passed" "$failed" "$skipped" "$verdict"
  done
done
exit $status
