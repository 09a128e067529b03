"""Handing over: a member that is asked to end stays until others own what it owned.

    its key says "draining" ──→ the leader's map gives it nothing ──→ it releases, others take
                                                                         └──→ it may go

It is still a member meanwhile, and still the leader if it was: someone has to write that map.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from schedd.cluster.tenure import LiveTenure
from schedd.core.cluster.membership import MemberView
from schedd.core.ids import ShardId, TenureId
from schedd.ports import MembershipStore
from schedkit.errors import Unavailable

log = logging.getLogger(__name__)

WITHIN: Final = 2.0
"""Seconds that others have; then the member leaves, and its fenced row frees the rest."""

LOOK_EVERY: Final = 0.02


async def hand_over(store: MembershipStore, live: LiveTenure) -> None:
    """Wait until others own what this tenure owned; not for ever, and not when it is alone."""
    given = frozenset(live.owned())
    if not any(_takes_shards(member, live.tenure) for member in live.view().members):
        return
    try:
        async with asyncio.timeout(WITHIN):
            await _taken_by_others(store, given, live.tenure)
    except TimeoutError:
        log.warning("not all shards were taken within %.0f s; leaving", WITHIN)
    except Unavailable as error:
        log.warning("leaving without having handed over: %s", error)


def _takes_shards(member: MemberView, me: TenureId) -> bool:
    return member.tenure != me and member.weight > 0 and not member.draining


async def _taken_by_others(
    store: MembershipStore, given: Collection[ShardId], me: TenureId
) -> None:
    while True:
        owners = {row.id: row.owner for row in await store.read_shards()}
        if me not in owners.values() and all(owners.get(shard) for shard in given):
            return
        await asyncio.sleep(LOOK_EVERY)
