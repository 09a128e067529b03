"""Definitions at hand."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

from google.protobuf.timestamp_pb2 import Timestamp

from schedd.core.ids import JobId
from schedd.core.runs.lifecycle import State
from schedd.core.runs.records import NEVER_EDITED, JobOfText, StoredDefinition, StoredText
from schedd.runtime.definition_cache import ITSELF, DefinitionCache
from schedd.runtime.definition_texts import ALONE, DefinitionText, DefinitionTexts
from schedd.runtime.job_codec import LEVEL
from schedd.store.owner import OwnerStore
from schedproto.v1 import job_pb2
from support.fake_of import fake_of
from support.loop_turns import turns_during
from support.runs import run

JOB = run(1).job_id
OTHER = run(2).job_id
SHELL = job_pb2.ShellAction(argv=["true"])


@fake_of(OwnerStore)
class Rows:
    def __init__(self, **_: object) -> None:
        self.specs: dict[JobId, job_pb2.Job] = {}
        self.generation = 1
        self.reads = 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def definitions_by_text(self, jobs: Sequence[JobId]) -> dict[StoredText, list[JobOfText]]:
        self.reads += 1
        self.meanwhile()
        found: dict[StoredText, list[JobOfText]] = defaultdict(list)
        for job in jobs:
            if job in self.specs:
                spec = self.specs[job].SerializeToString()
                text = StoredText(spec, "default", self.generation)
                found[text].append((job, "j", NEVER_EDITED))
        return found


async def test_an_unreadable_definition_does_not_hide_other_definitions():
    rows = Rows()
    rows.specs = {
        JOB: job_pb2.Job(cron=["0 0 * * *"], time_zone="Mars/Olympus", shell=SHELL),
        OTHER: job_pb2.Job(overlap=77, shell=SHELL),
        run(4).job_id: job_pb2.Job(cron=["@daily"], definition_version=LEVEL + 1, shell=SHELL),
        run(3).job_id: job_pb2.Job(on_demand=True, shell=SHELL),
    }
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    assert set(await definition_cache.newest([*rows.specs])) == {run(3).job_id}


async def test_a_result_is_judged_by_a_definition_as_new_as_its_attempt():
    rows = Rows()
    rows.specs = {JOB: job_pb2.Job(on_demand=True, shell=SHELL)}
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    await definition_cache.newest([JOB])
    rows.generation = 2
    rows.specs = {
        JOB: job_pb2.Job(on_demand=True, shell=SHELL, retry=job_pb2.RetryPolicy(max_attempts=9))
    }
    known = await definition_cache.of_runs([run(1, state=State.RUNNING, generation=2)])
    assert known[JOB].definition.retry.max_attempts == 9


async def test_a_new_tenure_reads_definitions_again():
    """A database that went back counts to the same generation with another definition."""
    rows = Rows()
    rows.specs = {JOB: job_pb2.Job(on_demand=True, shell=SHELL)}
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    await definition_cache.newest([JOB])
    rows.specs = {JOB: job_pb2.Job(on_demand=True, shell=SHELL, slots=2)}
    definition_cache.clear()
    assert (await definition_cache.at_generations({JOB: 1}))[JOB].definition.slots == 2


def stored(job: JobId, spec: job_pb2.Job) -> StoredDefinition:
    return StoredDefinition(job, 1, "default", "", spec.SerializeToString(), False, ephemeral=True)


async def test_a_definition_that_this_member_stored_is_not_read_back():
    rows = Rows()
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    definition_cache.add_stored([stored(JOB, job_pb2.Job(on_demand=True, shell=SHELL, slots=3))])
    assert (await definition_cache.newest([JOB]))[JOB].definition.slots == 3
    assert rows.reads == 0


async def test_a_stored_definition_does_not_replace_a_newer_one():
    rows = Rows()
    rows.generation = 2
    rows.specs = {JOB: job_pb2.Job(on_demand=True, shell=SHELL, slots=2)}
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    await definition_cache.newest([JOB])
    definition_cache.add_stored([stored(JOB, job_pb2.Job(on_demand=True, shell=SHELL, slots=3))])
    assert (await definition_cache.newest([JOB]))[JOB].definition.slots == 2


async def test_stored_definitions_fill_half_of_the_cache():
    spec = job_pb2.Job(on_demand=True, shell=SHELL)
    jobs = [run(n).job_id for n in range(1, 101)]
    definition_cache = DefinitionCache(cast("OwnerStore", Rows()), capacity=100 * ITSELF)
    definition_cache.add_stored([stored(job, spec) for job in jobs])
    assert 40 < sum(definition_cache.knows(job) for job in jobs) < 60


async def test_the_definition_of_a_run_that_is_dispatched_now_is_cached_in_place_of_an_old_one():
    spec = job_pb2.Job(on_demand=True, shell=SHELL)
    rows, jobs = Rows(), [run(n).job_id for n in range(1, 201)]
    rows.specs = dict.fromkeys(jobs[:100], spec)
    definition_cache = DefinitionCache(cast("OwnerStore", rows), capacity=100 * ITSELF)
    await definition_cache.newest(jobs[:100])
    for job in jobs[100:]:
        definition_cache.add_stored([stored(job, spec)], dispatched=True)
        assert definition_cache.knows(job)
    assert 90 < sum(definition_cache.knows(job) for job in jobs) <= 100


async def test_reads_of_many_definitions_yield_to_other_tasks():
    """A loop that makes no progress loses the lease: see `in_turns`."""
    rows = Rows()
    jobs = [run(n).job_id for n in range(1, 501)]
    rows.specs = {job: job_pb2.Job(labels={"of": str(job)}, shell=SHELL) for job in jobs}
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    assert await turns_during(definition_cache.newest(jobs)) >= 9


async def test_a_definition_of_a_single_run_is_dropped_once_it_has_ended():
    """Each submit, and each of 100,000 jobs of one instant, would stay till as many others came."""
    rows = Rows()
    instant = Timestamp(seconds=1_900_000_000)
    rows.specs = {
        JOB: job_pb2.Job(at=instant, shell=SHELL),
        OTHER: job_pb2.Job(on_demand=True, shell=SHELL),
    }
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    await definition_cache.newest([JOB, OTHER])
    definition_cache.forget_ended([JOB, OTHER])
    assert rows.reads == 1
    await definition_cache.newest([OTHER])
    assert rows.reads == 1
    await definition_cache.newest([JOB])
    assert rows.reads == 2


async def test_a_caller_is_answered_though_entries_are_evicted_meanwhile():
    """M13: an edit's nudge, a refused draft, a new tenure: each forgets while others wait for a
    read. A result without its definition would be judged as if its job had no retries.
    """
    rows = Rows()
    rows.specs = dict.fromkeys([JOB, OTHER], job_pb2.Job(on_demand=True, shell=SHELL))
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    rows.meanwhile = definition_cache.clear
    for ask in (
        definition_cache.newest,
        lambda jobs: definition_cache.at_generations(dict.fromkeys(jobs, 1)),
    ):
        definition_cache.clear()
        await ask([JOB])
        assert set(await ask([JOB, OTHER])) == {JOB, OTHER}


async def test_a_definition_evicted_at_once_is_still_returned():
    rows = Rows()
    jobs = [run(n).job_id for n in range(1, 201)]
    rows.specs = dict.fromkeys(jobs, job_pb2.Job(on_demand=True, shell=SHELL))
    definition_cache = DefinitionCache(cast("OwnerStore", rows))

    async def forgetting() -> None:
        while True:
            await asyncio.sleep(0)
            definition_cache.clear()

    forgets = asyncio.create_task(forgetting(), name="forgetting")
    found = await definition_cache.newest(jobs)
    forgets.cancel()
    assert len(found) == 200


async def test_more_definitions_than_may_be_kept_are_still_returned():
    rows = Rows()
    rows.specs = dict.fromkeys([JOB, OTHER], job_pb2.Job(on_demand=True, shell=SHELL))
    definition_cache = DefinitionCache(cast("OwnerStore", rows), capacity=1)
    assert set(await definition_cache.newest([JOB, OTHER])) == {JOB, OTHER}
    assert definition_cache.knows(JOB) is not definition_cache.knows(OTHER)


async def test_a_cached_definition_has_its_pacing_and_slots():
    rows = Rows()
    every = job_pb2.CatchUp(policy=job_pb2.CatchUp.POLICY_ALL)
    rows.specs = {
        JOB: job_pb2.Job(cron=["@daily"], shell=SHELL, catch_up=every, slots=3),
        OTHER: job_pb2.Job(cron=["@daily"], shell=SHELL),
    }
    definition_cache = DefinitionCache(cast("OwnerStore", rows))
    late = [replace(run(n), due_at=run(n).ready_at - timedelta(seconds=5)) for n in (1, 2)]
    assert not any(map(definition_cache.paces, late))
    assert definition_cache.slots_of(JOB) == 1
    await definition_cache.newest([JOB, OTHER])
    assert [*map(definition_cache.paces, late)] == [True, False]
    assert not definition_cache.paces(run(1)), "it is on time"
    assert [*map(definition_cache.slots_of, (JOB, OTHER))] == [3, 1]


async def test_jobs_of_the_same_words_share_them_and_nothing_else() -> None:
    """A thousand submits of one kind, or jobs that a program made, hold one message."""
    rows = Rows()
    spec = job_pb2.Job(cron=["H * * * *"], shell=SHELL)
    rows.specs = {JOB: spec, OTHER: spec}
    rows.generation = 7
    known = await DefinitionCache(cast("OwnerStore", rows)).newest([JOB, OTHER])

    one, other = known[JOB], known[OTHER]
    assert one.text is other.text
    assert one.definition.generation == 7
    assert (one.compiled.job_id, other.compiled.job_id) == (JOB, OTHER)


async def test_submitted_jobs_of_the_same_words_differ_only_by_their_ids() -> None:
    definition_cache = DefinitionCache(cast("OwnerStore", Rows()))
    spec = job_pb2.Job(on_demand=True, shell=SHELL)
    definition_cache.add_stored([stored(JOB, spec), stored(OTHER, spec)])
    known = definition_cache.cached([JOB, OTHER])
    assert known[JOB] is known[OTHER]


async def test_definitions_with_text_of_their_own_use_more_of_the_cache() -> None:
    """A hundred thousand jobs of one kind are held; as many that all differ would take too much."""
    rows = Rows()
    jobs = [run(n).job_id for n in range(200)]
    definition_cache = DefinitionCache(cast("OwnerStore", rows), capacity=100 * (ITSELF + ALONE))

    rows.specs = dict.fromkeys(jobs, job_pb2.Job(on_demand=True, shell=SHELL))
    await definition_cache.newest(jobs)
    assert sum(map(definition_cache.knows, jobs)) == 200
    definition_cache.forget(jobs)

    rows.specs = {job: job_pb2.Job(labels={"of": str(job)}, shell=SHELL) for job in jobs}
    for _ in range(3):  # read again they take as much, though their words are remembered
        await definition_cache.newest(jobs)
        assert 50 < sum(map(definition_cache.knows, jobs)) < 100
        assert definition_cache.knows(jobs[-1])
        assert not definition_cache.knows(jobs[0])
        definition_cache.forget(jobs[100:])


async def test_jobs_with_schedules_of_their_own_use_more_of_the_cache() -> None:
    """Each of them has compiled times, hashed from its name, although they have one text."""
    rows = Rows()
    jobs = [run(n).job_id for n in range(200)]
    definition_cache = DefinitionCache(cast("OwnerStore", rows), capacity=250 * ITSELF + ALONE)
    for cron, fewest, most in (("5 * * * *", 200, 200), ("H * * * *", 50, 100)):
        rows.specs = dict.fromkeys(jobs, job_pb2.Job(cron=[cron], shell=SHELL))
        await definition_cache.newest(jobs)
        assert fewest <= sum(map(definition_cache.knows, jobs)) <= most
        definition_cache.forget(jobs)
    rows.specs = dict.fromkeys(jobs, job_pb2.Job(cron=["5 * * * *"], shell=SHELL))
    await definition_cache.newest(jobs)
    assert all(map(definition_cache.knows, jobs)), "all that was forgotten isn't counted any more"


def test_a_definition_text_is_parsed_once_while_it_is_in_use() -> None:
    texts = DefinitionTexts(most=2)

    def text(n: int) -> DefinitionText:
        spec = job_pb2.Job(slots=n, shell=SHELL).SerializeToString()
        return texts.of_job(StoredText(spec, "default", 1), JOB, "j", NEVER_EDITED).text

    first = text(1)
    assert text(2) is not first
    assert text(1) is first
    assert text(3) is not first
    assert text(1) is first, "the second one went: it wasn't used since"
