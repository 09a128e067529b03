"""Joins at jobs of the owned shards: what has ended of a cycle becomes the child's run.

    due, read ─→ definitions ─→ what the parents gave back, where it is wanted
              ─→ one transaction a lane: judge, insert, take the arrivals away ─→ the board

What is judged, and that it is judged once, is `store/results/chain_joins.py`'s: this loop only
asks. It looks often, for a chain is as quick as its joins are found; a look that finds none is a
walk into one index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from schedd.cluster.owner_transactions import Failed, Transactor
from schedd.core.ids import JobId, RunId
from schedd.core.jobs.chains import Join, ParentEnded, Wanted
from schedd.core.jobs.definition import Definition, Delivery
from schedd.core.runs.redrive import line_of
from schedd.dispatch.run_index import RunIndex
from schedd.ports import ChainStore, ClusterClock
from schedd.runtime.definition_cache import DefinitionCache
from schedd.runtime.definition_texts import CachedDefinition
from schedd.sources.chain_backoff import Key, SlowJoins, key_of
from schedd.sources.chain_payload import handed_on
from schedkit.errors import TookTooLong
from schedkit.set_aside import set_aside
from schedkit.tasks import Loop

log = logging.getLogger(__name__)

LOOK_EVERY: Final = 0.25
WHILE_FED: Final = 0.02
"""Seconds until the next look after one that found something."""
MOST_RESULTS: Final = 64
"""Of parents, read for one step: 4 MiB."""
STUCK_FOR: Final = timedelta(seconds=30)
"""Until a join is looked at again whose job's definition can't be read here, or that the database
refuses: it must not keep the others from their turn.
"""
MOST_TRIES: Final = 5


class Chains:
    """The loop that makes the runs of chains."""

    def __init__(
        self,
        board: RunIndex,
        catalogue: DefinitionCache,
        store: ChainStore,
        transactor: Transactor,
        clock: ClusterClock,
    ) -> None:
        self._board = board
        self._catalogue = catalogue
        self._store = store
        self._transactor = transactor
        self._clock = clock
        self._ready: Callable[[], None] = lambda: None
        self._tried: dict[Key, int] = {}
        """What was judged at the last looks, in a row, and is due all the same."""
        self._slow = SlowJoins()
        self.loop = Loop("chains", self.step, interval=LOOK_EVERY)
        board.ownership.listen(lambda gained, _dropped: self.loop.wake() if gained else None)

    def on_ready(self, told: Callable[[], None]) -> None:
        """Have `told()` called when runs became ready."""
        self._ready = told

    async def step(self) -> float:
        """Judge what is due; seconds until the next look."""
        shards = sorted(self._board.ownership.epochs)
        due = await self._store.due(shards) if shards else []
        here = {key_of(one) for one in due}
        self._tried = {key: times for key, times in self._tried.items() if key in here}
        if not due:
            return LOOK_EVERY
        # What is due again may have been refused for an old definition.
        self._catalogue.forget({child for child, _ in self._tried})
        known = await self._catalogue.newest({one.child for one in due})
        wanted = await self._wanted(due, known)
        later: dict[timedelta, list[Join]] = {}
        judged: set[Key] = set()
        for part in self._slow.parts(wanted):
            judged |= {key_of(one.join) for one in part}
            for join, wait in await self._judge(part):
                later.setdefault(wait, []).append(join)
        later.setdefault(STUCK_FOR, []).extend(
            [
                *(one for one in due if self._is_stuck(one, known.get(one.child))),
                *self._slow.left(wanted, judged),
            ]
        )
        for wait, joins in later.items():
            await self._put_off(joins, wait)
        return WHILE_FED

    async def _judge(self, part: Sequence[Wanted]) -> list[tuple[Join, timedelta]]:
        """Have these judged; gives those that took too long, and how long they are to wait."""
        answers = await self._transactor.by_lane(part, self._store.join)
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        made = [run for runs in answers if not isinstance(runs, Failed) for run in runs]
        if self._board.put_runs(made, self._clock.now()):
            self._ready()
        for answer in failed:
            if not isinstance(answer.error, TookTooLong):
                raise answer.error
        out = {key_of(one.join) for answer in failed for one in answer.items}
        done = [one for one in part if key_of(one.join) not in out]
        for one in done:
            key = key_of(one.join)
            self._tried[key] = self._tried.get(key, 0) + 1
        self._slow.done(done)
        return self._slow.failed([answer.items for answer in failed])

    async def _put_off(self, joins: Sequence[Join], wait: timedelta) -> None:
        if joins:
            await self._transactor.rows(
                joins, lambda claim, mine: self._store.put_off(claim, mine, wait)
            )

    def _give_up(self, one: Join, _error: Exception) -> None:
        """It is put off for longer."""
        self._tried[one.child, one.cycle] = MOST_TRIES

    def _is_stuck(self, one: Join, entry: CachedDefinition | None) -> bool:
        readable = entry is not None and entry.definition.after is not None
        return not readable or self._tried.get(key_of(one), 0) >= MOST_TRIES

    async def _wanted(
        self, due: Sequence[Join], known: Mapping[JobId, CachedDefinition]
    ) -> list[Wanted]:
        """As many as may be judged in one step, each with what it is handed."""
        chosen: list[tuple[Join, Definition]] = []
        results: set[RunId] = set()
        for one in due:
            entry = known.get(one.child)
            if entry is None or entry.definition.after is None:
                continue
            if entry.definition.after.with_output and len(results) >= MOST_RESULTS:
                continue
            chosen.append((one, entry.definition))
            if entry.definition.after.with_output:
                results |= {ended.run_id for ended in _ended(one).values()}
        read = await self._store.results(results) if results else {}
        wanted: list[Wanted] = []
        for one, definition in chosen:
            # Whatever a result holds, it keeps no other job from its turn.
            with set_aside("chain", f"job {one.child}", then=partial(self._give_up, one)):
                wanted.append(_as_wanted(one, definition, read))
        return wanted


def _ended(one: Join) -> Mapping[JobId, ParentEnded]:
    """Its parents' runs that have ended: what it is skipped by already, and what came since."""
    return {**one.told, **one.arrived}


def _as_wanted(one: Join, definition: Definition, results: Mapping[RunId, bytes]) -> Wanted:
    after = definition.after
    assert after is not None, "these alone were chosen"
    return Wanted(
        one,
        definition.generation,
        after,
        definition.priority.value,
        handed_on(after, _ended(one).values(), results) if after.with_output else None,
        definition.delivery is Delivery.AT_MOST_ONCE,
        line_of(definition).overlap,
    )
