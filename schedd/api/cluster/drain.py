"""Drain a worker: it gets no new work and finishes its running work, until it is undrained.

    row (by the worker's name) ─→ each member, within a second: dispatches nothing more to the
                                  worker, and notifies it; it returns runs that haven't started

A drain survives restarts of the worker, its host and this member. It ends with `undrain` only.
"""

from schedd.api.cluster.cluster import worker_named, workers_by_name
from schedd.api.definitions import validation
from schedd.api.services import Caller, Services
from schedd.core.runs.model import AuditRecord
from schedd.core.runs.records import Drain
from schedproto.v1 import cluster_service_pb2 as wire


async def drain_worker(
    services: Services, caller: Caller, request: wire.DrainWorkerRequest
) -> wire.Worker:
    """Drain a worker. Draining again replaces the reason, if one is given."""

    def entry(before: Drain | None, after: Drain | None) -> AuditRecord:
        of = f"worker/{request.worker}"
        return caller.changed("drain", of, _state(before), _state(after), request.request_id)

    validation.check_note(request.reason, "reason")
    await worker_named(services, request.worker)
    await services.worker_store.drain(request.worker, caller.actor, request.reason, entry)
    return await worker_named(services, request.worker)


async def undrain_worker(
    services: Services, caller: Caller, request: wire.UndrainWorkerRequest
) -> wire.Worker:
    """Undrain a worker. One that isn't drained is left unchanged."""

    def entry(before: Drain | None, after: Drain | None) -> AuditRecord:
        of = f"worker/{request.worker}"
        after_ = _state(after) | ({"reason": request.reason} if request.reason else {})
        return caller.changed("undrain", of, _state(before), after_, request.request_id)

    validation.check_note(request.reason, "reason")
    found = await worker_named(services, request.worker)
    await services.worker_store.undrain(request.worker, entry)
    left = (await workers_by_name(services)).get(request.worker)
    if left is None:  # listed for its drain only
        found.ClearField("drained_at")
        found.ClearField("drained_by")
        found.ClearField("drain_reason")
        return found
    return left


def _state(drain: Drain | None) -> dict[str, object]:
    """Return the drain state, for the audit log."""
    if drain is None:
        return {"drained": False}
    return {"drained": True, "by": drain.by, "reason": drain.reason}
