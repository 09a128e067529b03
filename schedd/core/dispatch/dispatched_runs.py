"""Dispatched runs, as an owner knows them. Pure.

    dispatched, or read as such ──add──→ in progress ──report──→ about to be stored ──pop──→ removed

Invariant: each round of dispatch calls `late` while a late run waits. Its cost depends only on the
late runs in progress, and a run that is known not to be paced is examined once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from schedd.core.ids import RunId, ShardId, Token
from schedd.core.runs.model import LiveRun

D = TypeVar("D")


class DispatchedRuns(Mapping[RunId, LiveRun]):
    """Dispatched runs by run id, each as last dispatched or read."""

    def __init__(self) -> None:
        self._runs: dict[RunId, LiveRun] = {}
        self._reported: dict[RunId, Token] = {}
        """Runs whose result has arrived but isn't stored yet. They take no slot."""
        self._late: dict[RunId, LiveRun] = {}
        """Late runs in progress, except those known not to be paced."""
        self._unpaced: dict[RunId, Token] = {}
        """Late runs that aren't paced, with their tokens. An edit of the job doesn't change
        that.
        """

    def __getitem__(self, run_id: RunId) -> LiveRun:
        return self._runs[run_id]

    def __iter__(self) -> Iterator[RunId]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._runs

    @overload
    def get(self, run_id: RunId, default: None = None, /) -> LiveRun | None: ...
    @overload
    def get(self, run_id: RunId, default: D, /) -> LiveRun | D: ...
    def get(self, run_id: RunId, default: D | None = None, /) -> LiveRun | D | None:
        return self._runs.get(run_id, default)

    @property
    def late(self) -> list[LiveRun]:
        """Late runs in progress, except those marked as `unpaced`."""
        return [*self._late.values()]

    def unpaced(self, runs: Iterable[LiveRun]) -> None:
        """Mark runs whose jobs aren't paced: their slots count for no limit."""
        for run in runs:
            self._unpaced[run.key.run_id] = run.token
            self._late.pop(run.key.run_id, None)

    def add(self, run: LiveRun) -> None:
        run_id = run.key.run_id
        self._runs[run_id] = run
        known = self._reported.get(run_id), self._unpaced.get(run_id)
        if run.late and run.token not in known:
            self._late[run_id] = run
        else:
            self._late.pop(run_id, None)

    def of_ids(self, run_ids: Iterable[RunId]) -> list[LiveRun | None]:
        """Return the runs of these ids, in order; None for one that isn't here."""
        return [*map(self._runs.get, run_ids)]

    def add_all(self, runs: Iterable[LiveRun]) -> None:
        """Add runs that were dispatched under new tokens."""
        for run in runs:
            if run.ready_at > run.due_at or run.key.run_id in self._late:
                self.add(run)
            else:
                self._runs[run.key.run_id] = run

    def report(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> list[LiveRun]:
        """Note that results of these assignments arrived. Return their runs that are here."""
        found: list[LiveRun] = []
        for run_id, token in zip(run_ids, tokens, strict=True):
            if (run := self._runs.get(run_id)) is not None:
                found.append(run)
                self._reported[run_id] = token
                if self._late and run.token == token:
                    self._late.pop(run_id, None)
        return found

    def pop(self, run_id: RunId) -> LiveRun | None:
        """Remove and return a run that its worker no longer has."""
        self._late.pop(run_id, None)
        self._unpaced.pop(run_id, None)
        self._reported.pop(run_id, None)
        return self._runs.pop(run_id, None)

    def pop_all(self, run_ids: Iterable[RunId]) -> set[RunId]:
        """Remove runs that their workers no longer have; return the ids of those that were here."""
        gone = self._runs.keys() & set(run_ids)
        for run_id in gone:
            del self._runs[run_id]
        for marks in (self._reported, self._late, self._unpaced):
            if marks:
                for run_id in gone:
                    marks.pop(run_id, None)
        return gone

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        gone = set(shards)
        for run_id in [run_id for run_id, run in self._runs.items() if run.shard in gone]:
            self.pop(run_id)
