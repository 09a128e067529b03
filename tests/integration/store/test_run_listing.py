"""Lists of runs: which rows they read, how far, and which they skip."""

from __future__ import annotations

from typing import Any

import pytest

from schedd.core.ids import RunId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import Reason, State
from schedd.core.runs.model import Trigger
from schedd.core.runs.run_records import RunFilter
from schedd.store.runs import run_list
from support.store import MINUTE, START, Member, World, draft, firing, new_run, report


@pytest.fixture(autouse=True)
def _read_two_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "LOOKED_AT", 2)


async def ran(world: World, me: Member, count: int) -> list[RunId]:
    """Runs of one job that have succeeded, a minute apart; the oldest first."""
    job = await world.job(name="steady")
    waiting = [new_run(job, START + n * MINUTE) for n in range(count)]
    fired = (await me.fire(firing(job, runs=tuple(waiting)))).runs
    handed = await me.assigned(
        *(draft(run, overlap=Overlap.ALLOW, overlap_limit=count) for run in fired)
    )
    await me.store.results.accept([report(run) for run in handed])
    return [run.key.run_id for run in waiting]


async def set_columns(world: World, run: RunId, **columns: str) -> None:
    """Change columns of a run that no owner will change any more."""
    values = ", ".join(f"{name} = '{value}'" for name, value in columns.items())
    await world.sql(f"UPDATE runs SET {values} WHERE run_id = '{run}' RETURNING 1")


async def pages(world: World, wanted: RunFilter, namespace: str = "default") -> list[list[RunId]]:
    """All pages of five."""
    found: list[list[RunId]] = []
    after: Any = None
    while after is not None or not found:
        rows, after = await world.store.users.list_runs(namespace, after, 5, wanted)
        found.append([row.run.key.run_id for row in rows])
    return found


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"state": "CANCELLED"}, RunFilter(states=(State.CANCELLED,))),
        ({"state": "CANCELLED"}, RunFilter("steady", (State.CANCELLED,))),
        ({"trigger": "MANUAL"}, RunFilter(trigger=Trigger.MANUAL)),
        ({"worker": "w-7"}, RunFilter(worker="w-7")),
    ],
)
async def test_a_filter_without_an_index_reads_two_runs_per_page(
    world: World, columns: dict[str, str], wanted: RunFilter
) -> None:
    me = await world.member()
    runs = await ran(world, me, 5)
    for run in (runs[0], runs[4]):
        await set_columns(world, run, **columns)
    assert await pages(world, wanted) == [[runs[4]], [], [runs[0]]]


async def test_the_page_after_a_full_one_begins_after_its_last_row(world: World) -> None:
    me = await world.member()
    runs = await ran(world, me, 2)
    rows, end = await world.store.users.list_runs("default", None, 2)
    assert ([row.run.key.run_id for row in rows], end) == (runs[::-1], None)


async def test_a_page_scans_a_bounded_number_of_runs_of_other_namespaces(world: World) -> None:
    me = await world.member()
    await ran(world, me, 5)
    for name in ("a", "b"):
        await world.job(name=name, namespace="elsewhere")
    assert await pages(world, RunFilter(), "elsewhere") == [[], [], []]


@pytest.mark.parametrize("wanted", [RunFilter(), RunFilter(states=(State.RUNNING, State.FAILED))])
async def test_a_namespace_without_jobs_has_one_empty_page(world: World, wanted: RunFilter) -> None:
    me = await world.member()
    await ran(world, me, 5)
    assert await pages(world, wanted, "nowhere") == [[]]


async def test_the_runs_of_the_only_job_of_a_namespace_are_found_however_many_others_have(
    world: World,
) -> None:
    me = await world.member()
    job = await world.job(name="alone", namespace="team-a")
    await me.fire(firing(job))
    await ran(world, me, 5)
    [[run]] = await pages(world, RunFilter(), "team-a")
    assert run == new_run(job, START).key.run_id
    await world.job(name="second", namespace="team-a")
    assert (await pages(world, RunFilter(), "team-a"))[0] == [], "it is looked for among all again"


async def test_failed_runs_are_found_behind_many_newer_ones(world: World) -> None:
    me = await world.member()
    [failing] = (await me.fire(firing(await world.job(name="failing")))).runs
    failed = report(
        (await me.assigned(draft(failing)))[0],
        state=State.FAILED,
        reason=Reason.EXIT_CODE,
        fingerprint="f",
        dead=True,
    )
    await me.store.results.accept([failed])
    await ran(world, me, 5)
    await world.sql("UPDATE dead_letters SET resolution = 'DISCARDED' RETURNING 1")
    found = [[failing.key.run_id]]
    for job in ("", "failing", str(failing.job_id)):
        assert await pages(world, RunFilter(job, (State.FAILED,))) == found
    assert await pages(world, RunFilter("steady", (State.FAILED,))) == [[]]
    both = RunFilter(states=(State.FAILED, State.RUNNING))
    assert await pages(world, both) == found
    [waiting] = (await me.fire(firing(await world.job(due=START - MINUTE)))).runs
    await me.assigned(draft(waiting))
    assert await pages(world, both) == [[failing.key.run_id, waiting.key.run_id], []]


async def test_live_runs_are_found_behind_any_number_of_newer_runs(world: World) -> None:
    me = await world.member()
    [waits] = (await me.fire(firing(await world.job(name="long")))).runs
    await ran(world, me, 5)
    live = (State.PENDING, State.RUNNING)
    for wanted in (RunFilter(states=live), RunFilter("long", live)):
        assert await pages(world, wanted) == [[waits.key.run_id]]
    assert await pages(world, RunFilter("steady", live)) == [[]]


async def test_runs_of_deleted_jobs_with_the_same_name_are_listed(world: World) -> None:
    me = await world.member()
    [old] = await ran(world, me, 1)
    await world.sql("UPDATE jobs SET deleted_at = now() WHERE name = 'steady' RETURNING 1")
    job = await world.job(name="steady", due=START + MINUTE)
    [new] = (await me.fire(firing(job))).runs
    assert await pages(world, RunFilter("steady")) == [[new.key.run_id, old], []]
    assert await pages(world, RunFilter("never-was")) == [[]]
