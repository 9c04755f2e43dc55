#!/bin/sh
# summary.sh LOG: the skips with their reasons, the failures, and the closing line. Fails when a test did.
log=$1
[ -s "$log" ] || { echo "no test ran: $log is empty" >&2; exit 1; }
# Skips that share a reason stand on one line.
sed -n 's/^SKIP \([^:]*\): *\(.*\)/\2|\1/p' "$log" | sort | awk -F'|' '
  function report() { if (n) print "skipped: " ((n > 3) ? first " and " (n - 1) " more" : names) ": " reason }
  $1 != reason { report(); n = 0; names = ""; reason = $1; first = $2 }
  { n++; names = names (names == "" ? "" : ", ") $2 }
  END { report() }'
grep '^FAIL' "$log" | sed 's/^FAIL/failed:/'
passed=$(grep -c '^PASS' "$log")
failed=$(grep -c '^FAIL' "$log")
skipped=$(grep -c '^SKIP' "$log")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
