"""Workers that are attached to other members: reached over one hop (PROTOCOL 4).

A worker attaches to every member; one that reaches some of them only is still handed out to,
asked and cancelled, through whichever member has its stream. What comes back (results, refusals,
revoke answers) that member takes in itself, for any member may.

Invariants
- `absent` is said only when every other member has answered that the worker isn't attached there:
  then nobody was told. Without an answer it may have been.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.runs.model import Assigned, Incarnation, LiveRun
from schedd.core.runs.records import WorkerView
from schedd.runtime.definition_texts import CachedDefinition
from schedkit.records import dataclass


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """What a worker said of itself in its last heartbeat to some member."""

    at: datetime
    """By the clock by which it judges `start_by`."""
    holding: Holdings
    """What it listed as held, armed, running or spooled."""

    def lists(self, run: LiveRun) -> bool:
        """Whether it has this assignment."""
        return (run.key.run_id, run.token) in self.holding

    def never_started(self, run: LiveRun) -> bool:
        """Whether that proves that this assignment never started, nor ever will."""
        return run.start_by is not None and self.at > run.start_by and not self.lists(run)


class Elsewhere(Protocol):
    """The streams of the other members."""

    async def assign(self, handed: Sequence[tuple[Assigned, CachedDefinition]]) -> list[Assigned]:
        """Pass these on; gives those whose workers are surely attached nowhere."""
        ...

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> Collection[tuple[RunId, Token]]:
        """Ask its worker for these back; gives those that it has answered, so that are settled."""
        ...

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Have it ended, if its worker is to be found."""
        ...

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        """Its last heartbeat to one of them; None: nobody has heard it, or answers."""
        ...

    async def views(self, away: Sequence[Incarnation]) -> Sequence[WorkerView]:
        """How those of these stand that one of them hears, by the one that heard it last."""
        ...


class Nowhere:
    """There are no other members."""

    async def assign(self, handed: Sequence[tuple[Assigned, CachedDefinition]]) -> list[Assigned]:
        """All of them."""
        return [assigned for assigned, _ in handed]

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> Collection[tuple[RunId, Token]]:
        """Nobody answers."""
        del incarnation, runs
        return ()

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Nobody is told."""

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        """Nobody has."""
        del incarnation
        return None

    async def views(self, away: Sequence[Incarnation]) -> Sequence[WorkerView]:
        """None of them."""
        del away
        return ()
