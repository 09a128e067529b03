"""A member with rows, a feed, and callers that watch.

async with world() as here:
stream = await here.watch()
here.change(1, State.RUNNING)
await stream.until((1, State.RUNNING))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from schedd.core.ids import Id, JobId, RunId
from schedd.core.runs.change_stream import (
    Change,
    ChangeGap,
    ChangeMessage,
    Cursor,
    MissedChanges,
    Scope,
)
from schedd.core.runs.lifecycle import State
from schedd.store.runs.change_stream import ChangeStore
from schedd.watch.change_bus import ChangeBus
from schedd.watch.subscriptions import Subscriptions
from schedkit.errors import Unavailable
from support.fake_of import fake_of
from support.runs import record
from support.wait import WAIT_TIMEOUT, wait_until_async

ALL: Final = Scope("default")
ETL, OTHER = JobId(Id.from_int(1)), JobId(Id.from_int(2))


@fake_of(ChangeStore)
class Rows:
    """Runs as a database has them: each write is a transaction. Counts what it is asked.
    While `held` isn't set, who asks for what lives waits; `given_up`: one didn't any longer.
    """

    def __init__(self) -> None:
        self.rows: dict[RunId, Change] = {}
        self.transaction = 1
        self.timeline = 1
        self.asked: list[str] = []
        self.away = False
        self.before: MissedChanges | None = None
        self.held = asyncio.Event()
        self.held.set()
        self.given_up = False

    def write(self, number: int, state: State = State.PENDING, job: JobId = ETL) -> RunId:
        """Store the run of this number so."""
        self.transaction += 1
        made = record(number, state=state, job_id=job)
        self.rows[made.run.key.run_id] = Change(made, self.transaction)
        return made.run.key.run_id

    async def now(self) -> Cursor:
        """The present moment."""
        self._ask("now")
        return Cursor(self.timeline, self.transaction + 1)

    async def since(self, cursor: Cursor, jobs: Sequence[JobId] | None) -> MissedChanges:
        """All that changed."""
        self._ask("since")
        present = Cursor(self.timeline, self.transaction + 1)
        if cursor.timeline != self.timeline:
            return MissedChanges(present, unknown=True)
        if self.before is not None:
            return replace(self.before, cursor=present)
        return MissedChanges(
            present,
            tuple(
                run
                for run, change in self.rows.items()
                if change.version >= cursor.transaction
                and (jobs is None or change.record.run.job_id in jobs)
            ),
        )

    async def unended(self, scope: Scope, most: int) -> list[RunId]:
        """Runs that haven't ended."""
        self._ask("unended")
        found = [
            run
            for run, change in self.rows.items()
            if scope.holds(change.record) and change.record.run.state is State.PENDING
        ]
        try:
            await self.held.wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return found[:most]

    async def read(self, run_ids: Sequence[RunId]) -> list[Change]:
        """As they stand."""
        self._ask("read")
        return [self.rows[run] for run in run_ids if run in self.rows]

    def _ask(self, what: str) -> None:
        if self.away:
            raise Unavailable("the database is away")
        self.asked.append(what)


class Stream:
    """A caller that watches, and the messages it received."""

    def __init__(self, feed: Subscriptions, scope: Scope, after: Cursor | None) -> None:
        self.messages: list[ChangeMessage] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.feed, self.scope, self.after = feed, scope, after

    async def read(self) -> None:
        """Receive messages, while `reads` is set."""
        feed = self.feed.follow(self.scope, self.after)
        assert await anext(feed) == ChangeMessage(self.after), "it stands"
        async for news in feed:
            self.messages.append(news)
            await self.reads.wait()

    @property
    def states(self) -> list[tuple[int, State]]:
        """The runs' numbers and states, as they were received."""
        changes = [news.what for news in self.messages if isinstance(news.what, Change)]
        return [(change.run_id.number, change.record.run.state) for change in changes]

    @property
    def gaps(self) -> list[ChangeGap]:
        """The received gaps: changes that the stream can't send."""
        return [news.what for news in self.messages if isinstance(news.what, ChangeGap)]

    async def until(self, *states: tuple[int, State]) -> None:
        """Wait until all of these were received."""
        await wait_until_async(lambda: set(states) <= set(self.states), WAIT_TIMEOUT, f"{states}")

    async def begun(self) -> None:
        """Wait for the first message, after its own read of the rows."""
        await wait_until_async(lambda: self.messages, WAIT_TIMEOUT, "the beginning of a stream")


class World:
    """A member with rows, a feed, and callers that watch. `sweeps`: seconds between two reads of
    all rows; in `world` no second one happens by default.
    """

    def __init__(self, group: asyncio.TaskGroup, sweeps: float, rows: Rows) -> None:
        self.rows, self.ears = rows, ChangeBus()
        self.feed = Subscriptions(self.rows, self.ears, every=0.001, sweep=sweeps)
        self.group = group
        self.tasks: list[asyncio.Task[None]] = [
            group.create_task(self.feed.loop.run(), name="feed")
        ]

    async def watch(self, scope: Scope = ALL, after: Cursor | None = None) -> Stream:
        """Start a caller that watches, and receives all changes from here on."""
        stream = Stream(self.feed, scope, after)
        self.tasks.append(self.group.create_task(stream.read(), name="stream"))
        await stream.begun()
        await self.swept()
        return stream

    def begin(self, scope: Scope = ALL) -> Stream:
        """Start a caller that watches, and don't wait for its first message."""
        stream = Stream(self.feed, scope, None)
        self.tasks.append(self.group.create_task(stream.read(), name="stream"))
        return stream

    async def swept(self) -> None:
        """The feed has looked through the rows for the first time."""
        await wait_until_async(lambda: "since" in self.rows.asked, WAIT_TIMEOUT, "the first sweep")

    def change(self, number: int, state: State, job: JobId = ETL) -> None:
        """A member stores a run, and says so."""
        self.ears.receive_hints([(self.rows.write(number, state, job), job)])


@asynccontextmanager
async def world(sweeps: float = 3600.0, rows: Rows | None = None) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as group:
        made = World(group, sweeps, rows or Rows())
        yield made
        for task in made.tasks:
            task.cancel()
