"""The cluster: its time, its newest view, requests to it."""

from datetime import datetime
from typing import Protocol

from schedd.core.checkup.facts import Facts
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import (
    Epoch,
    ShardId,
    TenureId,
    Term,
)


class ClusterClock(Protocol):
    """Cluster time: the member's monotonic clock mapped onto the database's (docs/glossary.md)."""

    def now(self) -> datetime: ...


class Succession(Protocol):
    """Planned changes of leader."""

    async def ask(self, view: ClusterView, heir: TenureId) -> bool:
        """Request that this tenure becomes the next leader. False: the leader has changed, or
        another request exists.
        """
        ...

    async def follows(self, term: Term) -> ClusterView:
        """Return the first view with a leader of a later term."""
        ...


class Checkup(Protocol):
    """Facts about the cluster, for diagnostics."""

    async def facts(self) -> Facts:
        """Return the current facts. Raises nothing: facts that can't be read have the reason."""
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
