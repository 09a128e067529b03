"""Dispatched runs, as an owner knows them. Pure.

    dispatched, or read as such ──add──→ in progress ──report──→ about to be stored ──pop──→ removed

Invariant: each round of dispatch calls `late` while a late run waits. Its cost depends only on the
late runs in progress, and a run that is known not to be paced is examined once.
"""

from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from typing import TypeVar, overload

from schedd.core.ids import IncarnationId, RunId, ShardId, Token
from schedd.core.runs.lifecycle import State
from schedd.core.runs.model import DispatchedBatch, LiveRun
from schedkit.records import replace

D = TypeVar("D")


class DispatchedRuns(Mapping[RunId, LiveRun]):
    """Dispatched runs by run id, each as last dispatched or read."""

    def __init__(self) -> None:
        self._runs: dict[RunId, LiveRun | DispatchedBatch] = {}
        """The runs, or the batches in which they were dispatched: an object is created for a run
        only when it is looked up. Each scan looks up all, so no batch is kept for one long run.
        """
        self._reported: dict[RunId, Token] = {}
        """Late runs whose result has arrived but isn't stored yet. They take no slot."""
        self._late: dict[RunId, LiveRun] = {}
        """Late runs in progress, except those known not to be paced."""
        self._unpaced: dict[RunId, Token] = {}
        """Late runs that aren't paced, with their tokens. An edit of the job doesn't change
        that.
        """

    def __getitem__(self, run_id: RunId) -> LiveRun:
        run = self._runs[run_id]
        if isinstance(run, DispatchedBatch):
            run = self._runs[run_id] = run.run(run.places[run_id])
        return run

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
        return self[run_id] if run_id in self._runs else default

    @property
    def ids(self) -> KeysView[RunId]:
        return self._runs.keys()

    @property
    def late(self) -> list[LiveRun]:
        """Late runs in progress, except those marked as `unpaced`."""
        return [*self._late.values()]

    def any_late(self, run_ids: Iterable[RunId]) -> bool:
        """Return whether one of these runs is late. No late run is only in its batch."""
        found = map(self._runs.get, run_ids)
        return any(isinstance(run, LiveRun) and run.late for run in found)

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

    def of_senders(
        self, ats: Iterable[tuple[RunId, Token, IncarnationId]]
    ) -> list[tuple[LiveRun, int] | None]:
        """Return the runs of these assignments, in order, each with the generation of its attempt.
        The run is as dispatched, or as it waited for its first attempt. None: the assignment isn't
        here, belongs to a broadcast, or is being canceled.
        """
        found: list[tuple[LiveRun, int] | None] = []
        for run_id, token, sender in ats:
            here, one = self._runs.get(run_id), None
            if isinstance(here, DispatchedBatch):
                place = here.places[run_id]
                if here.tokens[place] == token and here.first.incarnation == sender:
                    one = here.runs[place], here.first.generation
            elif (
                here is not None
                and here.token == token
                and here.incarnation == sender
                and here.state is State.RUNNING
                and not (here.cancelling or here.parent)
            ):
                one = here, here.generation
            found.append(one)
        return found

    def add_batch(self, batch: DispatchedBatch) -> None:
        """Add runs that were dispatched under new tokens, without their payloads."""
        if batch.runs[0] is batch.first:
            self._runs.update(zip(batch.places, batch.runs, strict=True))
        else:
            batch = replace(batch, payloads=()) if batch.payloads else batch
            self._runs.update(dict.fromkeys(batch.places, batch))
        for place, run in enumerate(batch.runs):
            if run.ready_at > run.due_at or run.key.run_id in self._late:
                self.add(batch.run(place))

    def report(self, run_ids: Sequence[RunId], tokens: Sequence[Token]) -> None:
        """Note that results of these assignments arrived: late runs among them take no slot."""
        if self._late:
            for run_id, token in zip(run_ids, tokens, strict=True):
                if (run := self._late.get(run_id)) is not None and run.token == token:
                    del self._late[run_id]
                    self._reported[run_id] = token

    def discard(self, run_id: RunId) -> bool:
        """Remove a run that its worker no longer has; return whether it was here."""
        self._late.pop(run_id, None)
        self._unpaced.pop(run_id, None)
        self._reported.pop(run_id, None)
        return self._runs.pop(run_id, None) is not None

    def pop_all(self, run_ids: Iterable[RunId]) -> set[RunId]:
        """Remove runs that their workers no longer have; return the ids of those that were here."""
        gone = self._runs.keys() & run_ids
        for run_id in gone:
            del self._runs[run_id]
        for marks in (self._reported, self._late, self._unpaced):
            if marks:
                for run_id in gone:
                    marks.pop(run_id, None)
        return gone

    def drop_shards(self, shards: Iterable[ShardId]) -> None:
        gone = set(shards)
        found = self._runs.items()
        for run_id in [one for one, here in found if _as_known(here, one).shard in gone]:
            self.discard(run_id)


def _as_known(here: LiveRun | DispatchedBatch, run_id: RunId) -> LiveRun:
    """Return a run as dispatched, or as it waited for its first attempt."""
    return here.runs[here.places[run_id]] if isinstance(here, DispatchedBatch) else here
