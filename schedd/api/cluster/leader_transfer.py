"""A planned change of leader.

    call to any member ─→ request in etcd ─→ the leader steps down ─→ the successor is elected ─→ ok

Owners continue to fire meanwhile by their shard map, and the new leader's first map is the same.
`ok` means that this map was published.

The change is made in etcd, so the audit log has two lines: "asked", written before the request, and
the outcome. If the member stops in between, only the first is written. A rejected call has one
line, with the requested leader ("" if none was named and no member is eligible) and the reason.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration

from schedd.api import audit_diff, availability
from schedd.api.definitions import validation
from schedd.api.errors import (
    AbortedError,
    FailedPreconditionError,
    OutcomeUnknownError,
    cut,
    not_found,
)
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import ClusterView, MemberView
from schedkit.clock import boottime
from schedproto.v1 import cluster_service_pb2 as wire

OBJECT: Final = "cluster/leader"
ACTION: Final = "transfer-leader"
WITHIN: Final = 10.0
"""Seconds to wait for the new leader, or less if the caller's deadline is earlier."""


async def transfer_leader(
    services: Services, caller: Caller, request: wire.TransferLeaderRequest
) -> wire.TransferLeaderResponse:
    """Make this member, or the most eligible one, the leader. Every call is audited."""
    validation.check_note(request.reason, "reason")
    view = services.cluster.view()
    began = boottime()
    requested: dict[str, object] = {"leader": cut(request.member), "reason": request.reason}
    async with audit_diff.audited(services, caller, ACTION, OBJECT, request.request_id, requested):
        availability.require_trusted(services.cluster)
        old, heir = parties(view, request.member)
        before: dict[str, object] = {"leader": old.name, "term": view.term}
        requested["leader"] = heir.name
        asked = caller.changed(ACTION, OBJECT, before, requested, request.request_id)
        await services.store.audit(replace(asked, outcome="asked"))
        if not await services.succession.ask(view, heir.tenure):
            raise AbortedError(
                "leadership wasn't transferred: the leader changed meanwhile, or another transfer"
                " is in progress",
                reason="LEADER_CHANGED",
                remedy="see `schedctl cluster members`, then call again",
            )
        with quiesce.after_commit():
            after = await _followed(services, caller, view)
            took = boottime() - began
            new = after.member(after.leader)
            name = new.name if new else ""
            became = {"leader": name, "term": after.term, "reason": request.reason}
            await services.store.audit(
                caller.changed(ACTION, OBJECT, before, became, request.request_id)
            )
    if new is None or new.tenure != heir.tenure:
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
    if heir == old:
        raise FailedPreconditionError(
            f"member {wanted} is already the leader",
            reason="LEADS_ALREADY",
            remedy="name another member, or name none: the cluster then chooses a member",
        )
    if why := _unfit(heir):
        raise FailedPreconditionError(
            f"member {wanted} can't become leader: {why}",
            reason="UNFIT",
            remedy="name another member, or name none: the cluster then chooses a member",
        )
    return old, heir


def _fittest(view: ClusterView, old: MemberView) -> MemberView:
    """Return a member with workers if there is one, then by weight, then by name. Weight 0 is never
    chosen.
    """
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


async def _followed(services: Services, caller: Caller, view: ClusterView) -> ClusterView:
    try:
        async with asyncio.timeout(min(caller.deadline or WITHIN, WITHIN)):
            return await services.succession.follows(view.term)
    except TimeoutError:
        raise OutcomeUnknownError(
            "the leader was asked to step down, but no new leader has been elected yet",
            reason="NO_SUCCESSOR_YET",
            remedy="see `schedctl cluster members`",
        ) from None
