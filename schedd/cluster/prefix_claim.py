"""The claim of this member's cluster on its etcd prefix: created if absent, compared at each join.

A running member isn't ready if it reads another cluster's claim, or if its database has become
another cluster's. It joins again when both agree.
"""

import logging
from typing import Final

from schedd.core.cluster.coordination import Compare, Put
from schedd.core.cluster.data_loss_check import Lineage
from schedd.core.cluster.etcd_values import InvalidValue
from schedd.core.cluster.prefix_owner import CLUSTER, PrefixOwner, decode, encode, refusal
from schedd.core.ids import Id
from schedd.ports import Coordination
from schedkit.errors import Misconfigured
from schedkit.records import replace

log = logging.getLogger(__name__)

ATTEMPTS: Final = 3


class PrefixClaim:
    """This member's claim, and the owner in etcd. `root`: the prefix, for messages."""

    def __init__(
        self, coordination: Coordination, own: PrefixOwner, root: str, lineage: Lineage
    ) -> None:
        self._coordination = coordination
        self._own = own
        self._root = root
        self._lineage = lineage
        self.owner: PrefixOwner | None = None
        """The owner that was read last; None: none was read."""
        self.refused = ""
        """Why this member can't use the prefix; empty: it can, or that isn't known."""

    @property
    def prefix_id(self) -> Id | None:
        return self.owner.prefix_id if self.owner is not None else None

    async def check(self, cluster_id: str) -> bool:
        """Create the claim if there is none, and compare it with the database's cluster. Return
        whether both agree. Raises Unavailable.
        """
        try:
            owner = await self._read()
        except InvalidValue as error:
            refused = f"{error}. Delete the key, or run `schedd claim-prefix`"
        else:
            self.record_owner(owner)
            mine = replace(self._own, cluster_id=cluster_id)
            refused = refusal(owner, mine, self._root)
        if refused and refused != self.refused:
            log.error("etcd prefix rejected: %s", refused)
        self.refused = refused
        return not refused

    def record_owner(self, owner: PrefixOwner) -> None:
        """Store the owner read from etcd: from now on, reject databases of other clusters."""
        self.owner = owner
        self._lineage.expected = owner.cluster_id

    async def check_at_start(self, cluster_id: str) -> None:
        """Check like `check`, for a member that hasn't served yet. Raises Misconfigured: the
        prefix belongs to another cluster. Raises Unavailable: etcd doesn't answer.
        """
        if not await self.check(cluster_id):
            raise Misconfigured(self.refused)

    async def _read(self) -> PrefixOwner:
        for _ in range(ATTEMPTS):
            entry = await self._coordination.get(CLUSTER)
            if entry is not None:
                return decode(entry)
            put = Put(CLUSTER, encode(self._own))
            await self._coordination.txn([Compare.absent(CLUSTER)], [put])
        return self._own
