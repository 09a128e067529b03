"""How far running attempts are, as their workers have told this member: the newest of each.

    attempt ─→ worker ──Progress, to each member it is attached to──→ came ─→ who asks here

It is shown and nothing else: no decision stands on it, and none of it is stored. A worker tells it
all anew on each new stream.

Invariants
- Of a run is shown what the incarnation told that it was handed to, under its present token.
- What a worker doesn't hold any more, by its heartbeat, is forgotten; all, when its stream is gone.
- At most one entry for each run that is RUNNING on that worker, by its last heartbeat: what it says
  of any other run isn't kept. Before its first heartbeat, `MOST_BEFORE` entries at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schedd.core.dispatch.packed_runs import Holdings
from schedd.core.ids import IncarnationId, RunId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import LiveRun
from schedproto.v1 import run_pb2, worker_service_pb2

MOST_BEFORE: Final = 64
"""Entries of a worker that its last heartbeat doesn't list: of runs that started since."""


class MemberProgress:
    """The port of this name."""

    def __init__(self) -> None:
        self._told: dict[IncarnationId, dict[tuple[RunId, Token], run_pb2.RunProgress]] = {}
        self._held: dict[IncarnationId, Holdings] = {}
        """What each worker runs, by its last heartbeat."""
        self._blocking: dict[IncarnationId, Sequence[worker_service_pb2.Blocking]] = {}

    def came(
        self, sender: IncarnationId, run: RunId, token: Token, progress: run_pb2.RunProgress
    ) -> None:
        """A worker says that this attempt is so far."""
        told = self._told.setdefault(sender, {})
        held = self._held.get(sender)
        if (run, token) in told or len(told) < MOST_BEFORE or (held and (run, token) in held):
            told[run, token] = progress

    def blocking(
        self, sender: IncarnationId, blocking: Sequence[worker_service_pb2.Blocking]
    ) -> None:
        """Handlers that block event loops of this worker now, by its last heartbeat."""
        if blocking:
            self._blocking[sender] = blocking
        else:
            self._blocking.pop(sender, None)

    def held(self, sender: IncarnationId, holding: Holdings) -> None:
        """A worker has these in hand, and nothing else."""
        self._held[sender] = holding
        if told := self._told.get(sender):
            self._told[sender] = {at: said for at, said in told.items() if at in holding}

    def gone(self, sender: IncarnationId) -> None:
        """Its stream is over."""
        self._told.pop(sender, None)
        self._held.pop(sender, None)
        self._blocking.pop(sender, None)

    def of(self, run: LiveRun) -> run_pb2.RunProgress | None:
        """How far it is; None when it doesn't run, or nothing was told here."""
        if run.state is not State.RUNNING or run.incarnation is None:
            return None
        return self._told.get(run.incarnation, {}).get((run.key.run_id, run.token))

    def blocks(self, worker: IncarnationId | None) -> Sequence[worker_service_pb2.Blocking]:
        """Handlers that block event loops of this worker, by its last heartbeat."""
        return () if worker is None else self._blocking.get(worker, ())
