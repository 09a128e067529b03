"""Bounds of every message, for `Bounds`: of definitions, of the worker's stream, between members.

The call that receives a definition checks more (`schedd.api.definitions.validation`). Within these
bounds that check, and every loop, can compute.

Items of a frame (`ITEM`) are checked separately where they are handled. An invalid item is set
aside; the other items of its frame are handled.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from schedkit.bounds.rules import (
    CHOICE,
    COUNT,
    COUNT64,
    ID,
    ID_BYTES,
    INT32,
    INT64,
    ITEM,
    LENGTH,
    MICROSECONDS,
    NAME,
    NOTE,
    OPEN,
    PART,
    SAID,
    SERIAL,
    SLOTS,
    SPAN,
    TIME,
    TOKEN,
    UINT32,
    UINT64,
    WORD,
    WORDS,
    Informative,
    Many,
    Needed,
    Number,
    NumberColumn,
    Octets,
    Pairs,
    Rule,
    Table,
    Text,
)

MOST_ITEMS: Final = 5_000
"""Items of one kind in a frame. Our own processes send at most 500."""
MOST_BATCHES: Final = 50
"""Batches of results or acknowledgements in a frame."""
MOST_RUN_BATCHES: Final = 500
"""Batches of assignments in a frame: our own members send as many if no two runs are alike."""
MOST_IN_BATCH: Final = 2_000
"""Runs in a batch. A higher value must be negotiated at the start of a stream: older members leave
larger batches unanswered, so the worker keeps and resends the results of such a batch.
"""
MOST_HELD: Final = 50_000
"""Runs that a worker holds. Our own workers hold at most 21,500."""
MOST_BLOCKING: Final = 8
"""Maximum event loops for handlers in a worker."""
WORKER: Final = Text(
    255, re.compile(r"[^/\s\x00-\x1f]{1,255}"), "the name of a worker: it is part of a key"
)
_COUNTED: Final = Number(0, 1_000_000_000)
"""A count that a row of the database holds."""
_SIGNED: Final = Number(-INT32 - 1, INT32)
_LONG: Final = Text(65_536)
_TEXTS: Final = Many(WORDS, 10_000)
_PAIRS: Final = Pairs(WORDS, WORDS, 10_000)
_NAMES: Final = Many(NAME, 1_000)
_CRON: Final = Many(WORDS, 1_000)
_KEY, _START = 24, 32
"""Bytes of an entry of `Held`."""
_ANY_REAL: Final = 1e300
_RUN_IDS: Final = Octets(16 * MOST_IN_BATCH)
_TOKENS: Final = NumberColumn(TOKEN, MOST_IN_BATCH)
_TIMES: Final = NumberColumn(Number(*MICROSECONDS), MOST_IN_BATCH)


def _table(messages: Mapping[str, Sequence[tuple[Rule, str]]]) -> Table:
    """Return the table of messages by their short names: each rule with the fields that have it."""
    return {
        f"schedd.v1.{name}": {field: rule for rule, fields in rows for field in fields.split()}
        for name, rows in messages.items()
    }


DEFINITIONS: Final = _table(
    {
        "Job": [
            (
                NAME,
                "job_id namespace name etag local_at anchor time_zone pool paused_by created_by",
            ),
            (COUNT64, "generation runs_created"),
            (Pairs(NAME, WORDS, 1_000), "labels"),
            (_CRON, "cron"),
            (SPAN, "every phase jitter timeout start_deadline run_timeout heartbeat_timeout"),
            (SPAN, "kill_after retention"),
            (_COUNTED, "max_runs pause_after_failures"),
            (COUNT, "overlap_limit definition_version"),
            (Pairs(NAME, COUNT, 1_000), "calendar_versions"),
            (Number(0, 1_000), "slots"),
            (Many(PART, 1_000), "require prefer"),
            (NOTE, "pause_note"),
            (Many(WORDS, 10), "warnings"),
        ],
        "Exclude": [(_NAMES, "calendars"), (_CRON, "cron")],
        "CatchUp": [(SPAN, "window")],
        "LabelMatch": [(NAME, "key"), (_CRON, "any_of")],
        "RetryPolicy": [
            (COUNT, "max_attempts"),
            (SPAN, "backoff max"),
            (Number(1.0, 100.0), "factor"),
            (Number(0.0, 1.0), "jitter"),
            (_NAMES, "retry_on fail_on"),
        ],
        "After": [(_NAMES, "jobs")],
        "Notification": [
            (_LONG, "webhook"),
            (_TEXTS, "command"),
            (_NAMES, "email"),
            (_COUNTED, "threshold"),
            (SPAN, "min_interval after"),
        ],
        "ShellAction": [
            (_TEXTS, "argv interpreter"),
            (WORDS, "script stdin_text"),
            (NAME, "user"),
            (_LONG, "cwd"),
            (_PAIRS, "env"),
            (Many(_LONG, 1_000), "env_from"),
            (Many(_SIGNED, 1_000), "success_codes"),
            (Number(0, UINT32), "umask"),
        ],
        "ShellAction.Limits": [
            (Number(0, UINT64), "memory_bytes"),
            (Number(0, UINT32), "processes files"),
        ],
        "HttpAction": [
            (NAME, "method"),
            (_LONG, "url success_pattern signing_key"),
            (_PAIRS, "headers"),
            (WORDS, "body"),
            (Many(_SIGNED, 1_000), "success_statuses"),
        ],
        "GrpcAction": [(_LONG, "endpoint method"), (_PAIRS, "metadata")],
        "PythonAction": [(WORDS, "handler"), (Many(_LONG, 1_000), "env_from")],
        "PluginAction": [(NAME, "executor")],
        "Payload": [(Text(4 * 1024 * 1024), "json"), (Octets(4 * 1024 * 1024), "raw")],
        "Calendar": [
            (NAME, "namespace name time_zone updated_by"),
            (COUNT, "version jobs jobs_behind"),
            (Many(NAME, 20_000), "dates"),
            (_NAMES, "weekdays"),
            (Many(PART, 10_000), "ranges"),
            (_CRON, "cron"),
        ],
        "DateRange": [(NAME, "from to")],
        "Pool": [
            (NAME, "namespace name paused_by updated_by"),
            (_COUNTED, "limit"),
            (COUNT, "version jobs running waiting recent"),
            (NOTE, "pause_note"),
        ],
        "Rate": [(Number(0, INT32), "count"), (LENGTH, "per")],
    }
)
"""Messages of `job.proto`, their parts from `common.proto`, calendars and pools."""

FRAMES: Final = _table(
    {
        "WorkerFrame": [
            (Many(ITEM, MOST_ITEMS), "results refusals log_chunks revoke_answers progress"),
            (Many(ITEM, MOST_BATCHES), "result_batches"),
        ],
        "MemberFrame": [
            (Many(ITEM, MOST_ITEMS), "assignments acknowledgements cancels revokes follows"),
            (Many(ITEM, MOST_RUN_BATCHES), "run_batches"),
            (Many(ITEM, MOST_BATCHES), "ack_batches"),
        ],
        "AssignmentKey": [(Needed(ID), "run_id"), (TOKEN, "fencing_token")],
        # -- up --
        "Hello": [
            (Needed(WORKER), "worker"),
            (Needed(ID), "incarnation"),
            (Needed(WORD), "spool_id"),
            (Informative(WORD), "version host"),
            (SLOTS, "slots"),
            (Pairs(Text(255), Text(1_024), 1_000), "labels"),
            (Many(Text(1_024), 10_000), "handlers"),
            (Many(WORD, 1_000), "actions"),
            (Many(PART, MOST_HELD), "spooled running"),
        ],
        "Heartbeat": [
            (SERIAL, "sequence"),
            (Informative(COUNT64), "worker_time_ns spool_bytes disk_free_bytes"),
            (SLOTS, "free"),
            (Many(PART, MOST_HELD), "holdings"),
            (LENGTH, "since_refresh"),
            (Informative(SAID), "refusal_reason"),
            (Informative(Many(PART, MOST_BLOCKING)), "blocking"),
        ],
        "Blocking": [
            (Needed(PART), "key"),
            (WORD, "handler"),
            (LENGTH, "blocked_for"),
            (SAID, "place"),
            (COUNT, "waiting"),
        ],
        "Held": [
            (Octets(MOST_HELD * _KEY), "waiting spooled"),
            (Octets(MOST_HELD * _START), "running"),
        ],
        "Holding": [(Needed(PART), "key")],
        "Result": [
            (Needed(PART), "key"),
            (Informative(WORD), "worker"),
            (Needed(ID), "incarnation"),
            (Octets(64), "digest"),
            (Needed(CHOICE), "outcome"),
            (OPEN, "reason"),
            (Informative(SAID), "error"),
            (Informative(_SIGNED), "exit_code"),
            (Informative(TIME), "started_at finished_at"),
            (Informative(Many(PART, 1_000)), "output"),
            (Informative(LENGTH), "retry_after"),
            (Informative(PART), "log"),
        ],
        "ResultBatch": [
            (Needed(ID), "incarnation"),
            (_RUN_IDS, "run_ids"),
            (_TOKENS, "fencing_tokens"),
            (_TIMES, "scheduled_at started_at finished_at"),
        ],
        "Refusal": [
            (Needed(PART), "key"),
            (OPEN, "why"),
            (TOKEN, "greatest_token_seen"),
            (Informative(SAID), "detail"),
        ],
        "LogChunk": [(Needed(PART), "key")],
        "LogPiece": [
            (Octets(1024 * 1024), "data"),
            (COUNT64, "offset omitted"),
            (TOKEN, "fencing_token"),
            (SAID, "note"),
            (Text(1_000), "cursor"),
        ],
        "Granted": [(SLOTS, "slots"), (Number(0, 1 << 53), "received"), (SERIAL, "serial")],
        "RevokeAnswer": [(Needed(PART), "key")],
        "Progress": [
            (Needed(PART), "key"),
            (Number(0.0, 1.0), "fraction"),
            (Text(4_096), "note"),
            (Number(-_ANY_REAL, _ANY_REAL), "done total"),
        ],
        # -- down --
        "Welcome": [
            (WORD, "member tenure cluster_id version"),
            (LENGTH, "worker_ttl heartbeat_interval"),
            (Needed(TIME), "cluster_time"),
        ],
        "Members": [(Many(PART, 1_000), "endpoints"), (COUNT64, "revision")],
        "Members.Endpoint": [(WORD, "name"), (Text(1_024), "grpc")],
        "HeartbeatAnswer": [(SERIAL, "sequence"), (Needed(TIME), "cluster_time")],
        "Assignment": [  # `key` isn't set in a batch; the worker checks it elsewhere
            (WORD, "incarnation namespace job traceparent"),
            (COUNT64, "generation"),
            (COUNT, "attempt"),
            (Needed(TIME), "start_by"),
            (SLOTS, "slots"),
            (LENGTH, "timeout kill_after heartbeat_timeout"),
            (OPEN, "on_lease_lost"),
        ],
        "RunBatch": [
            (Needed(PART), "common"),
            (_RUN_IDS, "run_ids"),
            (_TOKENS, "fencing_tokens"),
            (_TIMES, "scheduled_at"),
            (Many(WORD, MOST_IN_BATCH), "jobs"),
            (Many(PART, MOST_IN_BATCH), "payloads"),
        ],
        # The key is returned as the worker sent it, and is only looked up.
        "Acknowledgement": [(Needed(ITEM), "key")],
        "AckBatch": [(_RUN_IDS, "run_ids"), (_TOKENS, "fencing_tokens")],
        "Cancel": [(Needed(PART), "key")],
        "Revoke": [(Needed(PART), "key")],
        "Reach": [(SERIAL, "serial"), (Number(0, 1 << 53), "slots")],
        "Follow": [(Needed(PART), "key")],
        "Demand": [(Many(PART, 10_000), "heads")],
        "Demand.Head": [(COUNT, "slots least")],
        # -- between members --
        "WakeUpRequest": [
            (Many(ID, 10_000), "job_ids run_ids"),
            (Many(Number(0, 255), 256), "shards"),
        ],
        "RelayRequest": [(WORD, "worker"), (Needed(ID), "incarnation")],
        "RelayResponse": [(Many(PART, MOST_ITEMS), "revoke_answers")],
        "ChangesRequest": [(Many(ID_BYTES, 100_000), "jobs")],
        "ChangesResponse": [
            (Many(ID_BYTES, 100_000), "runs"),
            (Number(0, UINT32), "max_interval_ms"),
        ],
        "ExamineResponse": [
            (WORD, "name version tzdata"),
            (Number(0.0, 1e9), "seconds_since_database"),
            (Many(PART, 10), "failures"),
        ],
        "ExamineResponse.Failure": [(WORD, "dependency reason"), (SAID, "cause remedy")],
        "RefusalsRequest": [(Needed(ID), "job_id"), (COUNT64, "generation")],
        "RefusalsResponse": [(Many(PART, 100_000), "refused")],
        "RefusalsResponse.Refused": [(Needed(ID), "incarnation"), (SAID, "why")],
        "WorkersRequest": [(Many(ID_BYTES, 10_000), "incarnations")],
        "WorkersResponse": [(Many(PART, 10_000), "received")],
        "WorkersResponse.Received": [
            (Needed(ID_BYTES), "incarnation"),
            (COUNT, "free running unstored_results"),
            (Number(0.0, 1e9), "lease_age seconds_since_heartbeat"),
            (Informative(COUNT64), "spool_bytes disk_free_bytes"),
            (Informative(SAID), "refusal_reason"),
        ],
        "StoredObject": [
            (Number(0, INT64), "size"),
            (Octets(32), "sha256"),
            (TOKEN, "fencing_token"),
            (SAID, "problem"),
            (COUNT64, "omitted"),
        ],
    }
)
"""Messages of `worker_service.proto` and `peer_service.proto`, and their parts from `run.proto`."""
