# A probe job. Its first act and its last is one line of JSON to the file of its worker, by one write
# of bash itself: no other process stands between a start and its record.
# PROBES: the folder. LASTS: seconds to sleep. FAILS_FIRST: each tenth second's first try fails.

say() {
  local fields='"event":"%s","run":"%s","job":"%s","nominal":"%s","at":%s,"token":%s'
  fields+=',"attempt":%s,"worker":"%s","pid":%s,"exit":%s'
  printf "{$fields}\n" "$1" "$SCHEDD_RUN_ID" "$SCHEDD_JOB" "$SCHEDD_SCHEDULED_AT" \
    "$EPOCHREALTIME" "$SCHEDD_FENCING_TOKEN" "$SCHEDD_ATTEMPT" "$SCHEDD_WORKER" $$ "$2" \
    >>"$PROBES/$SCHEDD_WORKER.jsonl"
}

say start null
[ "$LASTS" = 0 ] || sleep "$LASTS"
if [ -n "$FAILS_FIRST" ] && [ "$SCHEDD_ATTEMPT" = 1 ] && [ "${SCHEDD_SCHEDULED_AT:18:1}" = 4 ]; then
  say end 3
  exit 3
fi
say end 0
