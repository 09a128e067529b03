"""A planned change of leader: a request in etcd, which the leader and the candidates follow.

    any member ──puts `heir`──→ leader of that term: steps down
                                    └─→ no leader ──→ the heir campaigns at once, and its
                                                      victory deletes the request
                                                  └─→ the others only after HEIR_TIMEOUT

Invariants
- A request has the term in which it was made. A leader of another term deletes it.
- A request is on the lease of the requesting member. It is written only while the leader of the
  view leads and there is no other request.
- A request gives no privilege: the heir is elected like every member, and opens its own term.
"""

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

HEIR_TIMEOUT: Final = 1.0
"""Seconds that the other members wait for the heir's campaign."""

Until = Callable[[Callable[[ClusterView], bool]], Awaitable[ClusterView]]


class LeadershipTransfers:
    """Planned changes of leader. `lease`: this member's own lease, while it has one."""

    def __init__(
        self, coordination: Coordination, until: Until, lease: Callable[[], LeaseId | None]
    ) -> None:
        self._coordination = coordination
        self._until = until
        self._lease = lease

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        """Request that this tenure succeeds the leader of the view. Return False if another member
        leads now, or if there is another request.
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
        """Return the first view with a leader and a map of a later term than `term`."""
        return await self._until(lambda view: view.leader is not None and view.term > term)


async def delete_invalid_heir(coordination: Coordination, guards: Sequence[Compare]) -> None:
    """Delete an heir that no member wrote: it would block every request."""
    if (await coordination.txn([*guards, Compare.exists(HEIR)], [Delete(HEIR)])).succeeded:
        log.error("invalid etcd key deleted: %s", HEIR)


async def forget(coordination: Coordination, heir: Heir) -> None:
    await coordination.txn([Compare.value_is(HEIR, encode_heir(heir))], [Delete(HEIR)])
