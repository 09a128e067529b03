"""The cluster as it stands: its time, its newest view, what is asked of it."""

from datetime import datetime
from typing import Protocol

from schedd.core.checkup.facts import Facts
from schedd.core.cluster import membership
from schedd.core.ids import (
    Epoch,
    ShardId,
    TenureId,
    Term,
)

MemberView = membership.MemberView
ClusterView = membership.ClusterView


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (DESIGN, "Time")."""

    def now(self) -> datetime: ...


class Succession(Protocol):
    """Planned changes of leader."""

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        """Wish that this tenure follows the leader of the view. False: another leads by now, or
        another wish stands.
        """
        ...

    async def follows(self, term: Term) -> ClusterView:
        """The first view in which somebody leads under a later term than this one."""
        ...


class Checkup(Protocol):
    """What is known of the cluster, gathered for a person."""

    async def facts(self) -> Facts:
        """As of now. Raises nothing: what can't be read has its reason in its place."""
        ...


class Cluster(Protocol):
    """The newest view this member has."""

    def view(self) -> ClusterView: ...
    @property
    def tenure(self) -> TenureId | None:
        """This member's own tenure; None while it has none."""
        ...

    @property
    def twin(self) -> str:
        """Another daemon that serves under this member's name, so that this one can't; empty:
        none is known.
        """
        ...

    def owned(self) -> dict[ShardId, Epoch]:
        """The shards this member owns now, with their epochs."""
        ...

    def trusted(self) -> bool:
        """Whether this member may still act on its tenure (its trust window hasn't passed)."""
        ...
