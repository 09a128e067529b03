"""What a chain hands on: what the parents gave back, as the payload of the child's run. Pure.

    one parent      its result as it is; null where it gave none
    several         {"a": …, "b": …} by their names; bytes as {"base64": …}

A payload is bounded: what doesn't fit any more, in the order of the parents' names, and what is in
the result store, is null, and its parent named under `_left_out`, which is no job's name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Final, NoReturn

from schedd.api.definitions.validation import MAX_PAYLOAD
from schedd.core.ids import RunId
from schedd.core.jobs.chains import After, ParentEnded
from schedproto.v1 import common_pb2, run_pb2

LEFT_OUT: Final = "_left_out"
_SPARE: Final = 16 * 1024
"""For the names of those that are left out."""


def handed_on(after: After, ended: Iterable[ParentEnded], results: Mapping[RunId, bytes]) -> bytes:
    """The serialised payload of a run that comes after these."""
    by_name = {one.job: results.get(one.run_id) for one in ended}
    if len(after.jobs) == 1:
        [name] = after.jobs
        result = by_name.get(name)
        if result is None:
            return _json("null")
        return _json(_mapped({name: result})) if _is_elsewhere(result) else result
    return _json(_mapped({name: by_name.get(name) for name in after.jobs}))


def _mapped(results: Mapping[str, bytes | None]) -> str:
    """The map as JSON: results stand in it as they were written."""
    parts: list[str] = []
    left_out: list[str] = []
    room = MAX_PAYLOAD - _SPARE
    for name in sorted(results):
        result = results[name]
        elsewhere = result is not None and _is_elsewhere(result)
        text = "null" if result is None or elsewhere else _text(result)
        part = f"{json.dumps(name)}: {text}"
        if elsewhere or len(part.encode()) + 2 > room:
            left_out.append(name)
            part = f"{json.dumps(name)}: null"
        room -= len(part.encode()) + 2
        parts.append(part)
    if left_out:
        parts.append(f"{json.dumps(LEFT_OUT)}: {json.dumps(left_out)}")
    return "{" + ", ".join(parts) + "}"


def _text(result: bytes) -> str:
    payload = common_pb2.Payload.FromString(result)
    if payload.raw:
        return json.dumps({"base64": base64.b64encode(payload.raw).decode()})
    try:
        json.loads(payload.json, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return json.dumps(payload.json)
    return payload.json


def _is_elsewhere(result: bytes) -> bool:
    """Whether it was too large for a row."""
    return run_pb2.StoredResult.FromString(result).HasField("kept")


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _json(text: str) -> bytes:
    return common_pb2.Payload(json=text).SerializeToString()
