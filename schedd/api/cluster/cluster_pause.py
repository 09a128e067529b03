"""Pausing and resuming the whole cluster: nothing fires and nothing starts, and calls still work.

`ok` of a pause means that nothing starts any more: it waits as the pause of a job does, for the
attempts of all jobs (`settling`).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from schedd.api.cluster.cluster import get_cluster
from schedd.api.definitions import validation
from schedd.api.errors import FailedPrecondition, InvalidArgument, Violation
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.runs.model import AuditEntry
from schedd.core.schedule.cron import EPOCH
from schedd.core.timers.cluster_pauses import Pauses
from schedproto.v1 import cluster_service_pb2 as wire

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""By which the clock of a person's host may be ahead of the cluster's."""


async def pause_cluster(
    services: Services, caller: Caller, request: wire.PauseClusterRequest
) -> wire.Cluster:
    """Fire and start nothing until it is resumed. Pausing again changes the note, if it
    says one.
    """

    def entry(before: Pauses, after: Pauses) -> AuditEntry:
        return caller.changed("pause", "cluster", _told(before), _told(after), request.request_id)

    validation.check_note(request.note, "note")
    async with quiesce.kept(services, "the cluster"):
        await services.pauses.pause(caller.actor, request.note, entry)
        services.nudges.cluster_changed()
        out = await quiesce.unstarted(services, None, "the cluster")
        await quiesce.revoke(services, caller, out, "the cluster")
    with quiesce.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


async def resume_cluster(
    services: Services, caller: Caller, request: wire.ResumeClusterRequest
) -> wire.Cluster:
    """Fire and start again. What fell due in the pause is SKIPPED (PAUSED), or caught up: all of
    it, or from some instant on. A cluster that recovers is resumed with one of the three chosen.
    """
    since = _since(services, request)
    catch_up = True if request.catch_up else False if request.catch_up_nothing else None

    def entry(before: Pauses, after: Pauses) -> AuditEntry:
        chosen: dict[str, object] = {"catchUp": bool(catch_up)}
        if since is not None:
            chosen = {"catchUpSince": since.isoformat()}
        ended = _told(after) | chosen
        return caller.changed("resume", "cluster", _told(before), ended, request.request_id)

    if await services.pauses.resume(catch_up, since, entry) is None:
        raise FailedPrecondition(
            "the cluster recovers: its database went back, and what fell due since may have run",
            reason="RECOVERING",
            remedy="choose: `schedctl cluster resume --catch-up-since T` (what fell due from T on"
            " is caught up), --catch-up (all of it) or --no-catch-up (nothing of it)",
        )
    services.nudges.cluster_changed()
    with quiesce.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


def _since(services: Services, request: wire.ResumeClusterRequest) -> datetime | None:
    """From when on what fell due is caught up; None if it doesn't say."""
    chosen = request.HasField("catch_up_since")
    if chosen + request.catch_up + request.catch_up_nothing > 1:
        raise _wrong(
            "catch_up, catch_up_nothing and catch_up_since say all, nothing and from when on",
            remedy="give one of them",
        )
    if not chosen:
        return None
    since = request.catch_up_since.ToDatetime(UTC)
    if since > services.clock.now() + CLOCKS_DIFFER:
        raise _wrong(
            f"catch_up_since: {since:%Y-%m-%dT%H:%M:%SZ} is still to come, so nothing would be"
            " caught up, and what is skipped stays so",
            remedy="give an instant of the pause, or --no-catch-up",
        )
    return max(since, EPOCH)


def _wrong(problem: str, *, remedy: str) -> InvalidArgument:
    violation = Violation("catch_up_since", problem)
    return InvalidArgument(problem, reason="INVALID_FIELD", remedy=remedy, violations=[violation])


def _told(pauses: Pauses) -> dict[str, object]:
    """The state as the audit has it."""
    present = pauses.present
    if present is None:
        return {"paused": False}
    told: dict[str, object] = {"paused": True, "by": present.by, "note": present.note}
    return told | {"recovering": True} if present.recovering else told
