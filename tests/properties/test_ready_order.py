"""Many runs taken at once are those, in the order, that would be taken one after the other."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from schedd.core.dispatch.placement import Need
from schedd.core.dispatch.ready_queue import ReadyQueue
from schedd.core.jobs.definition import Priority
from schedd.core.runs.model import LiveRun
from schedd.core.runs.pools import PoolKey, PoolRooms
from schedd.core.timers.catch_up_limits import CatchUpRoom
from support.runs import NOW, run

POOL = PoolKey("default/p")
NEEDS = (None, Need("shell"), Need("python", "h"), Need("shell", slots=3), Need("shell", pool=POOL))

entries = st.lists(
    st.tuples(
        st.sampled_from(NEEDS),
        st.sampled_from(Priority),
        st.integers(0, 300),
        st.sampled_from((0, 0, 0, 90)),
    ),
    max_size=40,
)


@given(
    entries=entries,
    count=st.integers(1, 50),
    last=st.sampled_from((None, -100.0, 0.0, 100.0)),
    unfit=st.sampled_from(NEEDS),
    room=st.integers(0, 5),
)
def test_a_batch_holds_the_runs_that_would_be_taken_singly(
    entries: list[tuple[Need | None, Priority, int, int]],
    count: int,
    last: float | None,
    unfit: Need | None,
    room: int,
) -> None:
    def goes(need: Need | None, rank: float) -> bool:
        if need == unfit:
            return False
        return last is None or rank <= NOW.timestamp() + last

    def filled() -> ReadyQueue:
        queue = ReadyQueue()
        for number, (need, priority, waited, late) in enumerate(entries, 1):
            queue.add([entry(number, priority, waited, late)], need)
        return queue

    def rooms() -> tuple[CatchUpRoom, PoolRooms]:
        return CatchUpRoom(slots=room, releases=room), PoolRooms({POOL: room})

    late, pools = rooms()
    together = filled()
    taken = together.take_runs(count, goes, late, pools=pools)

    late, pools = rooms()
    singly = filled()
    expected = [each for _ in range(count) for each in singly.take_runs(1, goes, late, pools=pools)]
    assert taken == expected
    assert {each.key for each in together} == {each.key for each in singly}


def entry(number: int, priority: Priority, waited: int, late: int) -> LiveRun:
    """A run that became ready so many seconds ago, `late` seconds after it was due."""
    ready = NOW - timedelta(seconds=waited)
    due = ready - timedelta(seconds=late)
    return run(number, priority=priority, due_at=due, ready_at=ready)
