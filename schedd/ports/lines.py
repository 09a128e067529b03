"""Between members and workers: hints, revokes, and waiting for changes."""

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
        """These were inserted just now: an owner that is here needs no look for them."""
        ...

    def runs_changed(self, hints: Sequence[Hint]) -> None:
        """Somebody may be watching these runs, here or at another member."""
        ...

    def cluster_changed(self) -> None:
        """The cluster was paused or resumed, or its map is to be looked at: everybody looks."""
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
        """How each of these stands, by whichever member heard it last."""
        ...


class Refusals(Protocol):
    """Which workers have refused runs, as the member that hands them out was told."""

    async def of(self, shard: ShardId, job: JobId, generation: int) -> Mapping[IncarnationId, str]:
        """Those that can't run this job, of this shard, as it is defined now, and why, in words."""
        ...


class Watching(Protocol):
    """One who waits for runs to change."""

    def wake(self) -> None:
        """Have `wait` return: there is something else to see."""
        ...

    async def wait(self, timeout: float) -> None:
        """Return when one of them may have changed since the last time, at the latest after
        `timeout` seconds.
        """
        ...


class Changes(Protocol):
    """Waiting for runs to change."""

    def watching(self, runs: Sequence[RunId]) -> AbstractContextManager[Watching]:
        """For this block somebody waits for changes of these, again and again."""
        ...


class Reader(Protocol):
    """One who reads along what an attempt writes."""

    def take(self) -> Sequence[run_pb2.LogPiece]:
        """What came since the last time; at first all that is kept of it comes."""
        ...


class Advances(Protocol):
    """How far running attempts are, as this member was told."""

    def of(self, run: LiveRun) -> run_pb2.RunProgress | None:
        """How far it is; None when it doesn't run, or nothing was told here."""
        ...

    def blocks(self, worker: IncarnationId | None) -> Sequence[worker_service_pb2.Blocking]:
        """Handlers that block event loops of this worker."""
        ...


class Tails(Protocol):
    """Reading along what runs write, at this member."""

    def following(self, run: LiveRun, wake: Callable[[], None]) -> AbstractContextManager[Reader]:
        """For this block somebody reads along the attempt that runs now; `wake` is called when
        there is something to take.
        """
        ...
