"""S11: the answers that users got are true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from faults.checker import check
from faults.history import Definition, Schedule
from support.story import BASE, Story, broken, final, insert, leader_killed, no_faults

NONE: frozenset[str] = frozenset()


def triggered(story: Story, at: float, **row: Any) -> None:
    """A run of `tick` by hand, all right."""
    story.play(story.fire(at, trigger="MANUAL", fired_by=None, **row), at + 0.2)


def gaps() -> Story:
    """No faults, with a job that runs only by hand."""
    story = no_faults()
    story.job("byhand", schedule=Schedule(), overlap="allow")
    return story


def run_by_hand(story: Story, at: float, **row: Any) -> str:
    """Make one run of `byhand` and return its id."""
    job = story.jobs["byhand"]
    run = story.new(at, job, trigger="MANUAL", **row)
    story.commit(at + 0.05, insert("runs", dict(run.row)), insert("live", live(run.row)))
    story.play(run, at + 0.2)
    return run.id


def live(row: dict[str, str | None]) -> dict[str, str | None]:
    return {name: row[name] for name in ("shard", "job_id", "run_id")}


def byhand(story: Story) -> str:
    return story.jobs["byhand"].id


# -- acknowledged


def test_a_missing_acknowledged_job_breaks_s11() -> None:
    story = no_faults()
    story.call("create", 200, name="ghost", namespace="default", answer={"job_id": "ghost"})
    assert broken(story) == {"S11"}


def test_a_missing_acknowledged_definition_breaks_s11() -> None:
    story = no_faults()
    answer = {"job_id": "ghost", "generation": 1}
    op = story.call("create", 200, name="ghost", namespace="default", answer=answer)
    wanted = Definition(BASE + 200, None, "default", "ghost", 1, Schedule(every=1), op=op)
    story.definitions.append(wanted)
    verdict = check(story.history())
    assert verdict.broken == {"S11"}
    assert any("acknowledged and lost" in each.what for each in verdict.violations)


def test_an_acknowledgement_before_the_commit_breaks_s11() -> None:
    story = gaps()
    run_id = run_by_hand(story, 200)
    story.call("trigger", 199.9, job_id=byhand(story), answer={"run_id": run_id})
    assert broken(story) == {"S11"}


def test_a_missing_acknowledged_edit_breaks_s11() -> None:
    story = no_faults()
    job_id = story.jobs["tick"].id
    story.call("edit", 200, job_id=job_id, answer={"job_id": job_id, "generation": 2})
    assert broken(story) == {"S11"}


def test_a_missing_acknowledged_pause_or_delete_breaks_s11() -> None:
    for call in ("pause", "delete"):
        story = no_faults()
        story.call(call, 248, job_id=story.jobs["tick"].id)
        assert "S11" in broken(story), call


def test_a_missing_acknowledged_cancel_breaks_s11() -> None:
    story = no_faults()
    slow = story.job("slow", schedule=Schedule(at=BASE + 200))
    run = story.fire(200, slow)
    story.call("cancel", 200.05, run_id=run.id)
    story.play(run, 200.3)
    assert broken(story) == {"S11"}


def test_a_committed_run_that_the_database_lost_breaks_s11() -> None:
    history = no_faults().history()
    kept = history.database["runs"]
    lost = replace(history, database={"runs": kept[:100] + kept[101:]})
    assert check(lost).broken == {"S11"}


def test_a_committed_result_that_the_database_lost_breaks_s11() -> None:
    history = no_faults().history()
    rows = list(history.database["runs"])
    rows[100] = {**rows[100], "state": "RUNNING"}
    assert check(replace(history, database={"runs": tuple(rows)})).broken == {"S11"}


@pytest.mark.parametrize(
    ("table", "column", "other"),
    [("shards", "epoch", "7"), ("term", "term", "1"), ("tenures", "fenced_at", None)],
)
def test_a_row_of_the_cluster_that_is_not_as_committed_breaks_s11(
    table: str, column: str, other: str | None
) -> None:
    history = leader_killed().history()
    rows = [dict(row) for row in final(history.commits, table)]
    as_it_is = replace(history, database={**history.database, table: tuple(rows)})
    assert check(as_it_is).broken == NONE
    rows[0][column] = other
    changed = replace(history, database={**history.database, table: tuple(rows)})
    assert check(changed).broken == {"S11"}


def test_a_committed_run_that_the_database_has_twice_breaks_s11() -> None:
    story = no_faults()
    story.call("trigger", 200.1, job_id=story.jobs["tick"].id)
    run = story.new(200.15, trigger="MANUAL")
    story.commit(200.15, insert("runs", dict(run.row)))
    story.play(run, 200.2)
    history = story.history()
    twice = (*history.database["runs"], run.row)
    assert check(replace(history, database={"runs": twice})).broken == {"S11"}


def test_acknowledged_calls_that_are_there_break_nothing() -> None:
    story = gaps()
    run_id = run_by_hand(story, 200)
    story.call("trigger", 199.99, job_id=byhand(story), answer={"run_id": run_id})
    assert broken(story) == NONE


# -- failed


def test_a_run_of_a_failed_trigger_breaks_s11() -> None:
    story = gaps()
    story.call("trigger", 199.99, "fail", job_id=byhand(story))
    run_by_hand(story, 200)
    assert broken(story) == {"S11"}


def test_a_job_of_a_failed_create_breaks_s11() -> None:
    story = no_faults()
    tick = story.jobs["tick"]
    story.call("create", 200, "fail", name="ghost", namespace="default")
    ghost = {"job_id": "g"}
    made = insert("jobs", tick.row | ghost | {"name": "ghost"})
    story.commit(200.05, made, insert("timers", tick.timer | ghost))
    assert broken(story) == {"S11"}


def test_an_edit_that_failed_and_happened_breaks_s11() -> None:
    story = no_faults(without=set(range(240, 250)))
    tick = story.jobs["tick"]
    story.change(tick, 239.3, "edit", "fail", timeout=30.0)
    story.tick(range(240, 250))
    assert broken(story) == {"S11"}


def test_a_delete_that_failed_and_happened_breaks_s11() -> None:
    story = no_faults(without=set(range(240, 250)))
    story.change(story.jobs["tick"], 239.3, "delete", "fail")
    assert broken(story) == {"S11"}


def test_a_failed_call_without_effect_breaks_nothing() -> None:
    story = no_faults()
    story.call("create", 200, "fail", name="ghost", namespace="default")
    story.call("trigger", 201, "fail", job_id=story.jobs["tick"].id)
    story.definitions.append(
        Definition(BASE + 200, None, "default", "ghost", 1, Schedule(every=1), op=1)
    )
    story.definitions[-1] = replace(story.definitions[-1], op=len(story.clients) - 3)
    assert "S11" not in broken(story)


# -- unknown


def test_an_unknown_trigger_that_happened_twice_breaks_s11() -> None:
    story = gaps()
    story.call("trigger", 199.99, "unknown", job_id=byhand(story))
    run_by_hand(story, 200)
    run_by_hand(story, 201)
    assert broken(story) == {"S11"}


def test_an_unknown_trigger_may_happen_once_or_not_at_all() -> None:
    story = gaps()
    story.call("trigger", 199.99, "unknown", job_id=byhand(story))
    assert "S11" not in broken(story)
    run_by_hand(story, 200)
    assert "S11" not in broken(story)


def test_an_unknown_create_is_found_by_its_name() -> None:
    story = no_faults()
    job = story.job("found", 30.0, every=25.0)
    story.clients = [
        replace(event, phase="unknown", answer=None)
        if event.call == "create" and event.at > BASE + 30 and event.phase == "ok"
        else event
        for event in story.clients
    ]
    story.definitions[-1] = replace(story.definitions[-1], job_id=None)
    story.tick(range(50, 250, 25), job)
    assert "S11" not in broken(story)
    assert check(story.history()).figures.judged > 250, "the job is judged as any other"


def test_an_unknown_create_may_not_have_happened() -> None:
    story = no_faults()
    op = story.call("create", 200, "unknown", name="ghost", namespace="default")
    story.definitions.append(
        Definition(BASE + 200, None, "default", "ghost", 1, Schedule(every=1), op=op)
    )
    assert "S11" not in broken(story)


# -- idempotency keys


def test_two_ids_for_one_key_break_s11() -> None:
    story = gaps()
    for at in (200, 201):
        run_id = run_by_hand(story, at)
        about = {"job_id": byhand(story), "idempotency_key": "k"}
        story.call("trigger", at - 0.01, answer={"run_id": run_id}, **about)
    assert broken(story) == {"S11"}


def test_one_id_for_one_key_breaks_nothing() -> None:
    story = gaps()
    run_id = run_by_hand(story, 200)
    about = {"job_id": byhand(story), "idempotency_key": "k"}
    story.call("trigger", 199.9, "unknown", **about)
    story.call("trigger", 201, answer={"run_id": run_id}, **about)
    assert "S11" not in broken(story)


def test_a_call_by_name_is_matched_by_its_name() -> None:
    story = no_faults(without=set(range(240, 250)))
    story.change(story.jobs["tick"], 239.3, "delete")
    story.clients = [
        replace(event, args={"job_id": None, "name": "tick"}, answer=None)
        if event.call == "delete"
        else event
        for event in story.clients
    ]
    assert broken(story) == NONE
