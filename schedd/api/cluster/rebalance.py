"""Rebalance the shards: compare their owners with the ideal shard map.

    members ─→ ideal shard map ─┐
    rows of shards ─→ owners ───┴─→ moves ─→ wake the leader ─→ ok once all shards have moved

The leader compares automatically once a second, so there is rarely anything to move. The call then
returns no moves.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from schedd.api import audit_diff, availability
from schedd.api.errors import FailedPreconditionError, OutcomeUnknownError
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import ClusterView
from schedd.core.cluster.partition import assign
from schedd.core.ids import ShardId, TenureId
from schedproto.v1 import cluster_service_pb2 as wire

OBJECT: Final = "cluster/shards"
ACTION: Final = "rebalance"
WITHIN: Final = 10.0
"""Seconds to wait, or less if the caller's deadline is earlier."""
LOOK_EVERY: Final = 0.05

Owners = Mapping[ShardId, TenureId | None]


async def rebalance_cluster(
    services: Services, caller: Caller, request: wire.RebalanceClusterRequest
) -> wire.RebalanceClusterResponse:
    """Rebalance the shards. `dry_run` only returns the moves, and isn't audited."""
    if request.dry_run:
        return await _rebalance(services, caller, request)
    async with audit_diff.audited(services, caller, ACTION, OBJECT, request.request_id):
        return await _rebalance(services, caller, request)


async def _rebalance(
    services: Services, caller: Caller, request: wire.RebalanceClusterRequest
) -> wire.RebalanceClusterResponse:
    availability.require_trusted(services.cluster)
    view = services.cluster.view()
    wanted = assign(view.members)
    if view.member(view.leader) is None or not wanted:
        raise FailedPreconditionError(
            "shards can't be moved: there is no leader"
            if wanted
            else "shards can't be moved: no member is eligible to own shards",
            reason="NO_LEADER" if wanted else "NO_ELIGIBLE_MEMBER",
            remedy="see `schedctl cluster members`",
        )
    before = await _owners(services)
    if request.dry_run:
        return _rebalance_response(view, before, wanted, dry_run=True)
    services.wake_ups.cluster_changed()
    with quiesce.after_commit():
        after = await _rebalanced(services, caller)
        view = services.cluster.view()
        moved = _shares(view, before), _shares(view, after)
        await services.store.audit(caller.changed(ACTION, OBJECT, *moved, request.request_id))
    return _rebalance_response(view, before, after)


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


def _rebalance_response(
    view: ClusterView, before: Owners, after: Owners, *, dry_run: bool = False
) -> wire.RebalanceClusterResponse:
    def name(tenure: TenureId | None) -> str:
        member = view.member(tenure)
        return member.name if member else ""

    return wire.RebalanceClusterResponse(
        moves=[
            wire.RebalanceClusterResponse.Move(
                shard=shard, old_owner=name(before.get(shard)), new_owner=name(owner)
            )
            for shard, owner in sorted(after.items())
            if before.get(shard) != owner
        ],
        term=view.term,
        dry_run=dry_run,
    )


def _shares(view: ClusterView, owners: Owners) -> dict[str, object]:
    """Return the number of shards of each member, by name."""
    names = {member.tenure: member.name for member in view.members}
    return dict(sorted(Counter(names.get(o, "") if o else "" for o in owners.values()).items()))
