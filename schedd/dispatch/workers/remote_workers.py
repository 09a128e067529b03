"""Workers that are attached to other members: reached over one hop (docs/protocol-rules.md, P4.5).

A worker attaches to every member. If it reaches only some of them, the others send assignments,
revokes and cancels through a member that has its stream. That member handles the answers (results,
refusals, revoke answers) itself, as any member may.

Invariants
- A worker counts as attached nowhere only after every other member has answered so. Then it never
  received the assignment. Without an answer it may have received it.
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
    """A worker's last heartbeat to some member."""

    at: datetime
    """Time of the heartbeat, by the clock by which the worker checks `start_by`."""
    holding: Holdings
    """Assignments that it listed as held, pre-dispatched, running or spooled."""

    def lists(self, run: LiveRun) -> bool:
        """Return whether the heartbeat lists the run's assignment."""
        return (run.key.run_id, run.token) in self.holding

    def never_started(self, run: LiveRun) -> bool:
        """Return whether the heartbeat proves that the run's assignment never started and never
        will.
        """
        return run.start_by is not None and self.at > run.start_by and not self.lists(run)


class RemoteWorkers(Protocol):
    """Sends to workers through the streams of other members."""

    async def assign(self, handed: Sequence[tuple[Assigned, CachedDefinition]]) -> list[Assigned]:
        """Forward these; return the assignments whose workers are certainly attached nowhere."""
        ...

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> Collection[tuple[RunId, Token]]:
        """Revoke assignments from their worker; return those that it resolved by an answer."""
        ...

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Send a cancel, if the run's worker is attached anywhere."""
        ...

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        """Return the worker's last heartbeat; None if no member received one, or none answers."""
        ...

    async def views(self, away: Sequence[Incarnation]) -> Sequence[WorkerView]:
        """Return the states of workers whose heartbeats other members receive, each from the member
        that received the last one.
        """
        ...


class NoRemoteWorkers:
    """No other members: a cluster of one."""

    async def assign(self, handed: Sequence[tuple[Assigned, CachedDefinition]]) -> list[Assigned]:
        """Return all: their workers are attached nowhere."""
        return [assigned for assigned, _ in handed]

    async def revoke(
        self, incarnation: IncarnationId, runs: Sequence[LiveRun]
    ) -> Collection[tuple[RunId, Token]]:
        """Return no answers: there are no other members."""
        del incarnation, runs
        return ()

    def cancel(self, run: LiveRun, *, kill: bool) -> None:
        """Do nothing: there are no other members."""

    async def last_heartbeat(self, incarnation: IncarnationId) -> LastHeartbeat | None:
        """Return None: there are no other members."""
        del incarnation
        return None

    async def views(self, away: Sequence[Incarnation]) -> Sequence[WorkerView]:
        """Return no states: there are no other members."""
        del away
        return ()
