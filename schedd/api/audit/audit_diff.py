"""Definitions of jobs and calendars as the audit has them: what is set, or differs, in a bound.

    create ──▶ after:  {field: value, …}              what was set
    update ──▶ before: {field: value | null, …}       the fields that differ, as they were,
               after:  {field: value | null, …}       and as they are; null: not set
    submit ──▶ after:  {namespace, name, field: value, …}
    delete ──▶ before: {field: value, …}
               after:  {note: why}                if it was said

Invariants
- Keys and values are those of `schedctl job get -o json`, without what the cluster sets; of a
  calendar those of `schedctl calendar get`, of one-time work those of a job.
- A state is valid JSON, however large the definition is: a field that has no room any more is
  `{"$cut": N}`, N characters or bytes being left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from schedd.core.runs.records import JobRecord
from schedd.runtime.job_codec import SET_BY_CLUSTER, stored_spec
from schedkit.protojson import fields_to_json
from schedproto.v1 import calendar_service_pb2, job_pb2

Spec: TypeAlias = job_pb2.Job | calendar_service_pb2.Calendar

MOST: Final = 8 * 1024
"""Characters that the values of a state have together; 60 more a field that is cut, at most."""


def definition(record: JobRecord) -> str:
    """All that is set."""
    if record.definition.ephemeral:
        return _work(record)
    return whole(stored_spec(record.definition.spec))


def _work(record: JobRecord) -> str:
    """Of one-time work what runs, and whose it is; what it is given stands with its run. Of many
    that differ in that alone it is written once.
    """
    stored = record.definition
    spec = stored_spec(stored.spec)
    for field in ("payload", "on_demand"):
        spec.ClearField(field)
    own = {"namespace": stored.namespace} | ({"name": stored.name} if stored.name else {})
    parts = (_compact(own)[1:-1], _rest(spec.SerializeToString(deterministic=True)))
    return "{" + ",".join(filter(None, parts)) + "}"


def whole(spec: Spec) -> str:
    """All that is set."""
    return _state(spec, _set(spec))


def differences(old: Spec, new: Spec) -> tuple[str, str]:
    """What differs: as it was, as it is."""
    was, now = _set(old), _set(new)
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return _state(old, names), _state(new, names)


@lru_cache(maxsize=256)
def _rest(spec: bytes) -> str:
    """All that is set, to be put among others."""
    return whole(stored_spec(spec))[1:-1]


def _set(spec: Spec) -> dict[str, Any]:
    """Its fields that say something, by their JSON names."""
    return {
        field.json_name: value
        for field, value in spec.ListFields()
        if field.name not in SET_BY_CLUSTER
    }


def _state(spec: Spec, names: Collection[str]) -> str:
    """What each of these fields says, null where it isn't set. What is large isn't even written."""
    large = {
        field.json_name: value.ByteSize()
        for field, value in spec.ListFields()
        if isinstance(value, Message) and value.ByteSize() > MOST
    }
    told = fields_to_json(spec, _set(spec).keys() & (set(names) - large.keys()))
    texts = {name: _compact(value) for name, value in told.items()}
    left = MOST
    written = []
    for name in names:
        text = texts.get(name, "null")
        size = large.get(name, len(text))
        if size > left:
            text = _compact({"$cut": size})
        else:
            left -= size
        written.append(f"{_compact(name)}:{text}")
    return "{" + ",".join(written) + "}"


_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Made once: to put an encoder together costs more than to use it."""
