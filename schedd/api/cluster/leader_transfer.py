"""A planned change of leader.

    asked of any member ─→ the wish in etcd ─→ the leader steps down ─→ the heir is elected ─→ ok

Nothing stands still meanwhile: owners go on firing by the map they have, and the new leader's first
map is the same. `ok` comes when that map is seen.

The audit has two lines, for the change itself is etcd's: "asked", written before the wish, and what
came of it. A member that dies in between leaves the first. A refused try has one line, with who
was to lead ("": nobody was named, and nobody is fit) and why.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration

from schedd.api import availability
from schedd.api.audit import refusal_audit
from schedd.api.definitions import validation
from schedd.api.errors import Aborted, FailedPrecondition, NotFound, OutcomeUnclear, cut
from schedd.api.jobs import quiesce
from schedd.api.services import Caller, Services
from schedd.core.cluster.membership import ClusterView, MemberView
from schedkit.clock import boottime
from schedproto.v1 import cluster_service_pb2 as wire

OBJECT: Final = "cluster/leader"
ACTION: Final = "transfer-leader"
WITHIN: Final = 10.0
"""Seconds to wait for the new leader, if the caller gives no deadline before."""


async def transfer_leader(
    services: Services, caller: Caller, request: wire.TransferLeaderRequest
) -> wire.TransferLeaderResponse:
    """Have the leader step down for this member, or for the fittest. Every try is audited."""
    validation.check_note(request.reason, "reason")
    view = services.cluster.view()
    began = boottime()
    wish: dict[str, object] = {"leader": cut(request.member), "reason": request.reason}
    async with refusal_audit.audited(services, caller, ACTION, OBJECT, request.request_id, wish):
        availability.need_touch(services.cluster)
        old, heir = parties(view, request.member)
        before: dict[str, object] = {"leader": old.name, "term": view.term}
        wish["leader"] = heir.name
        asked = caller.changed(ACTION, OBJECT, before, wish, request.request_id)
        await services.store.audit(replace(asked, outcome="asked"))
        if not await services.succession.ask(view, heir.tenure):
            raise Aborted(
                "leadership changed meanwhile, or another transfer is under way",
                reason="LEADER_CHANGED",
                remedy="see `schedctl cluster members`, and ask again",
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
        raise Aborted(
            f"{name or 'somebody else'} leads now, not {heir.name}",
            reason="ANOTHER_WON",
            remedy=f"see whether {heir.name} is well, and ask again",
        )
    length = Duration()
    length.FromTimedelta(timedelta(seconds=took))
    return wire.TransferLeaderResponse(
        old_leader=old.name,
        new_leader=name,
        old_term=view.term,
        new_term=after.term,
        took=length,
    )


def parties(view: ClusterView, wanted: str) -> tuple[MemberView, MemberView]:
    """Who leads, and who shall: the member of this name, or the fittest if it is empty. Pure.

    Raises:
        NotFound, FailedPrecondition: there is no such member, or it can't be.
    """
    old = view.member(view.leader)
    if old is None:
        raise FailedPrecondition(
            "there is no leader to hand over",
            reason="NO_LEADER",
            remedy="wait for the election; see `schedctl cluster members`",
        )
    if not wanted:
        return old, _fittest(view, old)
    heir = next((member for member in view.members if member.name == wanted), None)
    if heir is None:
        raise NotFound(
            f"there is no live member {cut(wanted)!r}",
            reason="NO_SUCH_MEMBER",
            remedy="see `schedctl cluster members`",
        )
    if heir == old:
        raise FailedPrecondition(
            f"{wanted} leads already",
            reason="LEADS_ALREADY",
            remedy="name another member, or none for the fittest",
        )
    if why := _unfit(heir):
        raise FailedPrecondition(
            f"{wanted} can't lead: {why}",
            reason="UNFIT",
            remedy="name another member, or none for the fittest",
        )
    return old, heir


def _fittest(view: ClusterView, old: MemberView) -> MemberView:
    """One with workers before one without, then the heaviest, then by name; of weight 0 never."""
    able = [one for one in view.members if one != old and not _unfit(one) and one.weight > 0]
    if not able:
        raise FailedPrecondition(
            "no other member can lead: each is draining, without its database, or of weight 0",
            reason="NOBODY_FIT",
            remedy="start another member, or name one of weight 0 all the same",
        )
    return min(able, key=lambda one: (not one.attached, -one.weight, one.name))


def _unfit(member: MemberView) -> str:
    if member.draining:
        return "it is draining"
    return "" if member.database else "the database doesn't answer it"


async def _followed(services: Services, caller: Caller, view: ClusterView) -> ClusterView:
    try:
        async with asyncio.timeout(min(caller.deadline or WITHIN, WITHIN)):
            return await services.succession.follows(view.term)
    except TimeoutError:
        raise OutcomeUnclear(
            "the leader was asked to step down, but no new one is seen yet",
            reason="NO_SUCCESSOR_YET",
            remedy="see `schedctl cluster members`",
        ) from None
