"""Change the cluster: pause and resume it, transfer the leadership, rebalance the shards.

`ok` means that the change is complete: nothing can start any more, the new leader's first map was
published, or all shards have moved.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration

from schedd.api import audit_diff
from schedd.api.cluster.cluster import get_cluster, name_of, require_trusted
from schedd.api.definitions import validation
from schedd.api.errors import (
    AbortedError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    OutcomeUnknownError,
    cut,
    not_found,
)
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import ClusterView, MemberView
from schedd.core.cluster.partition import assign
from schedd.core.ids import ShardId, TenureId
from schedd.core.runs.model import AuditRecord
from schedd.core.schedule.cron import EPOCH
from schedd.core.timers.cluster_pauses import Pauses
from schedkit.clock import boottime
from schedproto.v1 import cluster_service_pb2 as wire

WITHIN: Final = 10.0
"""Seconds to wait for a leader or for moves, or less if the caller's deadline is earlier."""
CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""By which a caller's clock may be ahead of cluster time."""

# Pause and resume. While the cluster is paused, nothing fires and nothing starts; calls still work.
# Like the pause of a job, a pause waits for dispatched attempts (`quiesce`), here of all jobs.


async def pause_cluster(
    services: Services, caller: Caller, request: wire.PauseClusterRequest
) -> wire.Cluster:
    """Pause the cluster until it is resumed. Pausing again replaces the note, if one is given."""

    def entry(before: Pauses, after: Pauses) -> AuditRecord:
        return caller.changed(
            "pause", "cluster", _pause_state(before), _pause_state(after), request.request_id
        )

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
        ended = _pause_state(after) | chosen
        return caller.changed("resume", "cluster", _pause_state(before), ended, request.request_id)

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


def _pause_state(pauses: Pauses) -> dict[str, object]:
    present = pauses.present
    if present is None:
        return {"paused": False}
    state: dict[str, object] = {"paused": True, "by": present.by, "note": present.note}
    return state | {"recovering": True} if present.recovering else state


# Transfer the leadership.
#
#     call to any member ─→ request in etcd ─→ the leader steps down ─→ a successor is elected ─→ ok
#
# Owners continue to fire meanwhile by their shard map, and the new leader's first map is the same.
# The change is made in etcd, so the audit log has two lines: "asked", written before the request,
# and the outcome. If the member stops in between, only the first is written. A rejected call has
# one line, with the requested leader ("" if none was named and none is eligible) and the reason.

LEADER: Final = "cluster/leader"
"""The object of a transfer in the audit log."""
_TRANSFER: Final = ("transfer-leader", LEADER)


async def transfer_leader(
    services: Services, caller: Caller, request: wire.TransferLeaderRequest
) -> wire.TransferLeaderResponse:
    """Make this member, or the most eligible one, the leader. Every call is audited."""
    validation.check_note(request.reason, "reason")
    view = services.cluster.view()
    began = boottime()
    requested: dict[str, object] = {"leader": cut(request.member), "reason": request.reason}
    async with audit_diff.audited(services, caller, *_TRANSFER, request.request_id, requested):
        require_trusted(services.cluster)
        old, heir = parties(view, request.member)
        before: dict[str, object] = {"leader": old.name, "term": view.term}
        requested["leader"] = heir.name
        asked = caller.changed(*_TRANSFER, before, requested, request.request_id)
        await services.store.audit(replace(asked, outcome="asked"))
        if not await services.succession.ask(view, heir.tenure):
            raise AbortedError(
                "leadership wasn't transferred: the leader changed meanwhile, or another transfer"
                " is in progress",
                reason="LEADER_CHANGED",
                remedy="see `schedctl cluster members`, then call again",
            )
        with quiesce.after_commit():
            try:
                async with asyncio.timeout(min(caller.deadline or WITHIN, WITHIN)):
                    after = await services.succession.follows(view.term)
            except TimeoutError:
                raise OutcomeUnknownError(
                    "the leader was asked to step down, but no new leader has been elected yet",
                    reason="NO_SUCCESSOR_YET",
                    remedy="see `schedctl cluster members`",
                ) from None
            took = boottime() - began
            name = name_of(after, after.leader)
            became = {"leader": name, "term": after.term, "reason": request.reason}
            await services.store.audit(
                caller.changed(*_TRANSFER, before, became, request.request_id)
            )
    if after.leader != heir.tenure or not name:
        raise AbortedError(
            f"{name or 'another member'} was elected leader, not {heir.name}",
            reason="ANOTHER_WON",
            remedy=f"check member {heir.name} with `schedctl cluster doctor`, then call again",
        )
    length = Duration()
    length.FromTimedelta(timedelta(seconds=took))
    return wire.TransferLeaderResponse(
        old_leader=old.name,
        new_leader=name,
        old_term=view.term,
        new_term=after.term,
        duration=length,
    )


