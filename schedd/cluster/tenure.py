"""A tenure, one unbroken membership, as its loops see it."""

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeAlias

from schedd.cluster.ownership import Ownership
from schedd.core.cluster.membership import ClusterView
from schedd.core.ids import Epoch, ShardId, TenureId
from schedd.ports import LeaseKeeper
from schedkit.records import dataclass


class TenureOver(Exception):
    """This tenure has ended, with the reason; the process continues and joins again."""


@dataclass(frozen=True, slots=True)
class LiveTenure:
    tenure: TenureId
    ownership: Ownership
    keeper: LeaseKeeper
    view: Callable[[], ClusterView]
    """Function that returns the newest view of the cluster."""

    def trusted(self) -> bool:
        """Return whether this tenure may act now. Ask after any wait, before the first effect."""
        return self.keeper.trusted()

    def owned(self) -> dict[ShardId, Epoch]:
        return dict(self.ownership.epochs)


class TenureLoop(Protocol):
    """A loop that runs inside a tenure; `schedkit.tasks.Loop` is one."""

    @property
    def name(self) -> str: ...

    async def run(self) -> NoReturn: ...


Loops: TypeAlias = Callable[[LiveTenure], Sequence[TenureLoop]]
"""Function that creates the loops of a tenure."""
