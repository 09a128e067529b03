"""Delayed starts: each at its due time, a few in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf

import pytest

from schedd.core.ids import new_id
from schedkit.clock import boottime
from support.wait import WAIT_TIMEOUT, wait_until_async
from workerd.core.admission import ABSENT, HELD, OfferedBatch, fill
from workerd.core.ids import AssignmentKey, Incarnation, RunId, Token
from workerd.runs import delayed_start as module
from workerd.runs.delayed_start import DelayedStarts

Parts = Sequence[tuple[OfferedBatch, range]]


def one_by_one(start: Callable[[OfferedBatch], object]) -> DelayedStarts[OfferedBatch]:
    """Return delayed starts of batches of one, which call `start` for each."""

    def start_all(parts: Parts) -> None:
        for batch, _ in parts:
            start(batch)

    return DelayedStarts(start_all)


def run(count: int = 1) -> OfferedBatch:
    """Return a batch of runs that are held."""
    keys = [AssignmentKey(RunId(new_id()), Token(1)) for _ in range(count)]
    batch = OfferedBatch(keys, Incarnation("i"), 1, inf)
    fill(batch.states, range(count), HELD)
    return batch


def batches(many: int) -> list[int]:
    """Return the sizes of the batches in which so many due runs start, with short turns."""
    sizes, size = [], module.FIRST
    while many:
        sizes.append(min(size, many))
        many -= sizes[-1]
        size = min(module.GROWTH * size, module.AT_ONCE)
    return sizes


async def herd(
    many: int, *, beside: float | None = None, pre_dispatched_ends: bool = True
) -> tuple[DelayedStarts[OfferedBatch], list[str]]:
    """Start `many` runs that are due at once, and one at `beside`; return starts and ends in
    order.
    """
    turns: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def attempt() -> None:
        await starts.let_start(pre_dispatched=pre_dispatched_ends)
        turns.append("ended")

    def start(_run: OfferedBatch) -> None:
        turns.append("started")
        tasks.append(asyncio.create_task(attempt()))

    starts, instant = one_by_one(start), boottime() + 0.02
    for at in [instant] * many if beside is None else [beside, *[instant] * many]:
        starts.put(run(), at)
    await wait_until_async(lambda: turns.count("ended") == many, WAIT_TIMEOUT, "the herd")
    return starts, turns


async def test_each_run_starts_at_its_due_time_and_not_before() -> None:
    began: dict[OfferedBatch, float] = {}
    starts = one_by_one(lambda run: began.setdefault(run, boottime()) and None)
    at = {run(): boottime() + after for after in (0.2, 0.05, 0.1, 0.0)}
    for one, instant in at.items():
        starts.put(one, instant)
    await wait_until_async(lambda: len(began) == 4, WAIT_TIMEOUT, "all four")
    assert sorted(began, key=began.__getitem__) == sorted(at, key=at.__getitem__)
    assert all(0 <= began[one] - at[one] < 1 for one in at)
    assert not starts._heap


async def test_a_removed_run_never_starts_and_a_moved_run_starts_once() -> None:
    started: list[OfferedBatch] = []
    starts = one_by_one(started.append)
    back, moved, last = run(), run(), run()
    now = boottime()
    starts.put(back, now + 0.02)
    starts.put(moved, now + 0.01)
    starts.put(moved, now + 0.03)
    starts.put(last, now + 0.06)
    fill(back.states, range(1), ABSENT)
    await wait_until_async(lambda: last in started, WAIT_TIMEOUT, "the last")
    assert started == [moved, last]


async def test_other_tasks_get_their_turn_between_batches_of_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Started runs proceed and a heartbeat is sent before the next batch starts."""
    monkeypatch.setattr(module, "LONG_TURN", WAIT_TIMEOUT)  # whatever else this machine does
    turns: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def attempt() -> None:
        turns.append("runs")

    def start(_run: OfferedBatch) -> None:
        turns.append("starts")
        tasks.append(asyncio.create_task(attempt()))

    starts, instant = one_by_one(start), boottime() + 0.02
    for _ in range(3 * module.AT_ONCE):
        starts.put(run(), instant)
    await wait_until_async(
        lambda: turns.count("runs") == 3 * module.AT_ONCE, WAIT_TIMEOUT, "the herd"
    )
    assert turns == [
        turn for size in batches(3 * module.AT_ONCE) for turn in ["starts"] * size + ["runs"] * size
    ]


