"""A tenure, one unbroken stay in the cluster, as those see it who work within it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeAlias

from schedd.cluster.ownership import Ownership
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import Epoch, ShardId, TenureId
from schedd.ports import LeaseKeeper


class TenureOver(Exception):
    """This tenure has ended, with the reason; the process continues and joins again."""


@dataclass(frozen=True, slots=True)
class LiveTenure:
    """A tenure that is being lived: what its loops need of it."""

    tenure: TenureId
    ownership: Ownership
    keeper: LeaseKeeper
    view: Callable[[], ClusterView]
    """The newest view of the cluster."""

    def trusted(self) -> bool:
        """Whether one may act on the tenure now: ask after any wait, before the first effect."""
        return self.keeper.trusted()

    def owned(self) -> dict[ShardId, Epoch]:
        """The shards that are owned now, with their epochs."""
        return dict(self.ownership.epochs)


class TenureLoop(Protocol):
    """What runs inside a tenure; `schedkit.tasks.Loop` is one."""

    @property
    def name(self) -> str: ...

    async def run(self) -> NoReturn: ...


Loops: TypeAlias = Callable[[LiveTenure], Sequence[TenureLoop]]
"""Create the loops of a tenure."""
