"""Pause and resume the cluster. While it is paused, nothing fires and nothing starts; calls still
work.

`ok` of a pause means that nothing can start any more. Like the pause of a job it waits for
dispatched attempts (`quiesce`), here of all jobs.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.api.cluster.cluster import get_cluster
from schedd.api.definitions import validation
from schedd.api.errors import FailedPreconditionError, FieldViolation, InvalidArgumentError
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.runs.model import AuditRecord
from schedd.core.schedule.cron import EPOCH
from schedd.core.timers.cluster_pauses import Pauses
from schedproto.v1 import cluster_service_pb2 as wire

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""By which a caller's clock may be ahead of cluster time."""


async def pause_cluster(
    services: Services, caller: Caller, request: wire.PauseClusterRequest
) -> wire.Cluster:
    """Pause the cluster until it is resumed. Pausing again replaces the note, if one is given."""

    def entry(before: Pauses, after: Pauses) -> AuditRecord:
        return caller.changed("pause", "cluster", _state(before), _state(after), request.request_id)

    validation.check_note(request.note, "note")
    async with quiesce.failover_check(services, "the cluster's pause"):
        await services.pauses.pause(caller.actor, request.note, entry)
        services.wake_ups.cluster_changed()
        out = await quiesce.unstarted(services, None, "the cluster's pause")
        await quiesce.revoke(services, caller, out, "the cluster's pause")
    with quiesce.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


async def resume_cluster(
    services: Services, caller: Caller, request: wire.ResumeClusterRequest
) -> wire.Cluster:
    """Resume the cluster. Scheduled times of the pause are SKIPPED (PAUSED), or caught up: all of
    them, or those since a given time. In recovery the caller must choose one of the three.
    """
    since = _since(services, request)
    catch_up = True if request.catch_up else False if request.catch_up_nothing else None

    def entry(before: Pauses, after: Pauses) -> AuditRecord:
        chosen: dict[str, object] = {"catchUp": bool(catch_up)}
        if since is not None:
            chosen = {"catchUpSince": since.isoformat()}
        ended = _state(after) | chosen
        return caller.changed("resume", "cluster", _state(before), ended, request.request_id)

    if await services.pauses.resume(catch_up, since, entry) is None:
        raise FailedPreconditionError(
            "the cluster is in recovery: PostgreSQL was restored to an earlier state, so jobs"
            " that were due after that state may have run already",
            reason="RECOVERING",
            remedy="choose: `schedctl cluster resume --catch-up-since T` (catch up runs due since"
            " T), --catch-up (all of them) or --no-catch-up (none of them)",
        )
    services.wake_ups.cluster_changed()
    with quiesce.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


def _since(services: Services, request: wire.ResumeClusterRequest) -> datetime | None:
    """Return the time since when runs are caught up; None if the request has none."""
    chosen = request.HasField("catch_up_since")
    if chosen + request.catch_up + request.catch_up_nothing > 1:
        raise _wrong(
            "the fields catch_up, catch_up_nothing and catch_up_since exclude each other",
            remedy="give one of them",
        )
    if not chosen:
        return None
    since = request.catch_up_since.ToDatetime(UTC)
    if since > services.clock.now() + CLOCKS_DIFFER:
        raise _wrong(
            f"catch_up_since: {since:%Y-%m-%dT%H:%M:%SZ} is in the future, so nothing would be"
            " caught up, and skipped runs can't be caught up later",
            remedy="give a time within the pause, or --no-catch-up",
        )
    return max(since, EPOCH)


def _wrong(problem: str, *, remedy: str) -> InvalidArgumentError:
    violation = FieldViolation("catch_up_since", problem)
    return InvalidArgumentError(
        problem, reason="INVALID_FIELD", remedy=remedy, violations=[violation]
    )


def _state(pauses: Pauses) -> dict[str, object]:
    """Return the pause state, for the audit log."""
    present = pauses.present
    if present is None:
        return {"paused": False}
    state: dict[str, object] = {"paused": True, "by": present.by, "note": present.note}
    return state | {"recovering": True} if present.recovering else state
