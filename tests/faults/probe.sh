# Probe job: appends a line of JSON to its worker's file at its start and at its end. bash writes each line itself, with
# one write: no other process runs between a start and its record.
# PROBES: folder of the files. LASTS: seconds to sleep. FAILS_FIRST: if set, each tenth second's first attempt fails.

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
