#!/bin/sh
# record.sh NAME COMMAND...: runs a test and writes its line to $TILEWISE_TEST_LOG, unless the command wrote its
# own. Exit 77 means skipped; the last line of output is the reason.
name=$1
shift
[ -n "$TILEWISE_TEST_LOG" ] || exec "$@"
own=$(mktemp)
output=$(mktemp)
TILEWISE_TEST_LOG=$own "$@" >"$output" 2>&1
status=$?
cat "$output"
if [ $status -eq 77 ]; then
  [ -s "$own" ] || echo "SKIP $name: $(tail -n 1 "$output")" >"$own"
elif [ $status -ne 0 ]; then # a crash leaves no FAIL line of its own
  grep -q '^FAIL' "$own" || echo "FAIL $name (exit status $status)" >>"$own"
else
  [ -s "$own" ] || echo "PASS $name" >"$own"
fi
cat "$own" >>"$TILEWISE_TEST_LOG"
rm -f "$own" "$output"
exit $status
