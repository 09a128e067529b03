"""A step that is copied to another timer of the batch is the one that would be computed for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import product

import pytest

from schedd.core.ids import Id, JobId, ShardId
from schedd.core.jobs.definition import CatchUp, CatchUpPolicy, Definition, Delivery, Priority
from schedd.core.runs.model import Timer
from schedd.core.schedule import compiled_schedule
from schedd.core.schedule.compiled_schedule import (
    AtSchedule,
    CronSchedule,
    EverySchedule,
    Schedule,
    ScheduleBounds,
)
from schedd.core.timers.cluster_pauses import Pause, Pauses
from schedd.core.timers.fire_plan import GRACE
from schedd.runtime.definition_texts import CachedDefinition
from schedd.timers.timer_steps import copied, firing_of, may_be_copied, same_step
from support.definitions import cached_definition
from support.runs import NOW

SECOND, DAY = timedelta(seconds=1), timedelta(days=1)
AHEAD = 3 * SECOND
SCHEDULES: tuple[Schedule, ...] = (
    CronSchedule(("* * * * *",)),
    CronSchedule(("* * * * *",), "Europe/Berlin"),
    CronSchedule(("H * * * * *",)),
    EverySchedule(timedelta(minutes=1)),
    EverySchedule(timedelta(minutes=1), phase=30 * SECOND),
    EverySchedule(20 * SECOND),
    AtSchedule(NOW - 30 * SECOND),
)
BOUNDS = (
    ScheduleBounds(),
    ScheduleBounds(end=NOW + 30 * SECOND),
    ScheduleBounds(jitter=10 * SECOND),
)
PAUSES = (
    Pauses(),
    Pauses(2, (Pause(NOW - 90 * SECOND, "ann", ended=NOW - 30 * SECOND),)),
    Pauses(2, (Pause(NOW - 90 * SECOND, "ann", ended=NOW, caught_up=True, lost_until=NOW),)),
)
CATCH_UPS = [CatchUp(policy, window) for policy in CatchUpPolicy for window in (60 * SECOND, DAY)]
TIMES = [
    (NOW + n * SECOND, NOW + (n + late) * SECOND) for n in (-120, -30, 0, 60) for late in (0, 1)
]


def jobs() -> Iterator[tuple[Timer, CachedDefinition]]:
    """Every combination, each of a job of its own."""
    settings = product(SCHEDULES, BOUNDS, CATCH_UPS, Delivery, (0, 2))
    for number, (schedule, bounds, catch_up, delivery, max_runs) in enumerate(settings):
        job = JobId(Id.from_int(number))
        definition = Definition(
            1,
            "default",
            action="shell",
            schedule=schedule,
            bounds=bounds,
            priority=[*Priority][number % 3],
            catch_up=catch_up,
            delivery=delivery,
            max_runs=max_runs,
        )
        compiled = compiled_schedule.compile(schedule, f"default/{number}", job, bounds)
        known = cached_definition(definition, compiled)
        for nominal, due in TIMES:
            for fired in (0, 1):
                yield Timer(job, ShardId(number % 256), 1, due, nominal, fired=fired), known


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("pauses", PAUSES)
def test_a_copied_step_is_the_step_of_its_timer(pauses: Pauses, most: int) -> None:
    late_before = NOW - GRACE
    alike = defaultdict(list)
    for timer, known in jobs():
        if (same := same_step(timer, known, late_before)) is not None:
            alike[same].append((timer, known))
    compared = 0
    for several in alike.values():
        steps = [firing_of(timer, known, NOW, pauses, most, NOW, AHEAD) for timer, known in several]
        like = next((step for step in steps if may_be_copied(step, late_before)), None)
        if like is not None:
            compared += len(steps)
            assert [copied(like, timer, known.definition) for timer, known in several] == steps
    assert compared > 100
