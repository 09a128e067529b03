"""Results of runs: up to 64 KiB in the run's row, larger ones in the result store."""

import hashlib
from collections.abc import AsyncIterator
from typing import Final

from schedd.api.errors import MemberUnavailableError, NotFoundError
from schedd.api.runs.logs import damaged
from schedd.api.services import Services
from schedd.core.runs.run_records import RunRecord
from schedkit.errors import Unavailable
from schedkit.objects import NoSuchObject, result_key
from schedkit.objects.reading import Damaged
from schedproto.v1 import run_pb2

PART: Final = 256 * 1024
"""Bytes of a piece, at most."""


def message(run_id: str, stored: bytes | None) -> run_pb2.RunResult:
    """Return the answer of `GetRunResult`: the result, or its size and place."""
    result = run_pb2.RunResult(run_id=run_id)
    if stored is None:
        return result
    found = run_pb2.StoredResult.FromString(stored)
    if found.HasField("object"):
        kept = found.object
        result.size, result.sha256 = kept.size, kept.sha256.hex()
        result.stored, result.problem = not kept.problem, kept.problem
        result.json = kept.json
        return result
    content = _content(found)
    result.result.MergeFromString(stored)
    result.size, result.sha256 = len(content), hashlib.sha256(content).hexdigest()
    result.json = found.WhichOneof("kind") == "json"
    return result


async def content(
    services: Services, record: RunRecord, stored: bytes | None
) -> AsyncIterator[run_pb2.ResultPiece]:
    """Return the whole result in pieces; none if nothing was returned."""
    found = run_pb2.StoredResult.FromString(stored or b"")
    if not found.HasField("object"):
        data = _content(found)
        for at in range(0, len(data), PART):
            yield run_pb2.ResultPiece(offset=at, data=data[at : at + PART])
        return
    kept, run_id = found.object, str(record.run.key.run_id)
    if kept.problem:
        raise _lost(f"the result of run {run_id} isn't kept: {kept.problem}")
    at, key = 0, result_key(record.namespace, run_id, kept.fencing_token)
    try:
        async for part in services.objects.parts(key, kept.size, kept.sha256):
            yield run_pb2.ResultPiece(offset=at, data=part)
            at += len(part)
    except NoSuchObject as error:
        raise _lost(f"result of run {run_id} not found in the result store") from error
    except Unavailable as error:
        raise MemberUnavailableError(
            f"the result store is unavailable: {error}",
            reason="STORE_AWAY",
            remedy="call again; `schedctl cluster doctor` shows the cause",
        ) from error
    except Damaged as error:
        raise damaged(key) from error


def _content(found: run_pb2.StoredResult) -> bytes:
    return found.json.encode() or found.raw


def _lost(what: str) -> NotFoundError:
    return NotFoundError(
        what,
        reason="NOT_KEPT",
        remedy="members and workers must have the same results.url; `schedctl run result -o json`"
        " shows the result's size and SHA-256",
    )
