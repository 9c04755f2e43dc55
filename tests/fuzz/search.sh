#!/bin/sh
# search.sh FUZZER CORPUS SECONDS: the checked-in corpus, then new inputs from a fixed seed. What is found stays in a folder of
# its own and the crashing input is printed in base64.
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
mkdir -p "$found/new"
"$1" -seed=1 -max_total_time="$3" -max_len=400 -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$found/" \
  "$found/new" "$2" >"$found/log" 2>&1
status=$?
tail -n 25 "$found/log"
for input in "$found"/crash-* "$found"/timeout-* "$found"/oom-* "$found"/leak-*; do
  [ -f "$input" ] && echo "input, in base64: $(base64 -w0 "$input")"
done
exit $status
