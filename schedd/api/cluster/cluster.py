"""Calls on the cluster: its state, members, shards, workers and their drains, and audit log."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from schedd.api import paging, views
from schedd.api.definitions import validation
from schedd.api.errors import MemberUnavailableError, cut, not_found, wrong
from schedd.api.request_bounds import id_of
from schedd.api.services import Caller, Services
from schedd.cluster.observer import Observer
from schedd.core.cluster.cluster_events import Losses
from schedd.core.cluster.dependency import Dependency, DependencyFailure
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.ids import SHARDS, RunId, TenureId
from schedd.core.runs.model import AuditRecord, Incarnation
from schedd.core.runs.records import Drain, WorkerView, view_without_heartbeats
from schedkit.records import replace
from schedproto.v1 import cluster_service_pb2 as wire

AUDIT_BYTES: Final = 2 * 1024 * 1024
"""Approximate size of a page of the audit log: half of the largest message."""


async def get_cluster(
    services: Services, _caller: Caller, _request: wire.GetClusterRequest
) -> wire.Cluster:
    view = await _unfenced_view(services)
    rows = await services.membership.read_shards()
    live = {member.tenure for member in view.members}
    counts = await services.store.counts()
    pause = await services.pauses.present()
    owned = sum(row.owner in live for row in rows)
    lost = await lost_now(services)
    return wire.Cluster(
        cluster_id=services.cluster_id,
        leader=name_of(view, view.leader),
        term=view.term,
        shards=SHARDS,
        owned=owned,
        members=len(view.members),
        workers=len(view.workers),
        pending=counts.pending,
        running=counts.running,
        retrying=counts.retrying,
        jobs=counts.jobs,
        dead_letters=counts.dead_letters,
        version=services.version,
        paused=pause is not None,
        paused_at=views.stamp(pause.began) if pause else None,
        paused_by=pause.by if pause else "",
        pause_note=pause.note if pause else "",
        recovering=pause is not None and pause.recovering,
        lost_until=views.stamp(pause.lost_until) if pause else None,
        lost_members=[one.name for one in lost.members],
        lost_workers=[one.worker for one in lost.workers],
        problems=problems(
            view,
            trusted=services.cluster.trusted(),
            owned=owned,
            workers=len(view.workers),
            duplicate=services.cluster.duplicate,
            failures=services.failures(),
        ),
    )


async def list_members(
    services: Services, _caller: Caller, _request: wire.ListMembersRequest
) -> wire.ListMembersResponse:
    """Return the members, and those lost within the retention, by name."""
    view = services.cluster.view()
    rows = await services.membership.read_shards()
    fenced = await services.membership.fenced([member.tenure for member in view.members])
    owned = Counter(row.owner for row in rows)
    lost = await lost_now(services)
    losses = {one.name: one for one in lost.members}
    members = [
        views.filled(wire.Member, one, state=wire.Member.STATE_LOST, shards=owned[one.tenure])
        for one in lost.members
    ]
    members += [
        _member(member, view, owned[member.tenure], fenced=member.tenure in fenced)
        for member in view.members
        if member.name not in losses
    ]
    return wire.ListMembersResponse(members=sorted(members, key=lambda member: member.name))


async def _unfenced_view(services: Services) -> ClusterView:
    """Return the view without fenced members, which stay in it while etcd is unavailable."""
    view = services.cluster.view()
    fenced = await services.membership.fenced([member.tenure for member in view.members])
    members = tuple(member for member in view.members if member.tenure not in fenced)
    return replace(view, members=members)


async def lost_now(services: Services) -> Losses:
    """Return members and workers that were lost within the retention and haven't returned.

    While this member's view may be old, a member of that view isn't called lost: members end their
    tenures without etcd, but continue to run.
    """
    losses = await services.membership.losses(services.lost_for)
    if not losses.members and not losses.workers:
        return losses
    drained = {one.worker for one in await services.worker_store.drains()}
    without_etcd = any(one.dependency == Dependency.ETCD for one in services.failures())
    current = services.cluster.trusted() and not without_etcd
    view = await _unfenced_view(services) if current else services.cluster.view()
    members = {member.name for member in view.members}
    workers = {one.incarnation.worker for one in services.lines.workers()}
    return losses.missing(members, workers, drained)


async def list_shards(
    services: Services, _caller: Caller, _request: wire.ListShardsRequest
) -> wire.ListShardsResponse:
    """Return all shards with owner and epoch."""
    view = await _unfenced_view(services)
    rows = await services.membership.read_shards()
    return wire.ListShardsResponse(
        term=view.term,
        shards=[
            wire.Shard(
                shard=row.id,
                owner=name_of(view, row.owner),
                epoch=row.epoch,
                tenure=str(row.owner) if row.owner else "",
                assigned=name_of(view, view.assigned.get(row.id)),
            )
            for row in sorted(rows, key=lambda row: row.id)
        ],
    )


async def list_workers(
    services: Services, _caller: Caller, request: wire.ListWorkersRequest
) -> wire.ListWorkersResponse:
    """Return the workers, by name, in one page."""
    paging.size(request.page_size)
    if request.page_token:
        raise wrong(
            "page_token",
            "the page token isn't valid: the list of workers has only one page",
            "leave page_token out",
            reason="BAD_PAGE_TOKEN",
        )
    return wire.ListWorkersResponse(workers=await _workers(services))


async def get_worker(
    services: Services, _caller: Caller, request: wire.GetWorkerRequest
) -> wire.Worker:
    return await worker_named(services, request.worker)


async def worker_named(services: Services, name: str) -> wire.Worker:
    """Return a worker that is running or drained. Raises NotFoundError."""
    return picked(await workers_by_name(services), name)


async def workers_by_name(services: Services) -> dict[str, wire.Worker]:
    """Return workers that are running or drained. Of two with one name, the last one started."""
    return {worker.name: worker for worker in reversed(await _workers(services))}


def picked(workers: Mapping[str, wire.Worker], name: str) -> wire.Worker:
    """Return the worker of this name. Raises NotFoundError."""
    if (worker := workers.get(name)) is not None:
        return worker
    raise not_found("worker", repr(cut(name)), "worker list")


async def list_audit(
    services: Services, _caller: Caller, request: wire.ListAuditRequest
) -> wire.ListAuditResponse:
    """Return a page of the audit log, newest first. A page with large lines has fewer of them."""
    paged = paging.Paged("audit", request, paging.number_of)
    rows = await services.store.list_audit(
        request.action or None,
        request.object or None,
        RunId(id_of("run_id", request.run_id)) if request.run_id else None,
        paged.after,
        paged.read_rows,
    )
    answer = wire.ListAuditResponse()
    held = 0
    for place, (_, entry) in enumerate(rows):
        message = views.audit_message(entry)
        held += message.ByteSize()
        if place and (place == paged.size or held > AUDIT_BYTES):
            answer.next_page_token = paging.token(paged.listing, rows[place - 1][0])
            break
        answer.entries.append(message)
    return answer


async def running_workers(services: Services) -> list[WorkerView]:
    """Return the workers with a lease in etcd, with the newest heartbeat of any member."""
    return await services.lines.views(await running_incarnations(services))


async def running_incarnations(services: Services) -> list[Incarnation]:
    """Return the registrations of the workers with a lease in etcd."""
    here = {view.incarnation.id: view.incarnation for view in services.lines.workers()}
    ids = sorted(services.cluster.view().workers | here.keys())
    stored = {one.id: one for one in await services.worker_store.incarnations(ids)}
    lost = {one.id for one in stored.values() if one.lost_at is not None}
    return [one for one in (stored | here).values() if one.id not in lost]


async def _workers(services: Services) -> list[wire.Worker]:
    """Return running and drained workers, and workers lost within the retention."""
    workers = [_worker(view) for view in await running_workers(services)]
    drains = {one.worker: one for one in await services.worker_store.drains()}
    there = {worker.name for worker in workers}
    losses = await services.membership.losses(services.lost_for)
    for one in losses.workers:
        if one.worker not in there:
            workers.append(_worker(view_without_heartbeats(one)))
            workers[-1].state = wire.Worker.STATE_LOST
    there.update(one.worker for one in losses.workers)
    away = drains.keys() - there
    newest = await services.worker_store.newest_of(away) if away else []
    ends = {one.worker: one for one in newest if one.lost_at is None}
    workers += [_worker(view_without_heartbeats(one)) for one in ends.values()]
    # The end of the others is recorded; until it is, a worker may be lost.
    workers += [
        wire.Worker(name=name, state=wire.Worker.STATE_STOPPED, heartbeats_missing=True)
        for name in away - ends.keys()
    ]
    for worker in workers:
        if (drain := drains.get(worker.name)) is not None:
            worker.drained_at.FromDatetime(drain.at)
            worker.drained_by, worker.drain_reason = drain.by, drain.reason
            if worker.heartbeats_missing and worker.state == wire.Worker.STATE_LIVE:
                # No heartbeat reports it.
                worker.state = wire.Worker.STATE_DRAINING
    return sorted(workers, key=lambda one: (one.name, -one.started_at.ToNanoseconds()))


def _worker(view: WorkerView) -> wire.Worker:
    one = view.incarnation
    worker = views.filled(
        wire.Worker,
        one,
        name=one.worker,
        incarnation=str(one.id),
        state=wire.Worker.STATE_DRAINING if view.draining else wire.Worker.STATE_LIVE,
        executors=one.actions,
        refusal_reason=view.refusal_reason,
        namespaces=sorted(one.namespaces or ()),
        heartbeats_missing=view.heartbeats_missing,
    )
    if not view.heartbeats_missing:
        worker.free, worker.running = view.free, view.running
        worker.unstored_results = view.unstored_results
        worker.lease_age.FromTimedelta(timedelta(seconds=view.lease_age))
    return worker


def _member(member: MemberView, view: ClusterView, shards: int, *, fenced: bool) -> wire.Member:
    leads = member.tenure == view.leader
    role = wire.Member.ROLE_LEADER if leads else wire.Member.ROLE_FOLLOWER
    # A stopping member fences its own tenure; any other fenced one was lost, although its process
    # may run and its key in etcd may still exist.
    state = wire.Member.STATE_LOST if fenced else wire.Member.STATE_LIVE
    return views.filled(
        wire.Member,
        member,
        role=wire.Member.ROLE_UNSPECIFIED if fenced else role,
        state=wire.Member.STATE_DRAINING if member.draining else state,
        shards=shards,
    )


def name_of(view: ClusterView, tenure: TenureId | None) -> str:
    """Return the name of the member with this tenure; empty if there is none."""
    member = view.member(tenure)
    return member.name if member else ""


# Drain a worker: it gets no new work and finishes its running work, until it is undrained.
#
#     row (by the worker's name) ─→ each member, within a second: dispatches nothing more to the
#                                   worker, and notifies it; it returns runs that haven't started
#
# A drain survives restarts of the worker, its host and this member. It ends with `undrain` only.


async def drain_worker(
    services: Services, caller: Caller, request: wire.DrainWorkerRequest
) -> wire.Worker:
    """Drain a worker. Draining again replaces the reason, if one is given."""
    validation.check_note(request.reason, "reason")
    await worker_named(services, request.worker)
    entry = partial(_drain_entry, caller, "drain", request)
    await services.worker_store.drain(request.worker, caller.actor, request.reason, entry)
    return await worker_named(services, request.worker)


async def undrain_worker(
    services: Services, caller: Caller, request: wire.UndrainWorkerRequest
) -> wire.Worker:
    """Undrain a worker. One that isn't drained is left unchanged."""
    validation.check_note(request.reason, "reason")
    found = await worker_named(services, request.worker)
    entry = partial(_drain_entry, caller, "undrain", request)
    await services.worker_store.undrain(request.worker, entry)
    left = (await workers_by_name(services)).get(request.worker)
    if left is None:  # listed for its drain only
        found.ClearField("drained_at")
        found.ClearField("drained_by")
        found.ClearField("drain_reason")
        return found
    return left


