"""Calls on pools: set, get, list, pause, resume, delete."""

from collections.abc import Iterator
from typing import Final

from schedd.api import paging, views
from schedd.api.definitions import validation
from schedd.api.errors import (
    AbortedError,
    FailedPreconditionError,
    FieldViolation,
    NotFoundError,
    cut,
    not_found,
    refuse,
)
from schedd.api.jobs import quiesce, stored_jobs
from schedd.api.services import Caller, Services, compact
from schedd.core.cluster.partition import shard_of_pool
from schedd.core.runs.pools import LEAST_PER, MOST_AT_ONCE, MOST_PER, PoolRecord, PoolUse, StartRate
from schedd.core.runs.records import StoreConflict
from schedkit.records import replace
from schedproto.v1 import pool_service_pb2 as wire

MOST_USERS: Final = 20
"""Jobs that the error of a rejected delete names."""


async def set_pool(services: Services, caller: Caller, request: wire.SetPoolRequest) -> wire.Pool:
    """Create a pool, or change its limits. They apply to all later starts."""
    pool = request.pool
    namespace = stored_jobs.namespace_of(pool.namespace)
    refuse([*_violations(pool)], "INVALID_POOL")
    limit = pool.limit or None
    rate = (
        StartRate(pool.rate.count, pool.rate.per.ToTimedelta()) if pool.HasField("rate") else None
    )
    found, now = await services.pools.get(namespace, pool.name), services.clock.now()
    if request.validate_only:
        record, use = found or (None, PoolUse(0, 0, 0, 0))
        if pool.version and (record is None or record.version != pool.version):
            raise _changed_meanwhile(pool.name)
        if record is not None and (record.limit, record.rate) == (limit, rate):
            return _message(record, use)
        record = record or PoolRecord(namespace, pool.name, None, None, 0, False, "", "", now, "")
        return _message(
            replace(
                record,
                limit=limit,
                rate=rate,
                version=record.version + 1,
                updated_at=now,
                updated_by=caller.actor,
            ),
            use,
        )
    before = {} if found is None else _limits(found[0].limit, found[0].rate)
    audit = caller.changed(
        "set", f"pool/{namespace}/{pool.name}", before, _limits(limit, rate), request.request_id
    )
    stored = await services.pools.set(
        namespace, pool.name, limit, rate, pool.version, caller.actor, audit
    )
    if isinstance(stored, StoreConflict):
        raise _changed_meanwhile(pool.name)
    services.wake_ups.runs_ready([shard_of_pool(namespace, pool.name)])
    return await _current(services, namespace, pool.name)


async def get_pool(services: Services, _caller: Caller, request: wire.GetPoolRequest) -> wire.Pool:
    return await _current(services, stored_jobs.namespace_of(request.namespace), request.pool)


async def list_pools(
    services: Services, _caller: Caller, request: wire.ListPoolsRequest
) -> wire.ListPoolsResponse:
    """Return a page of pools, by name."""
    paged = paging.Paged("pools", request, paging.name_of)
    namespace = stored_jobs.namespace_of(request.namespace)
    rows = await services.pools.list(namespace, paged.after or "", paged.read_rows)
    page, token = paged.cut(rows, lambda row: (row[0].name,))
    return wire.ListPoolsResponse(pools=[_message(*row) for row in page], next_page_token=token)


async def delete_pool(
    services: Services, caller: Caller, request: wire.DeletePoolRequest
) -> wire.DeletePoolResponse:
    """Delete a pool, unless a job, or a submitted run that hasn't ended, uses it."""
    namespace, name = stored_jobs.namespace_of(request.namespace), request.pool
    audit = caller.audit("delete", f"pool/{namespace}/{name}", request.request_id)
    answer = await services.pools.delete(namespace, name, audit, MOST_USERS + 1, _whole)
    if isinstance(answer, list):
        names = ", ".join(map(str, answer[:MOST_USERS])) + " and more" * (len(answer) > MOST_USERS)
        steps = []
        if any(one.run is None for one in answer):
            steps.append("remove the jobs from the pool first: schedctl job patch JOB --pool ''")
        if any(one.run is not None for one in answer):
            steps.append(
                "wait until submitted runs have ended, or cancel them: schedctl run cancel RUN"
            )
        raise FailedPreconditionError(
            f"pool {name!r} is used by {names}", reason="POOL_IN_USE", remedy="; ".join(steps)
        )
    if not answer:
        raise _unknown(name)
    return wire.DeletePoolResponse(deleted=True)


