"""A planned change of leader: a wish in etcd, which the leader and all who might follow it honour.

    any member ──puts `heir`──→ leader of that term: steps down
                                    └─→ nobody leads ──→ the heir campaigns at once, and its
                                                         victory deletes the wish
                                                     └─→ the others only after PATIENCE

Invariants
- The wish names the term under which it was made. A leader of another term deletes it.
- It hangs on the lease of whoever asked, and is put only while the leader that was seen leads and
  no other wish stands.
- It gives no right: the heir is elected as everybody is, and opens its own term.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from schedd.core.cluster.coordination import Compare, Delete, LeaseId, Put
from schedd.core.cluster.membership import (
    HEIR,
    LEADER,
    ClusterView,
    Heir,
    encode_heir,
    encode_leader,
)
from schedd.core.ids import TenureId, Term
from schedd.ports import Coordination

log = logging.getLogger(__name__)

PATIENCE: Final = 1.0
"""Seconds that the others leave to an heir."""

Until = Callable[[Callable[[ClusterView], bool]], Awaitable[ClusterView]]


class LeadershipTransfers:
    """The port `schedd.ports.Succession` of one member. `lease`: its own, while it has one."""

    def __init__(
        self, coordination: Coordination, until: Until, lease: Callable[[], LeaseId | None]
    ) -> None:
        self._coordination = coordination
        self._until = until
        self._lease = lease

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        """Wish that this tenure follows the leader of the view. False: another leads by now, or
        another wish stands.
        """
        lease = self._lease()
        if view.leader is None or lease is None:
            return False
        made = await self._coordination.txn(
            [Compare.value_is(LEADER, encode_leader(view.leader)), Compare.absent(HEIR)],
            [Put(HEIR, encode_heir(Heir(heir, view.term)), lease)],
        )
        return made.succeeded

    async def follows(self, term: Term) -> ClusterView:
        """The first view in which somebody leads whose map is of a later term than this one."""
        return await self._until(lambda view: view.leader is not None and view.term > term)


async def delete_invalid_heir(coordination: Coordination, guards: Sequence[Compare]) -> None:
    """Delete an heir that no member wrote: none could be asked for while it is there."""
    if (await coordination.txn([*guards, Compare.exists(HEIR)], [Delete(HEIR)])).succeeded:
        log.error("invalid etcd key deleted: %s", HEIR)


async def forget(coordination: Coordination, heir: Heir) -> None:
    """Delete this wish, if it still stands."""
    await coordination.txn([Compare.value_is(HEIR, encode_heir(heir))], [Delete(HEIR)])