def _drain_entry(
    caller: Caller,
    action: str,
    request: wire.DrainWorkerRequest | wire.UndrainWorkerRequest,
    before: Drain | None,
    after: Drain | None,
) -> AuditRecord:
    def state(drain: Drain | None) -> dict[str, object]:
        if drain is None:
            return {"drained": False}
        return {"drained": True, "by": drain.by, "reason": drain.reason}

    now = state(after)
    if action == "undrain" and request.reason:
        now["reason"] = request.reason
    return caller.changed(
        action, f"worker/{request.worker}", state(before), now, request.request_id
    )


# Problems of the cluster, as a member reports them.
#
# A member whose lease isn't trusted still answers reads, with a warning: an old view is better than
# none. It rejects changes that need a current view of the cluster.

UNTRUSTED = (
    "this member's lease in etcd isn't trusted, because it may have expired: the member fires no"
    " jobs, and its view of members, leader and shards may be outdated"
)
DUPLICATE_NAME = (
    "another daemon uses this member's name ({}): this member fires no jobs; stop one of the two,"
    " or give it another name"
)


def problems(
    view: ClusterView,
    *,
    trusted: bool,
    owned: int | None,
    workers: int | None,
    duplicate: str = "",
    failures: Sequence[DependencyFailure] = (),
) -> list[str]:
    """Return the problems that may delay runs. A pause isn't one: it is intended, and shown
    separately.

    `owned`: shards with a live owner; `workers`: connected workers; None: not known yet.
    `duplicate`: the address of another daemon with this member's name.
    """
    found = [str(failure) for failure in failures]
    found += [DUPLICATE_NAME.format(duplicate)] if duplicate else [] if trusted else [UNTRUSTED]
    if view.member(view.leader) is None:
        found.append("the cluster has no leader")
    if owned is not None and owned < SHARDS:
        found.append(f"{SHARDS - owned} of {SHARDS} shards have no live owner")
    if workers == 0:
        found.append("no worker is running")
    return found


def require_trusted(cluster: Observer) -> None:
    """Raise MemberUnavailableError if this member's view of the cluster may be old."""
    if not cluster.trusted():
        raise MemberUnavailableError(
            "this member may have lost its lease in etcd: its view of the cluster may be outdated",
            reason="NOT_TRUSTED",
            remedy="see `schedctl cluster doctor`; call again when etcd answers, or call another"
            " member",
        )