async def test_after_a_long_turn_of_the_loop_fewer_runs_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Started handlers keep the loop from running; more of them would make it worse."""
    now, sizes = boottime(), list[int]()
    monkeypatch.setattr(module, "boottime", lambda: now)

    def start(parts: Parts) -> None:
        nonlocal now
        sizes.append(sum(len(places) for _, places in parts))
        if len(sizes) <= 3:
            now += 2 * module.LONG_TURN

    starts = DelayedStarts(start)
    starts.put(run(60), now)
    await wait_until_async(lambda: sum(sizes) == 60, WAIT_TIMEOUT, "all")
    assert sizes == [4, 1, 1, 1, 4, 16, 33]
    starts.put(run(10), now)
    await wait_until_async(lambda: sum(sizes) == 70, WAIT_TIMEOUT, "ten more")
    assert sizes[-2:] == [4, 6]


@pytest.mark.parametrize("how", ["again", "earlier", "breaks"])
async def test_a_start_that_schedules_another_run_or_fails_blocks_no_other_start(how: str) -> None:
    loop, errors = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    started: list[OfferedBatch] = []
    first, second, third = run(), run(), run()

    def rearm() -> None:
        starts.put(first, boottime() + 0.5)

    def add() -> None:
        starts.put(third, boottime())

    def fail() -> None:
        raise RuntimeError("a bug")

    does: dict[str, Callable[[], None]] = {"again": rearm, "earlier": add, "breaks": fail}

    def start(run: OfferedBatch) -> None:
        if run is first and started.count(first) == 0:
            started.append(run)
            does[how]()
        else:
            started.append(run)

    starts, now = one_by_one(start), boottime()
    starts.put(first, now + 0.01)
    starts.put(second, now + 0.3)
    expected = {"again": [first, second, first], "earlier": [first, third, second]}
    wanted = expected.get(how, [first, second])
    await wait_until_async(lambda: len(started) == len(wanted), WAIT_TIMEOUT, "all")
    assert started == wanted
    assert [str(error) for error in errors] == (["a bug"] if how == "breaks" else [])


async def test_an_end_waits_only_for_starts_that_are_due() -> None:
    many = 5 * module.AT_ONCE // 2
    starts, turns = await herd(many, beside=boottime() + 3600)
    assert turns == [*["started"] * many, *["ended"] * many]
    assert len(starts._heap) == 1
    async with asyncio.timeout(WAIT_TIMEOUT):
        await starts.let_start(pre_dispatched=True)


async def test_an_attempt_that_is_canceled_while_it_waits_blocks_no_other() -> None:
    starts = one_by_one(
        lambda _run: tasks.append(asyncio.create_task(starts.let_start(pre_dispatched=True)))
    )
    tasks: list[asyncio.Task[None]] = []
    instant = boottime() + 0.02
    for _ in range(2 * module.AT_ONCE):
        starts.put(run(), instant)
    await wait_until_async(lambda: len(tasks) >= module.FIRST, WAIT_TIMEOUT, "the first few")
    tasks[0].cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in ended if one is not None] in ([], [asyncio.CancelledError])
    await wait_until_async(lambda: len(tasks) == 2 * module.AT_ONCE, WAIT_TIMEOUT, "the rest")
    await asyncio.gather(*tasks[module.AT_ONCE :])


@pytest.mark.parametrize(
    ("which", "pre_dispatched"), [("MAX_END_DELAY", False), ("MAX_DELAYED_END_DELAY", True)]
)
async def test_an_end_waits_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch, which: str, pre_dispatched: bool
) -> None:
    """A waiting result is on no disk: after that time ends get half of each turn."""
    monkeypatch.setattr(module, which, -1.0)
    _, turns = await herd(10 * module.AT_ONCE, pre_dispatched_ends=pre_dispatched)
    half = turns[: len(turns) // 2]
    assert half.count("ended") > len(half) / 4, "between the starts"


async def test_an_end_of_another_run_has_priority_over_ends_of_delayed_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next run of its job may wait for this end."""
    monkeypatch.setattr(module, "MAX_END_DELAY", 0.0)
    ended: list[str] = []

    async def end(name: str, *, pre_dispatched: bool) -> None:
        await line.let_start(pre_dispatched=pre_dispatched)
        ended.append(name)

    tasks: list[asyncio.Task[None]] = []

    def start(_run: OfferedBatch) -> None:
        if not tasks:
            tasks.append(asyncio.create_task(end("of the herd", pre_dispatched=True)))
            tasks.append(asyncio.create_task(end("another's", pre_dispatched=False)))
        started.append(len(ended))

    line, started, instant = one_by_one(start), list[int](), boottime() + 0.02
    for _ in range(10 * module.AT_ONCE):
        line.put(run(), instant)
    await wait_until_async(lambda: len(ended) == 2, WAIT_TIMEOUT, "both")
    assert ended == ["another's", "of the herd"]
    assert 1 in started, "it didn't wait for all of them"


@pytest.mark.slow
async def test_a_suspended_machine_starts_due_runs_soon_after_it_wakes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop's own clock stops during a suspend."""
    slept = 0.0
    monkeypatch.setattr(module, "boottime", lambda: boottime() + slept)
    started: list[float] = []
    starts = one_by_one(lambda _run: started.append(boottime()))
    starts.put(run(), boottime() + 20)
    await asyncio.sleep(0)
    slept, woke = 30.0, boottime()
    async with asyncio.timeout(WAIT_TIMEOUT):
        await starts.let_start(pre_dispatched=True)
    assert started
    assert started[0] - woke < 3
