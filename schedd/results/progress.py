"""Progress of running attempts, as workers last reported it to this member.

    attempt ─→ worker ──Progress, to each member it is attached to──→ came ─→ callers here

Progress is only displayed: no decision depends on it, and it isn't stored. A worker sends all of it
again on each new stream.

Invariants
- Only progress from the run's own incarnation, under its current token, is shown.
- Progress of runs that the worker's heartbeat doesn't list is deleted; all of it when its stream
  ends.
- One entry for each run that the worker's last heartbeat lists. Before the first heartbeat,
  `MOST_BEFORE` entries at most.
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
"""Most entries of a worker that its last heartbeat doesn't list: runs that started since."""


class MemberProgress:
    """Progress of running attempts, as reported to this member."""

    def __init__(self) -> None:
        self._progress: dict[IncarnationId, dict[tuple[RunId, Token], run_pb2.RunProgress]] = {}
        self._held: dict[IncarnationId, Holdings] = {}
        """Runs of each worker, by its last heartbeat."""
        self._blocking: dict[IncarnationId, Sequence[worker_service_pb2.Blocking]] = {}

    def record_progress(
        self, sender: IncarnationId, run: RunId, token: Token, progress: run_pb2.RunProgress
    ) -> None:
        """Keep the progress of an attempt."""
        known = self._progress.setdefault(sender, {})
        held = self._held.get(sender)
        if (run, token) in known or len(known) < MOST_BEFORE or (held and (run, token) in held):
            known[run, token] = progress

    def blocking(
        self, sender: IncarnationId, blocking: Sequence[worker_service_pb2.Blocking]
    ) -> None:
        """Keep the handlers that block event loops of this worker now, by its last heartbeat."""
        if blocking:
            self._blocking[sender] = blocking
        else:
            self._blocking.pop(sender, None)

    def held(self, sender: IncarnationId, holding: Holdings) -> None:
        """Keep the runs that a worker holds; forget the progress of others."""
        self._held[sender] = holding
        if known := self._progress.get(sender):
            self._progress[sender] = {at: said for at, said in known.items() if at in holding}

    def remove_worker(self, sender: IncarnationId) -> None:
        """Forget a worker whose stream ended."""
        self._progress.pop(sender, None)
        self._held.pop(sender, None)
        self._blocking.pop(sender, None)

    def progress_of(self, run: LiveRun) -> run_pb2.RunProgress | None:
        """Return the progress of a run; None if it isn't running or reported none here."""
        if run.state is not State.RUNNING or run.incarnation is None:
            return None
        return self._progress.get(run.incarnation, {}).get((run.key.run_id, run.token))

    def blocks(self, worker: IncarnationId | None) -> Sequence[worker_service_pb2.Blocking]:
        """Return the handlers that block event loops of this worker, by its last heartbeat."""
        return () if worker is None else self._blocking.get(worker, ())
