# Counts test cases in ctest's LastTest.log: what gtest, pytest or a plain "N passed, N failed, N skipped" says of a
# test program, else the program itself. A program that fails without naming a failed case counts as one failure.
# Prints each failed and skipped case, then the closing line; exits 1 when anything failed or nothing ran.

/^[0-9]+\/[0-9]+ Testing: / { name = $0; sub(/^[^:]*: /, "", name); p = f = s = 0; reason = ""; open = 1 }
open && /^\[  PASSED  \] [0-9]+ tests?\.$/ { p = $4; counted = 1 }
open && /^\[  SKIPPED \] [0-9]+ tests?, listed below:$/ { s = $4; counted = 1 }
open && /^\[  FAILED  \] [0-9]+ tests?, listed below:$/ { f = $4; counted = 1 }
open && /^\[  SKIPPED \] [^ ]+ \([0-9]+ ms\)$/ { skips[++skip_count] = $4 (reason ? ": " reason : ""); reason = "" }
open && /^\[  FAILED  \] [^ ]+$/ { failures[++failure_count] = name ": " $4; named[name] = 1 }
open && /: Skipped$/ { reason_next = 1; next }
reason_next { reason = $0; reason_next = 0 }
open && /^SKIPPED \[[0-9]+\]/ { skips[++skip_count] = name ": " $0 }
open && /^FAILED / { failures[++failure_count] = name ": " $2; named[name] = 1 }
open && /^(=+ )?([0-9]+ (passed|failed|skipped|errors?|xfailed|deselected|warnings?)(, )?)+( in .*)?$/ {
  line = $0
  p = take(line, "passed"); f = take(line, "failed") + take(line, "errors?"); s = take(line, "skipped")
  counted = 1
}
open && /^Test (Passed|Failed|Not Run|Timeout|Skipped|Pass Reason|Fail Reason)/ { status = $0 }
open && /^".*" end time: / {
  bad = status !~ /Passed|Skipped/
  if (!counted) { if (bad) f = 1; else if (status ~ /Skipped/) s = 1; else p = 1 }
  if (bad && !f) f = 1
  if (bad && !(name in named)) { named[name] = 1; failures[++failure_count] = name ": " status }
  passed += p; failed += f; skipped += s
  open = counted = 0
}

function take(text, word) { return match(text, "[0-9]+ " word) ? substr(text, RSTART, RLENGTH) + 0 : 0 }

END {
  for (i = 1; i <= skip_count; ++i) print "skipped: " skips[i]
  for (i = 1; i <= failure_count; ++i) print "failed: " failures[i]
  printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
  exit failed > 0 || passed == 0
}
