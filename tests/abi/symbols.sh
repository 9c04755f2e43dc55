#!/bin/sh
# symbols.sh LIBRARY: the shared library exports tw_* alone, and nothing of its own aborts, exits or prints.
library=$1
status=0
exports=$(nm -D --defined-only "$library" | awk '{print $3}' | grep -v '^tw_')
if [ -n "$exports" ]; then
  echo "exported besides tw_*:"
  echo "$exports"
  status=1
fi
banned='^(abort|exit|_exit|_Exit|quick_exit|raise|__assert_fail|printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|stdout|stderr|__printf_chk|__fprintf_chk|_ZSt4cout|_ZSt4cerr|_ZSt4clog)(@|$)'
used=$(nm -D --undefined-only "$library" | awk '{print $2}' | grep -E "$banned")
if [ -n "$used" ]; then
  echo "a library that never aborts, exits or prints uses:"
  echo "$used"
  status=1
fi
exit $status
