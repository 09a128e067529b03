"""Runs over their job's limit: held, and let go when another of their job is gone."""

from __future__ import annotations

from dataclasses import replace

from support.dispatching import SHELL, World, of
from support.runs import NOW, run, worker


def one_at_a_time() -> World:
    """A worker with room, and a job that may have one run under way."""
    world = World()
    world.attach(worker(slots=8), grant=4)
    world.definitions.default = replace(SHELL, overlap_limit=1)
    world.rows.limits = {run(1).job_id: 1}
    return world


async def test_a_run_over_its_jobs_limit_is_held_until_one_of_its_job_ends():
    world = World()
    line = world.attach(worker(slots=8), grant=4)
    world.definitions.default = replace(SHELL, overlap_limit=1)
    job = run(1).job_id
    world.rows.limits = {job: 1}
    world.run_index.put_runs([of(1, 1, waited=9), of(1, 2, waited=8), of(1, 3, waited=7)], NOW)

    await world.run_until_idle()
    assert world.handed() == {1}
    assert not any(line.demanded), "what may not start asks for no slots"
    tried = len(world.rows.drafts)
    world.run_index.put_runs([of(1, 2, waited=8), of(1, 3, waited=7)], NOW)  # a scan
    await world.run_until_idle()
    assert len(world.rows.drafts) == tried

    world.rows.admitted[job] = 0
    assert world.run_index.forget(of(1, 1).key.run_id, job) == 1
    await world.run_until_idle()
    assert world.handed() == {1, 2}


async def test_an_end_during_a_judgement_by_older_rows_releases_the_oldest():
    world, job = one_at_a_time(), run(1).job_id
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    world.run_index.put_runs([of(1, 3, waited=7), of(1, 2, waited=8)], NOW)

    def ended() -> None:
        world.rows.meanwhile = lambda: None
        world.rows.admitted[job] = 0
        assert world.run_index.forget(of(1, 1).key.run_id, job) == 0, "no run is held yet"

    world.rows.meanwhile = ended
    await world.run_until_idle()
    assert world.handed() == {1, 2}
    assert world.run_index.held == [job]
    tried = len(world.rows.drafts)
    await world.run_until_idle()
    assert len(world.rows.drafts) == tried, "it lets one of them go, once"


async def test_an_end_meanwhile_releases_the_oldest_before_a_held_run():
    """The rows admit only the oldest: a run tried before it is held again, and none runs."""
    world, job = one_at_a_time(), run(1).job_id
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    world.run_index.hold(of(1, 3, waited=7))
    world.run_index.put_runs([of(1, 2, waited=8)], NOW)

    def ended() -> None:
        world.rows.meanwhile = lambda: None
        world.rows.admitted[job] = 0
        world.run_index.forget(of(1, 1).key.run_id, job)

    world.rows.meanwhile = ended
    await world.run_until_idle()
    assert world.handed() == {1, 2}
    assert world.run_index.held == [job]


async def test_a_held_run_is_tried_again_without_a_report_that_one_ended():
    world, job = one_at_a_time(), run(1).job_id
    world.rows.limits = {job: 0}
    world.run_index.put_runs([of(1, 1)], NOW)
    await world.run_until_idle()
    assert world.run_index.held == [job]

    world.rows.limits = {job: 1}
    world.dispatch._try_held_at = 0.0
    await world.run_until_idle()
    assert world.handed() == {1}
