"""Pausing and resuming the whole cluster: nothing fires and nothing starts, and calls still work.

`ok` of a pause means that nothing starts any more: it waits as the pause of a job does, for the
attempts of all jobs (`settling`).
"""

from schedd.api import settling
from schedd.api.cluster import get_cluster
from schedd.api.services import Caller, Services
from schedd.core.model import AuditEntry
from schedd.core.pauses import Pauses
from schedproto.v1 import cluster_service_pb2 as wire


async def pause_cluster(
    services: Services, caller: Caller, request: wire.PauseClusterRequest
) -> wire.Cluster:
    """Fire and start nothing until it is resumed. Pausing again changes the note."""

    def entry(before: Pauses, after: Pauses) -> AuditEntry:
        return caller.changed("pause", "cluster", _told(before), _told(after), request.request_id)

    async with settling.kept(services, "the cluster"):
        await services.pauses.pause(caller.actor, request.note, entry)
        services.nudges.cluster_changed()
        out = await settling.unstarted(services, None, "the cluster")
        await settling.revoke(services, caller, out, "the cluster")
    with settling.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


async def resume_cluster(
    services: Services, caller: Caller, request: wire.ResumeClusterRequest
) -> wire.Cluster:
    """Fire and start again. What fell due in the pause is SKIPPED (PAUSED), or caught up."""

    def entry(before: Pauses, after: Pauses) -> AuditEntry:
        ended = _told(after) | {"catchUp": request.catch_up}
        return caller.changed("resume", "cluster", _told(before), ended, request.request_id)

    await services.pauses.resume(request.catch_up, entry)
    services.nudges.cluster_changed()
    with settling.after_commit():
        return await get_cluster(services, caller, wire.GetClusterRequest())


def _told(pauses: Pauses) -> dict[str, object]:
    """The state as the audit has it."""
    present = pauses.present
    if present is None:
        return {"paused": False}
    return {"paused": True, "by": present.by, "note": present.note}
