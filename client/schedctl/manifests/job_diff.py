"""What an edit changes, shown field by field, with the next instant before and after."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from google.protobuf.message import Message

from schedclient import Job, Pool
from schedctl.options import notifications
from schedctl.output import instant
from schedctl.session import Session
from schedproto.v1 import job_pb2

SET_BY_CLUSTER: Final = frozenset(
    {
        "job_id",
        "generation",
        "etag",
        "paused_by",
        "next_run_at",
        "created_at",
        "updated_at",
        "warnings",
        "created_by",
        "cron_dialect",
        "calendar_versions",
    }
)
IN_TABLE: Final = frozenset(
    {"name", "cron", "every", "at", "on_demand", "time_zone", "priority", "pool", "labels"}
)


def between(session: Session, before: Job, after: Job) -> list[str]:
    """A line for each field that differs; none means there is no difference."""
    old, new = _flat(before), _flat(after)
    lines = [
        f"  {field}: {_told(old.get(field))} → {_told(new.get(field))}"
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field)
    ]
    if lines and before.next_run_at != after.next_run_at:
        told = [instant(session, one.next_run_at) or "never" for one in (before, after)]
        lines.append(f"  next run: {told[0]} → {told[1]}")
    return lines


def of_pool(before: Pool | None, after: Pool) -> list[str]:
    """The same for a pool, which may be one that isn't there yet."""
    told = [(before.limit, before.rate) if before else (0, None), (after.limit, after.rate)]
    return [
        f"  {field}: {old or 'none'} → {new or 'none'}"
        for field, old, new in zip(("limit", "rate"), *told, strict=True)
        if old != new
    ]


def _flat(job: Job) -> dict[str, Any]:
    """What a person set, each field by its path: `retry.backoff`."""
    flat: dict[str, Any] = {}

    def walk(value: Mapping[str, Any], path: str) -> None:
        for field, inner in value.items():
            if isinstance(inner, dict) and field != "payload":
                walk(inner, f"{path}{field}.")
            elif inner not in (None, [], 0, False):
                flat[path + field] = inner

    told = job.to_json(snake=True)
    walk({field: told[field] for field in told if field not in SET_BY_CLUSTER}, "")
    return flat


def merged(before: Job, spec: job_pb2.Job, named: Sequence[str]) -> job_pb2.Job:
    """The spec, with what is left of a nested field as it was where only a part was named.

    `--backoff 5s` changes the back-off and keeps max_attempts; `--env A=b` adds a variable.
    """
    full = job_pb2.Job()
    full.CopyFrom(spec)
    plain: Message = spec
    old = cast("job_pb2.Job", before.message)
    for field in ("retry", "catch_up", "dst", *notifications.FLAGS):
        if field in named and plain.HasField(field):
            _over(getattr(full, field), getattr(old, field), getattr(spec, field))
    if "shell" in named and old.HasField("shell"):
        full.shell.CopyFrom(old.shell)
        if spec.shell.argv:
            full.shell.ClearField("argv")
            full.shell.ClearField("script")
            full.shell.ClearField("interpreter")
        full.shell.MergeFrom(spec.shell)
    if "http" in named and old.HasField("http"):
        full.http.CopyFrom(old.http)
        full.http.MergeFrom(spec.http)
    if "grpc" in named and old.HasField("grpc"):
        full.grpc.CopyFrom(old.grpc)
        full.grpc.MergeFrom(spec.grpc)
    return full


def _over(full: Message, old: Message, given: Message) -> None:
    """`full` is the old one, with each field that is given instead of its own: zero, too."""
    full.CopyFrom(old)
    for field, _ in given.ListFields():
        full.ClearField(field.name)
    full.MergeFrom(given)


def remaining(told: Mapping[str, Any], action: str | None) -> list[tuple[str, Any]]:
    """What a table doesn't show of a job, as names and texts; empty ones left out."""
    fields = [
        (field, value)
        for field, value in told.items()
        if value not in (None, [], {}, 0, False)
        and field not in IN_TABLE | {"job_id", "generation", "next_run_at", action}
    ]
    if action:
        inner = {key: one for key, one in told[action].items() if one not in (None, [], {}, 0)}
        fields.insert(0, (action, inner))
    return [(field.replace("_", " ").capitalize(), _told(value)) for field, value in fields]


def _told(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
