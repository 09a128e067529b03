"""Messages between members and workers: hints, revokes, and waiting for changes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from schedd.core.ids import (
    Hint,
    IncarnationId,
    JobId,
    RunId,
    ShardId,
)
from schedd.core.runs.model import Incarnation, LiveRun
from schedd.core.runs.records import WorkerView
from schedproto.v1 import run_pb2, worker_service_pb2


class Nudges(Protocol):
    """Hints to the owners; never awaited, never needed for correctness."""

    def jobs_changed(self, changed: Sequence[tuple[JobId, ShardId]]) -> None:
        """Timers of these jobs were written: their owners read them now."""
        ...

    def runs_ready(self, shards: Sequence[ShardId]) -> None:
        """Runs were inserted or made ready in these shards."""
        ...

    def runs_made(self, runs: Sequence[LiveRun]) -> None:
        """These runs were inserted: an owner at this member needs no scan to find them."""
        ...

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Send hints of these runs to watchers, here and at other members."""
        ...

    def cluster_changed(self) -> None:
        """The cluster was paused or resumed, or its map may have changed: all members read it."""
        ...


class WorkerLines(Protocol):
    """The streams to the workers that are attached to this member."""

    async def revoke(self, runs: Sequence[LiveRun]) -> object:
        """Ask the workers to give up these assignments if they haven't started. Returns when each
        was revoked, was reported started, or its `start_by` has passed.
        """
        ...

    def cancel(self, run: LiveRun, *, kill: bool = False) -> None: ...
    def workers(self) -> list[WorkerView]: ...
    async def views(self, incarnations: Sequence[Incarnation]) -> list[WorkerView]:
        """Return the state of each, from the member that received its last heartbeat."""
        ...


class Refusals(Protocol):
    """Workers that refused runs, as known to the member that dispatches them."""

    async def of(self, shard: ShardId, job: JobId, generation: int) -> Mapping[IncarnationId, str]:
        """Return the workers that can't run this generation of the job, each with the reason."""
        ...


class Watching(Protocol):
    """Waits for changes of some runs."""

    def wake(self) -> None:
        """Make `wait` return."""
        ...

    async def wait(self, timeout: float) -> None:
        """Return when one of them may have changed since the last time, at the latest after
        `timeout` seconds.
        """
        ...


class Changes(Protocol):
    """Waiters for changes of runs."""

    def watching(self, runs: Sequence[RunId]) -> AbstractContextManager[Watching]:
        """Return a waiter for changes of these runs, valid for the block."""
        ...


class Reader(Protocol):
    """Reads the output of one attempt live."""

    def take(self) -> Sequence[run_pb2.LogPiece]:
        """Return the pieces since the last call; the first call returns all that are kept."""
        ...


class Advances(Protocol):
    """Progress of running attempts, as reported to this member."""

    def of(self, run: LiveRun) -> run_pb2.RunProgress | None:
        """Return the progress of a run; None if it isn't running or reported none here."""
        ...

    def blocks(self, worker: IncarnationId | None) -> Sequence[worker_service_pb2.Blocking]:
        """Handlers that block event loops of this worker."""
        ...


class Tails(Protocol):
    """Followers of the output of runs, at this member."""

    def following(self, run: LiveRun, wake: Callable[[], None]) -> AbstractContextManager[Reader]:
        """Follow the output of the running attempt for the length of the block. `wake` is called
        when there are pieces to take.
        """
        ...
