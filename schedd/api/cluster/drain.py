"""Draining a worker: it takes nothing more and finishes what it has, until it is undrained.

    row (by the worker's name) ─→ each member, within a second: nothing more is handed to it, and
                                  it is told: what it holds and hasn't started goes back

A drain outlives the worker's process, its host's restart and this member: whoever drained it says
when it is over.
"""

from schedd.api.cluster.cluster import worker_named
from schedd.api.definitions import validation
from schedd.api.services import Caller, Services
from schedd.core.runs.model import AuditEntry
from schedd.core.runs.records import Drain
from schedproto.v1 import cluster_service_pb2 as wire


async def drain_worker(
    services: Services, caller: Caller, request: wire.DrainWorkerRequest
) -> wire.Worker:
    """Give it no new work. Draining again changes the reason, if it says one."""

    def entry(before: Drain | None, after: Drain | None) -> AuditEntry:
        of = f"worker/{request.worker}"
        return caller.changed("drain", of, _told(before), _told(after), request.request_id)

    validation.check_note(request.reason, "reason")
    await worker_named(services, request.worker)
    await services.worker_store.drain(request.worker, caller.actor, request.reason, entry)
    return await worker_named(services, request.worker)


async def undrain_worker(
    services: Services, caller: Caller, request: wire.UndrainWorkerRequest
) -> wire.Worker:
    """Give it work again. One that isn't drained stays as it is."""

    def entry(before: Drain | None, after: Drain | None) -> AuditEntry:
        of = f"worker/{request.worker}"
        after_ = _told(after) | ({"reason": request.reason} if request.reason else {})
        return caller.changed("undrain", of, _told(before), after_, request.request_id)

    validation.check_note(request.reason, "reason")
    found = await worker_named(services, request.worker)
    await services.worker_store.undrain(request.worker, entry)
    if found.state == wire.Worker.STATE_LOST:  # known by its drain alone
        found.ClearField("drained_at")
        found.ClearField("drained_by")
        found.ClearField("drain_reason")
        return found
    return await worker_named(services, request.worker)


def _told(drain: Drain | None) -> dict[str, object]:
    """As the audit has it."""
    if drain is None:
        return {"drained": False}
    return {"drained": True, "by": drain.by, "reason": drain.reason}
