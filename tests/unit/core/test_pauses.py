"""What a pause of the cluster makes of the instants before, in and after it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from schedd.core import catch_up, schedule
from schedd.core.catch_up import Fire, Plan
from schedd.core.lifecycle import Reason, State
from schedd.core.model import CatchUp, CatchUpPolicy
from schedd.core.pauses import NO_PAUSES, Pause, Pauses, plan
from schedd.core.schedule import CompiledSchedule, CronSchedule, EverySchedule

HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-01-10T{text}").replace(tzinfo=UTC)


def minutely() -> CompiledSchedule:
    return schedule.compile(CronSchedule(("* * * * *",)), "ns/job", UUID(int=1))


def pause(began: str, ended: str | None, *, caught_up: bool = False) -> Pause:
    return Pause(at(began), "ops", "", at(ended) if ended else None, caught_up)


def walked(
    now: datetime,
    nominal: datetime,
    *pauses: Pause,
    policy: CatchUpPolicy = CatchUpPolicy.LATEST,
    compiled: CompiledSchedule | None = None,
) -> tuple[list[tuple[str, str | None, str, int]], list[str]]:
    """(state, reason, first, count) of every fold, and what fired, until nothing is due."""
    compiled = compiled or minutely()
    folds, fires, due = [], [], compiled.due(nominal)
    for _ in range(20):
        step = plan(compiled, CatchUp(policy, HOUR), nominal, due, now, Pauses(2, pauses))
        folds += [(f.state.value, f.reason, f"{f.first:%H:%M:%S}", f.count) for f in step.folds]
        fires += [f"{fire.nominal:%H:%M:%S}" for fire in step.fires]
        if step.next is None or step.next.due > now:
            return folds, fires
        nominal, due = step.next.nominal, step.next.due
    raise AssertionError("it never comes to rest")


def test_without_a_pause_it_is_plain_catch_up() -> None:
    arguments = (minutely(), CatchUp(), at("12:00"), at("12:00"), at("12:05"))
    assert plan(*arguments, NO_PAUSES) == catch_up.plan(*arguments)


def test_no_instant_of_the_pause_runs_and_each_is_accounted_for_in_one_row() -> None:
    folds, fires = walked(at("12:10:00.5"), at("12:05"), pause("12:04:30", "12:09:30"))
    assert folds == [("SKIPPED", Reason.PAUSED, "12:05:00", 5)]
    assert fires == ["12:10:00"]


def test_an_instant_at_the_very_end_is_of_the_pause_and_one_at_its_beginning_is_not() -> None:
    folds, fires = walked(at("12:02:30"), at("12:00"), pause("12:00:00", "12:02:00"))
    assert folds == [("SKIPPED", Reason.PAUSED, "12:01:00", 2)]
    assert fires == ["12:00:00"]


@pytest.mark.parametrize(
    ("policy", "folded", "fired"),
    [
        (CatchUpPolicy.LATEST, [("COALESCED", None, "12:00:00", 2)], ["12:02:00"]),
        (CatchUpPolicy.ALL, [], ["12:00:00", "12:01:00", "12:02:00"]),
        (CatchUpPolicy.NONE, [("MISSED", Reason.CATCH_UP_NONE, "12:00:00", 3)], []),
    ],
)
def test_what_was_due_before_the_pause_goes_by_the_jobs_policy(
    policy: CatchUpPolicy, folded: list[tuple[str, str | None, str, int]], fired: list[str]
) -> None:
    """None of it is coalesced into an instant of the pause: that one never runs."""
    folds, fires = walked(at("12:10:30"), at("12:00"), pause("12:02:30", "12:10:20"), policy=policy)
    assert folds == [*folded, ("SKIPPED", Reason.PAUSED, "12:03:00", 8)]
    assert fires == fired


def test_between_two_pauses_the_jobs_policy_holds() -> None:
    pauses = pause("12:01:30", "12:03:30"), pause("12:05:30", "12:08:30")
    folds, fires = walked(at("12:09:30"), at("12:02"), *pauses, policy=CatchUpPolicy.ALL)
    assert folds == [
        ("SKIPPED", Reason.PAUSED, "12:02:00", 2),
        ("SKIPPED", Reason.PAUSED, "12:06:00", 3),
    ]
    assert fires == ["12:04:00", "12:05:00", "12:09:00"]


def test_a_pause_that_is_caught_up_is_like_an_outage() -> None:
    folds, fires = walked(at("12:10"), at("12:05"), pause("12:04:30", "12:09:30", caught_up=True))
    assert folds == [("COALESCED", None, "12:05:00", 5)]
    assert fires == ["12:10:00"]


def test_old_pauses_are_no_matter() -> None:
    step = plan(
        minutely(), CatchUp(), at("12:00"), at("12:00"), at("12:00"),
        Pauses(2, (pause("10:00", "11:00"),)),
    )  # fmt: skip
    assert step == Plan((), (Fire(at("12:00"), at("12:00")),), step.next)


def test_a_long_pause_of_a_quick_job_ends_in_bounded_steps() -> None:
    each_second = schedule.compile(EverySchedule(timedelta(seconds=1)), "ns/j", UUID(int=1))
    folds, fires = walked(
        at("21:00:00.1"), at("12:00:01"), pause("12:00", "21:00"), compiled=each_second
    )
    assert {fold[:2] for fold in folds} == {(State.SKIPPED.value, Reason.PAUSED)}
    assert sum(fold[3] for fold in folds) == 9 * 3600
    assert fires == []


def test_the_present_pause_is_the_one_without_an_end() -> None:
    lasting = pause("12:00", None)
    assert Pauses(1, (lasting,)).present == lasting
    assert Pauses(2, (pause("12:00", "12:01"),)).present is None
    assert NO_PAUSES.present is None
