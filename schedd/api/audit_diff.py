"""The audit log: rejected changes of the cluster, and the fields of definitions that a change sets.

    create ──▶ after:  {field: value, …}              the fields that are set
    update ──▶ before: {field: value | null, …}       the changed fields before the edit
               after:  {field: value | null, …}       and after it; null: not set
    submit ──▶ after:  {namespace, name, field: value, …}
    delete ──▶ before: {field: value, …}
               after:  {note: why}                    if a note was given

Invariants
- Keys and values are those of `schedctl job get -o json` or `schedctl calendar get`, without the
  fields that the cluster sets. One-time work has those of a job.
- A state is valid JSON of bounded size: a field that doesn't fit is `{"$cut": N}`, N being its
  characters or bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from schedd.api.errors import CallError, OutcomeUnknownError
from schedd.api.services import Caller, Services, compact
from schedd.runtime.job_codec import SET_BY_CLUSTER, JobDefinition, stored_spec
from schedkit.errors import Unavailable
from schedkit.protojson import fields_to_json
from schedproto.v1 import calendar_service_pb2, job_pb2

Spec: TypeAlias = job_pb2.Job | calendar_service_pb2.Calendar

MOST: Final = 8 * 1024
"""Characters of all values of a state together. A field that is cut adds at most 60."""


def definition(of: JobDefinition) -> str:
    row = of.row
    return work(row.namespace, row.name, of.stored.spec) if row.ephemeral else whole(of.spec)


def work(namespace: str, name: str, spec: bytes) -> str:
    """Return the fields of one-time work, without its payload, which is stored with the run."""
    own = {"namespace": namespace} | ({"name": name} if name else {})
    parts = (compact(own)[1:-1], _rest(spec))
    return "{" + ",".join(filter(None, parts)) + "}"


def whole(spec: Spec) -> str:
    """Return all set fields."""
    return _state(spec, _set(spec))


def differences(old: Spec, new: Spec) -> tuple[str, str]:
    """Return the changed fields, before and after."""
    was, now = _set(old), _set(new)
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return _state(old, names), _state(new, names)


@lru_cache(maxsize=256)
def _rest(spec: bytes) -> str:
    """Return the fields of one-time work but for its names, as JSON without its braces."""
    job = stored_spec(spec)
    for field in ("payload", "on_demand"):
        job.ClearField(field)
    return whole(job)[1:-1]


def _set(spec: Spec) -> dict[str, Any]:
    return {
        field.json_name: value
        for field, value in spec.ListFields()
        if field.name not in SET_BY_CLUSTER
    }


def _state(spec: Spec, names: Collection[str]) -> str:
    """Return these fields as JSON, null if not set. Large fields aren't serialized at all."""
    large = {
        field.json_name: value.ByteSize()
        for field, value in spec.ListFields()
        if isinstance(value, Message) and value.ByteSize() > MOST
    }
    values = fields_to_json(spec, _set(spec).keys() & (set(names) - large.keys()))
    texts = {name: compact(value) for name, value in values.items()}
    left = MOST
    written = []
    for name in names:
        text = texts.get(name, "null")
        size = large.get(name, len(text))
        if size > left:
            text = compact({"$cut": size})
        else:
            left -= size
        written.append(f"{compact(name)}:{text}")
    return "{" + ",".join(written) + "}"


# Audit rejected changes of the cluster: the caller, the requested change, and the reason.

WRITE_WITHIN: Final = 2.0
"""Seconds to write the audit line after the caller left or a dependency failed."""


@asynccontextmanager
async def audited(
    services: Services,
    caller: Caller,
    action: str,
    object_: str,
    request_id: str,
    requested: Mapping[str, object] | None = None,
) -> AsyncIterator[None]:
    """Write an audit line for an error that is raised inside. Its outcome is "refused", or
    "unknown" if the change may have been made: etcd didn't answer, or the caller left. `requested`,
    the state that the caller asked for, is the line's "after".
    """

    async def write(outcome: str, reason: str) -> None:
        entry = caller.audit(action, object_, request_id)
        if requested is not None:
            entry = replace(entry, after=compact(requested))
        await services.store.audit(replace(entry, outcome=outcome, reason=reason))

    async def write_unknown(reason: str) -> None:
        """The caller gets the original error, also if this line can't be written."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(WRITE_WITHIN):
                await write("unknown", reason)

    try:
        yield
    except OutcomeUnknownError as error:
        await write_unknown(error.reason)
        raise
    except CallError as error:
        await write("refused", error.reason)
        raise
    except (Unavailable, asyncio.CancelledError) as error:
        await write_unknown("UNAVAILABLE" if isinstance(error, Unavailable) else "GONE")
        raise