def parties(view: ClusterView, wanted: str) -> tuple[MemberView, MemberView]:
    """Return the leader and its successor: the member `wanted`, or if empty the most eligible one.
    Pure.

    Raises:
        NotFoundError: no such member. FailedPreconditionError: it can't become leader.
    """
    old = view.member(view.leader)
    if old is None:
        raise FailedPreconditionError(
            "leadership can't be transferred: there is no leader",
            reason="NO_LEADER",
            remedy="wait for the election; see `schedctl cluster members`",
        )
    if not wanted:
        return old, _fittest(view, old)
    heir = next((member for member in view.members if member.name == wanted), None)
    if heir is None:
        raise not_found("member", repr(cut(wanted)), "cluster members")
    why = _unfit(heir)
    if heir == old or why:
        leads = f"member {wanted} is already the leader"
        raise FailedPreconditionError(
            leads if heir == old else f"member {wanted} can't become leader: {why}",
            reason="LEADS_ALREADY" if heir == old else "UNFIT",
            remedy="name another member, or name none: the cluster then chooses a member",
        )
    return old, heir


def _fittest(view: ClusterView, old: MemberView) -> MemberView:
    """Return a member with workers if there is one, then by weight (never 0), then by name."""
    able = [one for one in view.members if one != old and not _unfit(one) and one.weight > 0]
    if not able:
        raise FailedPreconditionError(
            "no other member can become leader: each other member is draining, can't reach"
            " PostgreSQL, or has weight 0",
            reason="NO_ELIGIBLE_MEMBER",
            remedy="start another member, or name a member with weight 0",
        )
    return min(able, key=lambda one: (not one.attached, -one.weight, one.name))


def _unfit(member: MemberView) -> str:
    if member.draining:
        return "it is draining"
    return "" if member.database else "it can't reach PostgreSQL"


# Rebalance: compare the owners of the shards with the ideal shard map.
#
#     members ─→ ideal shard map ─┐
#     rows of shards ─→ owners ───┴─→ moves ─→ wake the leader ─→ ok once all shards have moved
#
# The leader compares automatically once a second, so there is rarely anything to move.

_REBALANCE: Final = ("rebalance", "cluster/shards")
LOOK_EVERY: Final = 0.05

Owners = Mapping[ShardId, TenureId | None]


async def rebalance_cluster(
    services: Services, caller: Caller, request: wire.RebalanceClusterRequest
) -> wire.RebalanceClusterResponse:
    """Rebalance the shards. `dry_run` only returns the moves, and isn't audited."""
    audited = audit_diff.audited(services, caller, *_REBALANCE, request.request_id)
    async with nullcontext() if request.dry_run else audited:
        require_trusted(services.cluster)
        view = services.cluster.view()
        after: Owners = assign(view.members)
        if view.member(view.leader) is None or not after:
            why = "there is no leader" if after else "no member is eligible to own shards"
            raise FailedPreconditionError(
                f"shards can't be moved: {why}",
                reason="NO_LEADER" if after else "NO_ELIGIBLE_MEMBER",
                remedy="see `schedctl cluster members`",
            )
        before = await _owners(services)
        if not request.dry_run:
            services.wake_ups.cluster_changed()
            with quiesce.after_commit():
                after = await _rebalanced(services, caller)
                view = services.cluster.view()
                moved = _shares(view, before), _shares(view, after)
                await services.store.audit(caller.changed(*_REBALANCE, *moved, request.request_id))
    return wire.RebalanceClusterResponse(
        moves=[
            wire.RebalanceClusterResponse.Move(
                shard=shard,
                old_owner=name_of(view, before.get(shard)),
                new_owner=name_of(view, owner),
            )
            for shard, owner in sorted(after.items())
            if before.get(shard) != owner
        ],
        term=view.term,
        dry_run=request.dry_run,
    )


async def _owners(services: Services) -> Owners:
    return {row.id: row.owner for row in await services.membership.read_shards()}


async def _rebalanced(services: Services, caller: Caller) -> Owners:
    """Return the owners once they match the ideal shard map."""
    try:
        async with asyncio.timeout(min(caller.deadline or WITHIN, WITHIN)):
            while True:
                owners = await _owners(services)
                if owners == assign(services.cluster.view().members):
                    return owners
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        raise OutcomeUnknownError(
            "the rebalance hasn't completed: some shards are still moving to their new owners",
            reason="STILL_MOVING",
            remedy="wait, then see `schedctl cluster shards`; if shards don't move, run `schedctl"
            " cluster doctor`",
        ) from None


def _shares(view: ClusterView, owners: Owners) -> dict[str, object]:
    names = {member.tenure: member.name for member in view.members}
    return dict(sorted(Counter(names.get(o, "") if o else "" for o in owners.values()).items()))
