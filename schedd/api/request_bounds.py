"""Bounds of every field of every user call, over gRPC and REST alike.

A call can handle any value within these bounds. Where a call has a stricter rule of its own (the
spelling of a name, at most 1,000 runs), the bound here is wider.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final

from google.protobuf.message import Message

from schedd.api.errors import FieldViolation, refuse
from schedd.api.field_bounds import MISSING
from schedkit.bounds import DEFINITIONS, Bounds
from schedkit.bounds.rules import (
    ASKED_ID,
    CHOICE,
    COUNT64,
    FLAG,
    INT32,
    INT64,
    ITEM,
    NAME,
    NOTE,
    PART,
    SPAN,
    TIME,
    WORDS,
    Many,
    Number,
    Real,
    Rule,
    Text,
)

LONGEST_KEY: Final = 255
"""Characters of an idempotency key, which is indexed."""
_SIGNED: Final = Number(-INT32 - 1, INT32)
"""A number with a stricter rule in its call."""
_MANY_IDS: Final = Many(ASKED_ID, 20_000)

_FIELDS: Final[Mapping[str, Rule]] = {
    "action": NAME,
    "after": TIME,
    "all": FLAG,
    "at": TIME,
    "at_most": Number(0, INT64),
    "backfill_id": ASKED_ID,
    "calendar": NAME,
    "catch_up": FLAG,
    "catch_up_nothing": FLAG,
    "catch_up_since": TIME,
    "count": _SIGNED,
    "delay": SPAN,
    "dry_run": FLAG,
    "etag": NAME,
    "excluded": FLAG,
    "expression": WORDS,
    "filter": Text(65_536),
    "fingerprint": NAME,
    "follow": FLAG,
    "from": TIME,
    "group": PART,
    "idempotency_key": Text(LONGEST_KEY),
    "job": NAME,
    "lifetime": SPAN,
    "max_parallel": _SIGNED,
    "member": NAME,
    "name": NAME,
    "namespace": NAME,
    "namespaces": Many(NAME, 1_000),
    "note": NOTE,
    "object": NAME,
    "overlap": CHOICE,
    "page_size": _SIGNED,
    "page_token": Text(4_096),
    "parent_run_id": ASKED_ID,
    "payload": PART,
    "pool": NAME,
    "priority": CHOICE,
    "rate": Real(-1e9, 1e9),
    "reason": NOTE,
    "redrive_id": ASKED_ID,
    "request_id": NAME,
    "rerun": CHOICE,
    "resume_after": Text(4_096),
    "role": CHOICE,
    "run_id": ASKED_ID,
    "run_ids": _MANY_IDS,
    "scheduled_after": TIME,
    "scheduled_before": TIME,
    "resolved": FLAG,
    "spec": PART,
    "states": Many(CHOICE, 100),
    "submitted": FLAG,
    "time_zone": NAME,
    "to": TIME,
    "token_id": ASKED_ID,
    "trigger": CHOICE,
    "until": TIME,
    "validate_only": FLAG,
    "version": _SIGNED,
    "worker": NAME,
}
"""Fields that mean the same in every request."""

_PAGED: Final = "page_size page_token"
_REQUESTS: Final[Mapping[str, str]] = {
    "CreateJobRequest": "idempotency_key validate_only request_id",
    "BatchCreateJobsRequest": "",
    "GetJobRequest": "namespace job",
    "ListJobsRequest": f"namespace {_PAGED} filter",
    "UpdateJobRequest": "etag validate_only request_id",
    "DeleteJobRequest": "namespace job etag request_id note",
    "PauseJobRequest": "namespace job note until request_id etag",
    "ResumeJobRequest": "namespace job request_id",
    "TriggerJobRequest": (
        "namespace job payload idempotency_key overlap priority delay request_id"
    ),
    "BackfillJobRequest": (
        "namespace job from to dry_run overlap max_parallel request_id idempotency_key priority"
        " rerun"
    ),
    "GetBackfillRequest": "backfill_id",
    "ListBackfillsRequest": f"namespace job {_PAGED}",
    "CancelBackfillRequest": "backfill_id request_id",
    "ListNextInstantsRequest": "namespace job after count excluded",
    "ExplainInstantRequest": "namespace job at",
    "ExplainCronRequest": "namespace expression time_zone job after count",
    "WatchBackfillRequest": "backfill_id",
    "SubmitRunRequest": "namespace name spec delay idempotency_key request_id",
    "BatchSubmitRunsRequest": "",
    "GetRunRequest": "run_id",
    "ListRunsRequest": (
        f"namespace job states {_PAGED} scheduled_after scheduled_before worker trigger"
        " backfill_id parent_run_id"
    ),
    "WatchRunsRequest": "run_ids namespace job resume_after",
    "CancelRunRequest": "run_id reason request_id",
    "RetryRunRequest": "run_id payload request_id",
    "ListAttemptsRequest": "run_id",
    "GetRunResultRequest": "run_id",
    "ReadResultRequest": "run_id",
    "ReadLogsRequest": "run_id follow resume_after",
    "ExplainRunRequest": "run_id",
    "ListDeadLettersRequest": f"namespace job {_PAGED} fingerprint resolved redrive_id",
    "GetDeadLetterRequest": "run_id",
    "ListDeadLetterGroupsRequest": "namespace job",
    "DiscardDeadLettersRequest": (
        "namespace run_ids job fingerprint all note request_id group until at_most"
    ),
    "ChosenGroup": "job fingerprint submitted",
    "RedriveDeadLettersRequest": (
        "namespace job fingerprint all rate payload dry_run idempotency_key request_id note group"
        " until at_most"
    ),
    "GetRedriveRequest": "redrive_id",
    "ListRedrivesRequest": f"namespace {_PAGED}",
    "StopRedriveRequest": "redrive_id request_id",
    "ResumeRedriveRequest": "redrive_id request_id",
    "WatchRedriveRequest": "redrive_id",
    "GetClusterRequest": "",
    "ListMembersRequest": "",
    "ListShardsRequest": "",
    "TransferLeaderRequest": "member reason request_id",
    "RebalanceClusterRequest": "dry_run request_id",
    "PauseClusterRequest": "note request_id",
    "ResumeClusterRequest": "catch_up request_id catch_up_since catch_up_nothing",
    "CheckClusterRequest": "",
    "ListWorkersRequest": _PAGED,
    "GetWorkerRequest": "worker",
    "DrainWorkerRequest": "worker reason request_id",
    "UndrainWorkerRequest": "worker reason request_id",
    "ListAuditRequest": f"{_PAGED} action object run_id",
    "WatchWorkerRequest": "worker",
    "ApplyCalendarRequest": "validate_only request_id",
    "GetCalendarRequest": "namespace calendar version",
    "ListCalendarsRequest": f"namespace {_PAGED}",
    "DeleteCalendarRequest": "namespace calendar request_id",
    "SetPoolRequest": "validate_only request_id",
    "GetPoolRequest": "namespace pool",
    "ListPoolsRequest": f"namespace {_PAGED}",
    "DeletePoolRequest": "namespace pool request_id",
    "PausePoolRequest": "namespace pool note request_id",
    "ResumePoolRequest": "namespace pool request_id",
    "CreateTokenRequest": "name role namespaces lifetime request_id",
    "ListTokensRequest": _PAGED,
    "RevokeTokenRequest": "token_id request_id",
    "GetIdentityRequest": "",
}
"""The fields of each request that have the rule of their name."""

_OWN: Final[Mapping[str, Mapping[str, Rule]]] = {
    "CreateJobRequest": {"job": PART},
    "UpdateJobRequest": {"job": PART, "update_mask": PART},
    # Requests of a batch are checked separately: each has an answer of its own.
    "BatchCreateJobsRequest": {"requests": Many(ITEM, 10_000)},
    "BatchSubmitRunsRequest": {"requests": Many(ITEM, 10_000)},
    "ReadLogsRequest": {"fencing_token": COUNT64},
    "ApplyCalendarRequest": {"calendar": PART},
    "SetPoolRequest": {"pool": PART},
}
"""Fields with another meaning in this request, and fields of this request only."""

REQUEST: Final = Bounds(
    {
        **DEFINITIONS,
        **{
            f"schedd.v1.{name}": {
                **{field: _FIELDS[field] for field in fields.split()},
                **_OWN.get(name, {}),
            }
            for name, fields in _REQUESTS.items()
        },
        "google.protobuf.FieldMask": {"paths": Many(NAME, 1_000)},
    }
)
"""Checks user calls."""


# Reject requests with a field out of its bounds (`request_bounds`).
#
# After this check every enum value is known, every time and duration can be computed with, and
# texts, lists and maps have a size that a call can handle.

MOST_VIOLATIONS: Final = 20
"""Violations that an error reports."""


def check_wellformed(request: Message) -> None:
    """Raise InvalidArgument with the first violations of the request's bounds."""
    found = (FieldViolation(_named(path), problem) for path, problem in REQUEST.violations(request))
    refuse([*islice(chain(_missing(request), found), MOST_VIOLATIONS)], "INVALID_FIELD")


def _missing(request: Message) -> Iterator[FieldViolation]:
    given = {field.full_name for field, _ in request.ListFields()}
    for field in request.DESCRIPTOR.fields:
        if field.full_name in MISSING and field.full_name not in given:
            yield FieldViolation(field.name, MISSING[field.full_name])


def _named(path: str) -> str:
    """Name a field of a job as `validation` does, wherever the job is in the request."""
    return path.removeprefix("job.").removeprefix("spec.")
