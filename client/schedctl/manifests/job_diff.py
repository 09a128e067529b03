"""The changes of an edit, field by field, with the next scheduled time before and after."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from google.protobuf.message import Message

from schedclient import Job, Pool
from schedctl.options.job_options import NOTICES
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
        "definition_version",
        "calendar_versions",
    }
)
IN_TABLE: Final = frozenset(
    {"name", "cron", "every", "at", "on_demand", "time_zone", "priority", "pool", "labels"}
)


def between(session: Session, before: Job, after: Job) -> list[str]:
    """Return a line for each field that differs."""
    old, new = _flat(before), _flat(after)
    lines = [
        f"  {field}: {_text(old.get(field))} → {_text(new.get(field))}"
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field)
    ]
    if lines and before.next_run_at != after.next_run_at:
        old_time, new_time = (
            instant(session, one.next_run_at) or "never" for one in (before, after)
        )
        lines.append(f"  next run: {old_time} → {new_time}")
    return lines


def of_pool(before: Pool | None, after: Pool) -> list[str]:
    values = [(before.limit, before.rate) if before else (0, None), (after.limit, after.rate)]
    return [
        f"  {field}: {old or 'none'} → {new or 'none'}"
        for field, old, new in zip(("limit", "rate"), *values, strict=True)
        if old != new
    ]


def _flat(job: Job) -> dict[str, Any]:
    """Return the fields that a user can set, by their paths: `retry.backoff`."""
    flat: dict[str, Any] = {}

    def walk(value: Mapping[str, Any], path: str) -> None:
        for field, inner in value.items():
            if isinstance(inner, dict) and field != "payload":
                walk(inner, f"{path}{field}.")
            elif inner not in (None, [], 0, False):
                flat[path + field] = inner

    fields = job.to_json(snake=True)
    walk({field: fields[field] for field in fields if field not in SET_BY_CLUSTER}, "")
    return flat


def merged(before: Job, spec: job_pb2.Job, named: Sequence[str]) -> job_pb2.Job:
    """Return the spec with the unnamed parts of its nested fields as they were. `--backoff 5s`
    changes the backoff and keeps max_attempts; `--env A=b` adds a variable.
    """
    full = job_pb2.Job()
    full.CopyFrom(spec)
    plain: Message = spec
    old = cast("job_pb2.Job", before.message)
    for field in ("retry", "catch_up", "dst", *NOTICES):
        if field in named and plain.HasField(field):  # zero is a value of a given field
            part, given = getattr(full, field), getattr(spec, field)
            part.CopyFrom(getattr(old, field))
            for one, _ in given.ListFields():
                part.ClearField(one.name)
            part.MergeFrom(given)
    if "shell" in named and old.HasField("shell"):
        full.shell.CopyFrom(old.shell)
        if spec.shell.argv:
            full.shell.ClearField("argv")
            full.shell.ClearField("script")
            full.shell.ClearField("interpreter")
        full.shell.MergeFrom(spec.shell)
    for action in ("http", "grpc"):
        if action in named and cast("Message", old).HasField(action):
            getattr(full, action).CopyFrom(getattr(old, action))
            getattr(full, action).MergeFrom(getattr(spec, action))
    return full


def remaining(job: Mapping[str, Any], action: str | None) -> list[tuple[str, Any]]:
    """Return the fields that the table doesn't show, as names and texts, without empty ones."""
    fields = [
        (field, value)
        for field, value in job.items()
        if value not in (None, [], {}, 0, False)
        and field not in IN_TABLE | {"job_id", "generation", "next_run_at", action}
    ]
    if action:
        inner = {key: one for key, one in job[action].items() if one not in (None, [], {}, 0)}
        fields.insert(0, (action, inner))
    return [(field.replace("_", " ").capitalize(), _text(value)) for field, value in fields]


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
