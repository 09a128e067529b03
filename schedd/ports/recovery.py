"""Marks, and what is done with a database that went back."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.cluster.data_loss_check import Mark
from schedd.core.ids import JobId, Term
from schedd.core.runs.model import AuditEntry, RunKey
from schedd.core.runs.records import StoredDefinition, WaitingRun
from schedd.core.timers.cluster_pauses import Pause, Pauses


class RecoveryStore(Protocol):
    """Each writing method is one transaction that compares the term: None or False, it is over.
    `term` None: an operator's, while no member runs.
    """

    async def read_mark(self) -> Mark:
        """Return the mark of the database."""
        ...

    async def mark(self, term: Term) -> Mark | None:
        """Write the next mark, greater than the one before."""
        ...

    async def tell(self, term: Term, entry: AuditEntry) -> bool:
        """Write an audit row."""
        ...

    async def begin(
        self,
        term: Term | None,
        until: datetime | None,
        note: Callable[[datetime, datetime, Pause | None], str],
        entry: Callable[[Pauses, Pauses], AuditEntry],
    ) -> Pause | None:
        """Pause the cluster from its newest mark on, record every worker's incarnation as lost, and
        end unfinished backfills.

        `until`: when the lost database may have gone on; None: until now. `note` is made of where
        it went back to, of that, and of the pause that lasts already. May be repeated.
        """
        ...

    async def holding(self) -> Pause | None:
        """Return the pause of a recovery that still lasts."""
        ...

    async def waiting(
        self, after: WaitingRun | None, until: datetime, limit: int
    ) -> list[WaitingRun]:
        """The next live runs behind `after`. `doubtful`: it waits, and was made by `until`."""
        ...

    async def definitions(self, jobs: Collection[JobId]) -> dict[JobId, StoredDefinition]: ...
    async def end(
        self, term: Term | None, keys: Sequence[RunKey], error: str, fingerprint: str
    ) -> int | None:
        """End those that still wait as FAILED (WORKER_LOST), dead letters; how many they were."""
        ...