async def pause_pool(
    services: Services, caller: Caller, request: wire.PausePoolRequest
) -> wire.Pool:
    """Pause a pool. `ok` means that no run of it can start, dispatched ones included."""
    validation.check_note(request.note, "note")
    namespace, name = stored_jobs.namespace_of(request.namespace), request.pool
    audit = caller.audit("pause", f"pool/{namespace}/{name}", request.request_id)
    what = f"pool {name}"
    async with quiesce.failover_check(services, what):
        paused = await services.pools.pause(
            namespace, name, True, request.note, caller.actor, audit, _paused
        )
        if paused is None:
            raise _unknown(name)
        out = await quiesce.unstarted(services, None, what, pool=(namespace, name))
        await quiesce.revoke(services, caller, out, what)
    return await _current(services, namespace, name)


async def resume_pool(
    services: Services, caller: Caller, request: wire.ResumePoolRequest
) -> wire.Pool:
    namespace, name = stored_jobs.namespace_of(request.namespace), request.pool
    audit = caller.audit("resume", f"pool/{namespace}/{name}", request.request_id)
    resumed = await services.pools.pause(namespace, name, False, "", caller.actor, audit, _paused)
    if resumed is None:
        raise _unknown(name)
    services.wake_ups.runs_ready([shard_of_pool(namespace, name)])
    return await _current(services, namespace, name)


def _violations(pool: wire.Pool) -> Iterator[FieldViolation]:
    yield from validation.check_name(pool.name, "pool.name")
    if not 0 <= pool.limit <= MOST_AT_ONCE:
        problem = f"must be from 1 to {MOST_AT_ONCE:,}, or 0 for no limit, not {pool.limit:,}"
        yield FieldViolation("pool.limit", problem)
    if not pool.HasField("rate"):
        return
    if not 1 <= pool.rate.count <= MOST_AT_ONCE:
        yield FieldViolation(
            "pool.rate.count", f"must be from 1 to {MOST_AT_ONCE:,}, not {pool.rate.count:,}"
        )
    if not LEAST_PER <= pool.rate.per.ToTimedelta() <= MOST_PER:
        yield FieldViolation("pool.rate.per", "must be from 1s to 1d")


def _limits(limit: int | None, rate: StartRate | None) -> dict[str, object]:
    text = None if rate is None else f"{rate.count}/{rate.per.total_seconds():g}s"
    return {"limit": limit, "rate": text}


def _pause_state(pool: PoolRecord) -> dict[str, object]:
    return stored_jobs.pause_state(pool.paused, pool.paused_by, pool.pause_note, None)


def _paused(pool: PoolRecord) -> str:
    return compact(_pause_state(pool))


def _whole(pool: PoolRecord) -> str:
    return compact(_limits(pool.limit, pool.rate) | (_pause_state(pool) if pool.paused else {}))


async def _current(services: Services, namespace: str, name: str) -> wire.Pool:
    found = await services.pools.get(namespace, name) if name else None
    if found is None:
        raise _unknown(name)
    return _message(*found)


def _message(record: PoolRecord, use: PoolUse) -> wire.Pool:
    message = views.filled(
        wire.Pool,
        record,
        rate=None,
        jobs=use.jobs,
        running=use.running,
        waiting=use.waiting,
        recent=use.recent,
    )
    if record.rate is not None:
        message.rate.count = record.rate.count
        message.rate.per.FromTimedelta(record.rate.per)
    return message


def _unknown(name: str) -> NotFoundError:
    return not_found("pool", repr(cut(name)), "pool list")


def _changed_meanwhile(name: str) -> AbortedError:
    return AbortedError(
        f"pool {name!r} was changed meanwhile",
        reason="ETAG_MISMATCH",
        remedy="read the pool again, then change the current version",
    )
