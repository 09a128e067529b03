"""Bounds of the worker's stream and of calls between members.

Items of a frame (`ITEM`) are checked separately where they are handled. An invalid item is set
aside; the other items of its frame are handled.
"""

import re
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
    OPEN,
    PART,
    SAID,
    SERIAL,
    SLOTS,
    TIME,
    TOKEN,
    UINT32,
    WORD,
    Informative,
    Many,
    Needed,
    Number,
    NumberColumn,
    Octets,
    Pairs,
    Real,
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
_KEY, _START = 24, 32
"""Bytes of an entry of `Held`."""
_ANY_REAL: Final = 1e300
_RUN_IDS: Final = Octets(16 * MOST_IN_BATCH)
_TOKENS: Final = NumberColumn(TOKEN.low, TOKEN.high, MOST_IN_BATCH)
_TIMES: Final = NumberColumn(*MICROSECONDS, MOST_IN_BATCH)

FRAMES: Final[Table] = {
    "schedd.v1.WorkerFrame": {
        "results": Many(ITEM, MOST_ITEMS),
        "refusals": Many(ITEM, MOST_ITEMS),
        "log_chunks": Many(ITEM, MOST_ITEMS),
        "revoke_answers": Many(ITEM, MOST_ITEMS),
        "progress": Many(ITEM, MOST_ITEMS),
        "result_batches": Many(ITEM, MOST_BATCHES),
    },
    "schedd.v1.MemberFrame": {
        "assignments": Many(ITEM, MOST_ITEMS),
        "acknowledgements": Many(ITEM, MOST_ITEMS),
        "cancels": Many(ITEM, MOST_ITEMS),
        "revokes": Many(ITEM, MOST_ITEMS),
        "follows": Many(ITEM, MOST_ITEMS),
        "run_batches": Many(ITEM, MOST_RUN_BATCHES),
        "ack_batches": Many(ITEM, MOST_BATCHES),
    },
    "schedd.v1.AssignmentKey": {
        "run_id": Needed(ID),
        "fencing_token": TOKEN,
    },
    # -- up --
    "schedd.v1.Hello": {
        "worker": Needed(WORKER),
        "incarnation": Needed(ID),
        "spool_id": Needed(WORD),
        "version": Informative(WORD),
        "host": Informative(WORD),
        "slots": SLOTS,
        "labels": Pairs(Text(255), Text(1_024), 1_000),
        "handlers": Many(Text(1_024), 10_000),
        "actions": Many(WORD, 1_000),
        "spooled": Many(PART, MOST_HELD),
        "running": Many(PART, MOST_HELD),
    },
    "schedd.v1.Heartbeat": {
        "sequence": SERIAL,
        "worker_time_ns": Informative(COUNT64),
        "free": SLOTS,
        "holdings": Many(PART, MOST_HELD),
        "since_refresh": LENGTH,
        "spool_bytes": Informative(COUNT64),
        "disk_free_bytes": Informative(COUNT64),
        "refusal_reason": Informative(SAID),
        "blocking": Informative(Many(PART, MOST_BLOCKING)),
    },
    "schedd.v1.Blocking": {
        "key": Needed(PART),
        "handler": WORD,
        "blocked_for": LENGTH,
        "place": SAID,
        "waiting": COUNT,
    },
    "schedd.v1.Held": {
        "waiting": Octets(MOST_HELD * _KEY),
        "running": Octets(MOST_HELD * _START),
        "spooled": Octets(MOST_HELD * _KEY),
    },
    "schedd.v1.Holding": {"key": Needed(PART)},
    "schedd.v1.Result": {
        "key": Needed(PART),
        "worker": Informative(WORD),
        "incarnation": Needed(ID),
        "digest": Octets(64),
        "outcome": Needed(CHOICE),
        "reason": OPEN,
        "error": Informative(SAID),
        "exit_code": Informative(Number(-INT32 - 1, INT32)),
        "started_at": Informative(TIME),
        "finished_at": Informative(TIME),
        "output": Informative(Many(PART, 1_000)),
        "retry_after": Informative(LENGTH),
        "log": Informative(PART),
    },
    "schedd.v1.ResultBatch": {
        "incarnation": Needed(ID),
        "run_ids": _RUN_IDS,
        "fencing_tokens": _TOKENS,
        "scheduled_at": _TIMES,
        "started_at": _TIMES,
        "finished_at": _TIMES,
    },
    "schedd.v1.Refusal": {
        "key": Needed(PART),
        "why": OPEN,
        "greatest_token_seen": TOKEN,
        "detail": Informative(SAID),
    },
    "schedd.v1.LogChunk": {"key": Needed(PART)},
    "schedd.v1.LogPiece": {
        "data": Octets(1024 * 1024),
        "offset": COUNT64,
        "omitted": COUNT64,
        "fencing_token": TOKEN,
        "note": SAID,
        "cursor": Text(1_000),
    },
    "schedd.v1.Granted": {
        "slots": SLOTS,
        "received": Number(0, 1 << 53),
        "serial": SERIAL,
    },
    "schedd.v1.RevokeAnswer": {"key": Needed(PART)},
    "schedd.v1.Progress": {
        "key": Needed(PART),
        "fraction": Real(0.0, 1.0),
        "note": Text(4_096),
        "done": Real(-_ANY_REAL, _ANY_REAL),
        "total": Real(-_ANY_REAL, _ANY_REAL),
    },
    # -- down --
    "schedd.v1.Welcome": {
        "member": WORD,
        "tenure": WORD,
        "cluster_id": WORD,
        "worker_ttl": LENGTH,
        "heartbeat_interval": LENGTH,
        "version": WORD,
        "cluster_time": Needed(TIME),
    },
    "schedd.v1.Members": {"endpoints": Many(PART, 1_000), "revision": COUNT64},
    "schedd.v1.Members.Endpoint": {"name": WORD, "grpc": Text(1_024)},
    "schedd.v1.HeartbeatAnswer": {
        "sequence": SERIAL,
        "cluster_time": Needed(TIME),
    },
    "schedd.v1.Assignment": {
        # `key` isn't set in a batch; the worker checks it elsewhere.
        "incarnation": WORD,  # compared with the worker's own
        "namespace": WORD,
        "job": WORD,
        "generation": COUNT64,
        "attempt": COUNT,
        "start_by": Needed(TIME),
        "slots": SLOTS,
        "timeout": LENGTH,
        "kill_after": LENGTH,
        "heartbeat_timeout": LENGTH,
        "on_lease_lost": OPEN,
        "traceparent": WORD,
    },
    "schedd.v1.RunBatch": {
        "common": Needed(PART),
        "run_ids": _RUN_IDS,
        "fencing_tokens": _TOKENS,
        "scheduled_at": _TIMES,
        "jobs": Many(WORD, MOST_IN_BATCH),
        "payloads": Many(PART, MOST_IN_BATCH),
    },
    # The key is returned as the worker sent it, and is only looked up.
    "schedd.v1.Acknowledgement": {"key": Needed(ITEM)},
    "schedd.v1.AckBatch": {"run_ids": _RUN_IDS, "fencing_tokens": _TOKENS},
    "schedd.v1.Cancel": {"key": Needed(PART)},
    "schedd.v1.Revoke": {"key": Needed(PART)},
    "schedd.v1.Reach": {"serial": SERIAL, "slots": Number(0, 1 << 53)},
    "schedd.v1.Follow": {"key": Needed(PART)},
    "schedd.v1.Demand": {"heads": Many(PART, 10_000)},
    "schedd.v1.Demand.Head": {
        "slots": COUNT,
        "least": COUNT,
    },
    # -- between members --
    "schedd.v1.WakeUpRequest": {
        "job_ids": Many(ID, 10_000),
        "shards": Many(Number(0, 255), 256),
        "run_ids": Many(ID, 10_000),
    },
    "schedd.v1.RelayRequest": {"worker": WORD, "incarnation": Needed(ID)},
    "schedd.v1.RelayResponse": {
        "revoke_answers": Many(PART, MOST_ITEMS),
    },
    "schedd.v1.ChangesRequest": {"jobs": Many(ID_BYTES, 100_000)},
    "schedd.v1.ChangesResponse": {
        "runs": Many(ID_BYTES, 100_000),
        "max_interval_ms": Number(0, UINT32),
    },
    "schedd.v1.ExamineResponse": {
        "name": WORD,
        "version": WORD,
        "tzdata": WORD,
        "seconds_since_database": Real(0.0, 1e9),
        "failures": Many(PART, 10),
    },
    "schedd.v1.ExamineResponse.Failure": {
        "dependency": WORD,
        "reason": WORD,
        "cause": SAID,
        "remedy": SAID,
    },
    "schedd.v1.RefusalsRequest": {"job_id": Needed(ID), "generation": COUNT64},
    "schedd.v1.RefusalsResponse": {"refused": Many(PART, 100_000)},
    "schedd.v1.RefusalsResponse.Refused": {"incarnation": Needed(ID), "why": SAID},
    "schedd.v1.WorkersRequest": {"incarnations": Many(ID_BYTES, 10_000)},
    "schedd.v1.WorkersResponse": {"received": Many(PART, 10_000)},
    "schedd.v1.WorkersResponse.Received": {
        "incarnation": Needed(ID_BYTES),
        "free": COUNT,
        "running": COUNT,
        "unstored_results": COUNT,
        "lease_age": Real(0.0, 1e9),
        "seconds_since_heartbeat": Real(0.0, 1e9),
        "spool_bytes": Informative(COUNT64),
        "disk_free_bytes": Informative(COUNT64),
        "refusal_reason": Informative(SAID),
    },
    "schedd.v1.StoredObject": {
        "size": Number(0, INT64),
        "sha256": Octets(32),
        "fencing_token": TOKEN,
        "problem": SAID,
        "omitted": COUNT64,
    },
}
"""Messages of `worker_service.proto` and `peer_service.proto`, and their parts from `run.proto`."""
