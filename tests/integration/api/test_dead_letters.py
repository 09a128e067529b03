"""Dead letters: listed, retried one by one or redriven at a rate, and discarded.

The calls and the rows are the real ones; what the owner of a redrive's shard would do is done here,
a step at a time (`Dead.fed`).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from schedd.api.dead_letters import greatest_groups
from schedd.api.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from schedd.core.ids import JobId
from schedd.core.jobs.definition import Overlap
from schedd.core.runs.lifecycle import LIVE, Reason, State
from schedd.core.runs.model import LiveRun
from schedd.core.runs.redrive import MOST_IN_LINE, RedriveLine
from schedkit.clock import boottime
from schedproto.v1 import common_pb2, job_pb2, run_pb2
from schedproto.v1 import job_service_pb2 as jobs
from schedproto.v1 import pool_service_pb2 as pools
from schedproto.v1 import run_service_pb2 as wire
from schedproto.v1.cluster_service_pb2 import PauseClusterRequest
from support.store import Member, draft, report
from support.wait import WAIT_TIMEOUT

SHELL = job_pb2.ShellAction(argv=["true"])
NEW = common_pb2.Payload(json='{"new": 1}')
DONE, OPEN, STOPPED = (
    run_pb2.Redrive.STATE_DONE,
    run_pb2.Redrive.STATE_OPEN,
    run_pb2.Redrive.STATE_STOPPED,
)
REDRIVEN = run_pb2.DeadLetter.RESOLUTION_REDRIVEN
DISCARDED = run_pb2.DeadLetter.RESOLUTION_DISCARDED
ALLOW = job_pb2.OVERLAP_ALLOW
FREE, BUFFERS = RedriveLine(1, None, None), RedriveLine(1, None, MOST_IN_LINE)


@dataclass
class Dead:
    """Jobs whose triggered runs failed for good."""

    api: Any
    me: Member = field(init=False)

    def __post_init__(self) -> None:
        self.me = self.api.world.members[0]

    async def job(self, name: str = "j", **changes: Any) -> None:
        spec = job_pb2.Job(name=name, shell=SHELL, on_demand=True, **changes)
        await self.api("CreateJob", jobs.CreateJobRequest(job=spec))

    async def died(self, job: str = "j", kind: str = "f", **changes: Any) -> str:
        """Trigger a run of the job, dispatch it, let it fail for good; return its id."""
        made = await self.api("TriggerJob", jobs.TriggerJobRequest(job=job, **changes))
        [run] = [one for one in await self._live() if str(one.key.run_id) == made.run_id]
        [handed] = await self.me.assigned(draft(run, overlap=Overlap.ALLOW))
        failed = report(handed, state=State.FAILED, reason=Reason.EXIT_CODE, exit_code=3)
        await self.me.store.results.accept([_dead(failed, kind)])
        return str(made.run_id)

    async def many(self, count: int, job: str = "j", kind: str = "f") -> list[str]:
        """So many, made at once; oldest first."""
        rows = await self.api.world.sql(
            "INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority, trigger,"
            " state, ready_at, generation, reason, finished_at)"
            " SELECT now() + n * interval '1 ms', gen_random_uuid(), job_id, now(), shard, 1,"
            " 'MANUAL', 'FAILED', now(), 1, 'EXIT_CODE', now()"
            " FROM jobs, generate_series(1, %s) n WHERE name = %s"
            " RETURNING scheduled_at, run_id, job_id",
            count,
            job,
        )
        for scheduled_at, run_id, job_id in rows:
            await self.api.world.sql(
                "INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
                " VALUES (%s, %s, %s, %s) RETURNING 1",
                *(run_id, scheduled_at, job_id, kind),
            )
        return [str(run_id) for _, run_id, _ in sorted(rows)]

    async def retried(self, run_id: str, **changes: Any) -> run_pb2.Run:
        made = await self.api("RetryRun", wire.RetryRunRequest(run_id=run_id, **changes))
        assert isinstance(made, run_pb2.Run)
        return made

    async def letter(self, run_id: str) -> run_pb2.DeadLetter:
        found = await self.api("GetDeadLetter", wire.GetDeadLetterRequest(run_id=run_id))
        assert isinstance(found, run_pb2.DeadLetter)
        return found

    async def letters(self, **where: Any) -> list[str]:
        found = await self.api("ListDeadLetters", wire.ListDeadLettersRequest(**where))
        return [letter.run.run_id for letter in found.dead_letters]

    async def redrive(self, **asked: Any) -> run_pb2.Redrive:
        answer = await self.api("RedriveDeadLetters", wire.RedriveDeadLettersRequest(**asked))
        assert isinstance(answer, wire.RedriveDeadLettersResponse)
        return answer.redrive

    async def now(self, one: run_pb2.Redrive) -> run_pb2.Redrive:
        found = await self.api("GetRedrive", wire.GetRedriveRequest(redrive_id=one.redrive_id))
        assert isinstance(found, run_pb2.Redrive)
        return found

    async def fed(
        self, lines: Mapping[JobId, RedriveLine] | None = None, me: Member | None = None
    ) -> list[LiveRun]:
        """Return the runs that the owner makes in one step; by default each job allows overlap."""
        me = me or self.me
        wanted = await me.store.owner.redrives([*me.epochs])
        if lines is None:
            lines = {job: FREE for one in wanted for job in one.jobs}
        made: list[LiveRun] = []
        for one in wanted:
            made += await me.store.owner.redrive(me.claim(one.shard), [one], lines)
        return made

    async def fed_all(self, **how: Any) -> list[LiveRun]:
        """Step by step until there is nothing to make."""
        made: list[LiveRun] = []
        while await self.me.store.owner.redrives([*self.me.epochs]):
            made += await self.fed(**how)
            await asyncio.sleep(0.02)
        return made

    async def _live(self) -> list[LiveRun]:
        return await self.me.store.owner.live_runs([*self.me.epochs], [*LIVE])


def _dead(failed: Any, kind: str) -> Any:
    return replace(failed, dead=True, fingerprint=kind, error=f"boom {kind}")


@pytest.fixture
async def dead(api: Any) -> Dead:
    return Dead(api)


# -- One --


async def test_a_retry_is_a_new_run_that_names_the_old_one(dead: Dead) -> None:
    await dead.job()
    old = await dead.died(payload=common_pb2.Payload(json="{}"))
    was = (await dead.letter(old)).run
    made = await dead.retried(old)
    assert made.run_id != old
    assert (made.redrive_of, made.scheduled_at) == (old, was.scheduled_at)
    assert (made.state, made.attempt) == (common_pb2.RUN_STATE_PENDING, 0)
    assert made.trigger == run_pb2.Run.TRIGGER_REDRIVE
    letter = await dead.letter(old)
    assert (letter.resolution, letter.resolved_by) == (REDRIVEN, "tester")
    assert letter.redriven_as == made.run_id
    assert letter.run.state == common_pb2.RUN_STATE_FAILED, "what has ended never changes"
    [(before, after)] = await dead.api.world.sql(
        "SELECT a.payload, b.payload FROM runs a, runs b WHERE a.run_id = %s AND b.run_id = %s",
        *(old, made.run_id),
    )
    assert bytes(before) == bytes(after)
    assert await dead.letters() == []


async def test_concurrent_retries_of_a_dead_letter_create_one_run(dead: Dead) -> None:
    """P3.20: the id is reckoned from the dead one's."""
    await dead.job()
    old = await dead.died()
    made = await asyncio.gather(*(dead.retried(old) for _ in range(8)))
    assert len({one.run_id for one in made}) == 1
    assert len(await dead.api.world.sql("SELECT 1 FROM runs")) == 2
    lines = await dead.api.world.sql("SELECT 1 FROM audit WHERE action = 'retry'")
    assert len(lines) == 1


async def test_a_retry_that_fails_is_a_dead_letter_of_its_own(dead: Dead) -> None:
    await dead.job()
    old = await dead.died()
    await dead.retried(old)
    [run] = await dead._live()
    [handed] = await dead.me.assigned(draft(run, overlap=Overlap.ALLOW))
    failed = report(handed, state=State.FAILED, reason=Reason.EXIT_CODE)
    await dead.me.store.results.accept([_dead(failed, "f")])
    assert await dead.letters() == [str(run.key.run_id)]
    assert (await dead.retried(str(run.key.run_id))).redrive_of == str(run.key.run_id)


async def test_a_retry_may_have_another_payload(dead: Dead) -> None:
    await dead.job()
    made = await dead.retried(await dead.died(), payload=NEW)
    [(payload,)] = await dead.api.world.sql(
        "SELECT payload FROM runs WHERE run_id = %s", made.run_id
    )
    assert common_pb2.Payload.FromString(bytes(payload)) == NEW


async def test_a_second_retry_with_another_payload_is_refused_and_not_dropped(dead: Dead) -> None:
    await dead.job()
    run_id = await dead.died()
    made = await dead.retried(run_id, payload=NEW)
    assert (await dead.retried(run_id, payload=NEW)).run_id == made.run_id
    assert (await dead.retried(run_id)).run_id == made.run_id
    with pytest.raises(
        FailedPreconditionError, match=f"with another payload, as run {made.run_id}"
    ):
        await dead.retried(run_id, payload=common_pb2.Payload(json="[]"))


async def test_a_retry_of_a_job_with_skip_is_buffered(dead: Dead) -> None:
    """Else what a person asks for would be SKIPPED while another run is under way."""
    await dead.job()
    await dead.job("free", overlap=ALLOW)
    for job, overlap in (("j", "BUFFER_ALL"), ("free", None)):
        made = await dead.retried(await dead.died(job))
        assert await dead.api.world.sql(
            "SELECT overlap FROM runs WHERE run_id = %s", made.run_id
        ) == [(overlap,)]


async def test_a_cancelled_run_may_be_retried_and_has_no_letter(dead: Dead) -> None:
    await dead.job()
    made = await dead.api("TriggerJob", jobs.TriggerJobRequest(job="j"))
    await dead.api("CancelRun", wire.CancelRunRequest(run_id=made.run_id))
    again = await dead.retried(made.run_id)
    assert again.redrive_of == made.run_id
    with pytest.raises(NotFoundError, match="didn't fail for good"):
        await dead.letter(made.run_id)


async def test_a_run_that_hasnt_failed_isnt_retried(dead: Dead) -> None:
    await dead.job()
    made = await dead.api("TriggerJob", jobs.TriggerJobRequest(job="j"))
    with pytest.raises(FailedPreconditionError, match="and hasn't ended"):
        await dead.retried(made.run_id)
    for state, message in (
        ("SUCCEEDED", "has SUCCEEDED"),
        ("SKIPPED", "no run was created for its"),
    ):
        await dead.api.world.sql("UPDATE runs SET state = %s RETURNING 1", state)
        with pytest.raises(FailedPreconditionError, match=message):
            await dead.retried(made.run_id)
    with pytest.raises(NotFoundError):
        await dead.retried(str(uuid4()))
    with pytest.raises(InvalidArgumentError, match="isn't the id of a run"):
        await dead.retried("seven")


async def test_a_run_of_a_deleted_job_isnt_retried(dead: Dead) -> None:
    await dead.job()
    old = await dead.died()
    await dead.api("DeleteJob", jobs.DeleteJobRequest(job="j"))
    with pytest.raises(FailedPreconditionError, match="was deleted"):
        await dead.retried(old)
    assert await dead.letters() == [old], "it still waits for a person"


async def test_a_submitted_run_is_retried_too(dead: Dead) -> None:
    spec = job_pb2.Job(shell=SHELL)
    old = (await dead.api("SubmitRun", wire.SubmitRunRequest(spec=spec))).run_id
    await dead.api("CancelRun", wire.CancelRunRequest(run_id=old))
    assert (await dead.retried(old)).redrive_of == old


# -- Lists and groups --


async def test_groups_are_by_job_and_kind_of_error_the_greatest_first(dead: Dead) -> None:
    await dead.job()
    await dead.job("k")
    await dead.many(3, kind="a")
    last = await dead.died(kind="a")
    await dead.many(2, kind="b")
    await dead.many(1, "k", kind="a")
    found = await dead.api("ListDeadLetterGroups", wire.ListDeadLetterGroupsRequest())
    assert [(one.job, one.fingerprint, one.count) for one in found.groups] == [
        ("j", "a", 4),
        ("j", "b", 2),
        ("k", "a", 1),
    ]
    greatest = found.groups[0]
    assert (greatest.run_id, greatest.error, greatest.exit_code) == (last, "boom a", 3)
    assert greatest.reason == common_pb2.REASON_EXIT_CODE
    of_k = await dead.api("ListDeadLetterGroups", wire.ListDeadLetterGroupsRequest(job="k"))
    assert [one.count for one in of_k.groups] == [1]


async def test_a_group_shows_its_newest_letter_and_when_it_began(dead: Dead) -> None:
    await dead.job()
    oldest, middle, last = [await dead.died(kind="a") for _ in range(3)]
    await dead.api.world.sql(
        "UPDATE runs SET error = 'boom ' || run_id WHERE state = 'FAILED' RETURNING 1"
    )
    listed = {run_id: await dead.letter(run_id) for run_id in (oldest, middle, last)}

    async def group() -> tuple[str, str, datetime, datetime]:
        asked = wire.ListDeadLetterGroupsRequest()
        [one] = (await dead.api("ListDeadLetterGroups", asked)).groups
        first, newest = one.first_died_at.ToDatetime(), one.last_died_at.ToDatetime()
        return one.run_id, one.error, first, newest

    died = {run_id: letter.died_at.ToDatetime() for run_id, letter in listed.items()}
    assert await group() == (last, f"boom {last}", died[oldest], died[last])
    await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(run_ids=[last]))
    assert await group() == (middle, f"boom {middle}", died[oldest], died[middle])
    await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(run_ids=[oldest]))
    assert await group() == (middle, f"boom {middle}", died[middle], died[middle])


async def test_submitted_runs_are_one_group_per_kind_and_namespace(
    dead: Dead,
) -> None:
    for namespace in ("default", "team-a"):
        for _ in range(2):
            spec = job_pb2.Job(shell=SHELL)
            await dead.api("SubmitRun", wire.SubmitRunRequest(namespace=namespace, spec=spec))
    await dead.api.world.sql(
        "WITH failed AS (UPDATE runs SET state = 'FAILED' RETURNING *)"
        " INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
        " SELECT run_id, scheduled_at, job_id, 'a' FROM failed RETURNING 1"
    )
    for namespace in ("default", "team-a"):
        asked = wire.ListDeadLetterGroupsRequest(namespace=namespace)
        [one] = (await dead.api("ListDeadLetterGroups", asked)).groups
        assert (one.namespace, one.job, one.fingerprint, one.count) == (namespace, "", "a", 2)


async def test_a_group_of_dead_letters_selects_only_its_own_letters(dead: Dead) -> None:
    """Though others are of its name, or of its kind of error."""
    await dead.job()
    await dead.many(3, kind="a")
    await dead.many(1, kind="b")
    for name in ("", "", "", "j"):
        asked = wire.SubmitRunRequest(name=name, spec=job_pb2.Job(shell=SHELL))
        await dead.api("SubmitRun", asked)
    await dead.api.world.sql(
        "WITH failed AS (UPDATE runs SET state = 'FAILED' WHERE trigger = 'SUBMIT' RETURNING *)"
        " INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
        " SELECT run_id, scheduled_at, job_id, 'a' FROM failed RETURNING 1"
    )
    found = await dead.api("ListDeadLetterGroups", wire.ListDeadLetterGroupsRequest())
    groups = {(one.job, one.fingerprint, one.submitted): one.count for one in found.groups}
    assert groups == {
        ("j", "a", False): 3,
        ("j", "b", False): 1,
        ("j", "a", True): 1,
        ("", "a", True): 3,
    }
    for (job, fingerprint, submitted), count in groups.items():
        group = wire.ChosenGroup(job=job, fingerprint=fingerprint, submitted=submitted)
        asked = wire.RedriveDeadLettersRequest(group=group, dry_run=True)
        assert (await dead.api("RedriveDeadLetters", asked)).total == count
        discard = wire.DiscardDeadLettersRequest(group=group)
        assert (await dead.api("DiscardDeadLetters", discard)).discarded == count
        with pytest.raises(FailedPreconditionError, match="with the fingerprint"):
            await dead.redrive(group=group)
    assert await dead.letters() == []


async def test_the_largest_of_many_groups_are_listed_and_all_letters_are_counted(
    dead: Dead,
) -> None:
    for number in range(4):
        await dead.job(f"j{number}")
        await dead.many(number + 1, f"j{number}")
    found, waiting = await greatest_groups(dead.api.services, "", 2)
    assert [(one.job, one.count) for one in found] == [("j3", 4), ("j2", 3)]
    assert waiting == 10
    assert await greatest_groups(dead.api.services, "nowhere", 2) == ([], 0)


async def test_the_list_is_of_those_that_wait_and_of_all_when_asked_for(dead: Dead) -> None:
    await dead.job()
    one, two, three = await dead.many(3, kind="a")
    [other] = await dead.many(1, kind="b")
    await dead.retried(two)
    assert await dead.letters(fingerprint="a") == [three, one]
    assert await dead.letters(fingerprint="a", resolved=True) == [three, two, one]
    assert other in await dead.letters(job="j")
    assert await dead.letters(job="nobody") == []
    assert await dead.letters(namespace="elsewhere") == []


# -- Discarded --


async def test_discarded_letters_leave_the_list_and_are_audited_with_the_note(dead: Dead) -> None:
    await dead.job()
    one, two, three = await dead.many(3)
    request = wire.DiscardDeadLettersRequest(run_ids=[one, two], note="not worth it")
    assert (await dead.api("DiscardDeadLetters", request)).discarded == 2
    assert (await dead.api("DiscardDeadLetters", request)).discarded == 0
    assert await dead.letters() == [three]
    letter = await dead.letter(one)
    assert (letter.resolution, letter.note, letter.resolved_by) == (
        DISCARDED,
        "not worth it",
        "tester",
    )
    made = await dead.retried(one)
    assert made.redrive_of == one, "a person may think better of it"
    assert (await dead.letter(one)).resolution == DISCARDED
    everything = wire.DiscardDeadLettersRequest(all=True)
    assert (await dead.api("DiscardDeadLetters", everything)).discarded == 1
    assert (await dead.api.services.store.counts()).dead_letters == 0


async def test_dead_letters_of_a_deleted_job_can_be_discarded_and_of_an_unknown_one_not(
    dead: Dead,
) -> None:
    await dead.job()
    await dead.many(2)
    await dead.api("DeleteJob", jobs.DeleteJobRequest(job="j"))
    await dead.job("idle")
    with pytest.raises(NotFoundError, match="job 'nope' not found"):
        await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(job="nope"))
    for job, count in (("j", 2), ("j", 0), ("idle", 0)):
        request = wire.DiscardDeadLettersRequest(job=job)
        assert (await dead.api("DiscardDeadLetters", request)).discarded == count, job


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "all: no dead letters are selected"),
        ({"job": "j", "all": True}, "all: can't be combined with"),
        ({"run_ids": [str(uuid4())], "job": "j"}, "run_ids: can't be combined with"),
        ({"run_ids": [str(uuid4())], "group": {}}, "run_ids: can't be combined with"),
        ({"group": {"job": "j"}, "all": True}, "group: can't be combined with"),
        (
            {"run_ids": [str(uuid4())], "until": {"seconds": 1}},
            "until can't be combined with run ids",
        ),
        ({"until": {"seconds": 1}}, "all: no dead letters are selected"),
        ({"run_ids": [str(uuid4())], "at_most": 1}, "at_most can't be combined with run ids"),
        ({"all": True, "at_most": -1}, "at_most: -1 is out of range"),
        ({"at_most": 1}, "all: no dead letters are selected"),
        ({"run_ids": ["seven"]}, "isn't the id of a run"),
        ({"all": True, "note": "a\nb"}, "note"),
    ],
)
async def test_a_discard_without_a_selection_is_refused(
    dead: Dead, asked: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(**asked))


HALVES = {  # of a group, and what is said of them
    "a job alone": ({"job": "j"}, "group.fingerprint: is missing"),
    "nothing": ({}, r"group.fingerprint: is missing: .* \(and 1 more\)"),
    "submitted alone": ({"submitted": True}, "group.fingerprint: is missing"),
    "a fingerprint alone": (
        {"fingerprint": "f"},
        "group.job: is missing: give a job",
    ),
}


@pytest.mark.parametrize("half", HALVES)
async def test_an_incomplete_group_is_rejected(dead: Dead, half: str) -> None:
    given, problem = HALVES[half]
    await dead.job()
    await dead.many(1)
    group = wire.ChosenGroup(**given)
    with pytest.raises(InvalidArgumentError, match=problem):
        await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(group=group))
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=problem):
            await dead.redrive(group=group, dry_run=dry_run)


async def shown(dead: Dead) -> tuple[wire.ChosenGroup, Any]:
    """The one group that there is, and when its newest died."""
    asked = wire.ListDeadLetterGroupsRequest()
    [one] = (await dead.api("ListDeadLetterGroups", asked)).groups
    return wire.ChosenGroup(job=one.job, fingerprint=one.fingerprint), one.last_died_at


async def test_a_discard_until_the_newest_shown_letter_keeps_later_letters(
    dead: Dead,
) -> None:
    await dead.job()
    known = await dead.many(2)
    group, newest = await shown(dead)
    later = await dead.many(3)
    discard = wire.DiscardDeadLettersRequest(group=group, until=newest)
    assert (await dead.api("DiscardDeadLetters", discard)).discarded == 2
    assert sorted(await dead.letters()) == sorted(later)
    assert {(await dead.letter(one)).resolution for one in known} == {DISCARDED}
    assert (await dead.api("DiscardDeadLetters", discard)).discarded == 0


async def test_an_until_in_milliseconds_covers_the_whole_millisecond(
    dead: Dead,
) -> None:
    """As JSON and tables show it; a finer one is exact."""
    await dead.job()
    one, other, third = await dead.many(3)
    for letter, at in ((one, "18.911234"), (other, "18.911999"), (third, "18.912")):
        await dead.api.world.sql(
            "UPDATE dead_letters SET died_at = %s WHERE run_id = %s RETURNING 1",
            *(f"2026-11-23T10:51:{at}Z", letter),
        )
    for until, count in (
        ("18.910Z", 0),
        ("18.911233Z", 0),
        ("18.911234Z", 1),
        ("18.911Z", 2),
        ("18.912Z", 3),
    ):
        asked = wire.RedriveDeadLettersRequest(all=True, dry_run=True)
        asked.until.FromJsonString(f"2026-11-23T10:51:{until}")
        assert (await dead.api("RedriveDeadLetters", asked)).total == count, until


async def test_a_redrive_until_a_time_covers_what_its_dry_run_counts(dead: Dead) -> None:
    await dead.job()
    await dead.many(2)
    group, newest = await shown(dead)
    await dead.many(3)
    for which in ({"group": group}, {"all": True}):
        dry = wire.RedriveDeadLettersRequest(**which, until=newest, dry_run=True)
        assert (await dead.api("RedriveDeadLetters", dry)).total == 2
    for _ in range(2):
        made = await dead.redrive(group=group, until=newest, idempotency_key="k")
        assert made.total == 2
    with pytest.raises(AlreadyExistsError, match="idempotency key"):
        await dead.redrive(group=group, idempotency_key="k")
    with pytest.raises(
        FailedPreconditionError, match=r"that failed for good by .* can be redriven"
    ):
        await dead.redrive(group=group, until=newest)
    assert (await dead.redrive(group=group)).total == 3


async def test_a_letter_that_died_by_then_but_wasnt_shown_aborts_the_call(dead: Dead) -> None:
    """Its transaction was in progress when the list was read."""
    await dead.job()
    known = await dead.many(2)
    group, newest = await shown(dead)
    [late] = await dead.many(1)
    await dead.api.world.sql(
        "UPDATE dead_letters SET died_at = died_at - interval '1 day' WHERE run_id = %s"
        " RETURNING 1",
        late,
    )
    selection = {"group": group, "until": newest, "at_most": 2}
    with pytest.raises(AbortedError, match="the selection now has more than 2"):
        await dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(**selection))
    with pytest.raises(AbortedError, match="the selection now has more than 2"):
        await dead.redrive(**selection, idempotency_key="k")
    assert sorted(await dead.letters()) == sorted([*known, late])
    assert not (await dead.api("ListRedrives", wire.ListRedrivesRequest())).redrives
    again = selection | {"at_most": 3}
    assert (await dead.redrive(**again, idempotency_key="k")).total == 3


async def test_fewer_letters_than_were_shown_are_discarded(dead: Dead) -> None:
    await dead.job()
    await dead.many(2)
    asked = wire.DiscardDeadLettersRequest(all=True, at_most=9)
    assert (await dead.api("DiscardDeadLetters", asked)).discarded == 2


async def test_a_redrive_of_a_group_says_whether_it_is_of_submitted_runs(dead: Dead) -> None:
    await dead.job()
    await dead.many(2)
    asked = wire.SubmitRunRequest(name="j", spec=job_pb2.Job(shell=SHELL))
    await dead.api("SubmitRun", asked)
    await dead.api.world.sql(
        "WITH failed AS (UPDATE runs SET state = 'FAILED' WHERE trigger = 'SUBMIT' RETURNING *)"
        " INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)"
        " SELECT run_id, scheduled_at, job_id, 'f' FROM failed RETURNING 1"
    )
    for submitted, total in ((True, 1), (False, 2)):
        group = wire.ChosenGroup(job="j", fingerprint="f", submitted=submitted)
        made = await dead.now(await dead.redrive(group=group))
        assert (made.job, made.submitted, made.total) == ("j", submitted, total)
        assert made.HasField("submitted")
    await dead.many(1)
    assert not (await dead.redrive(job="j", fingerprint="f")).HasField("submitted")


# -- Many --


async def test_a_dry_run_counts_no_more_than_one_redrive_queues(
    dead: Dead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("schedd.store.results.dead_letters.MOST_AT_ONCE", 2)
    await dead.job()
    await dead.many(3)
    dry = wire.RedriveDeadLettersRequest(all=True, dry_run=True)
    assert (await dead.api("RedriveDeadLetters", dry)).total == 2
    assert (await dead.redrive(all=True)).total == 2


async def test_a_redrive_runs_each_selected_letter_again_at_its_rate(dead: Dead) -> None:
    await dead.job(overlap=ALLOW)
    chosen = await dead.many(60, kind="a")
    [other] = await dead.many(1, kind="b")
    dry = wire.RedriveDeadLettersRequest(fingerprint="a", dry_run=True)
    assert (await dead.api("RedriveDeadLetters", dry)).total == 60
    began = boottime()
    one = await dead.redrive(fingerprint="a", rate=100)
    assert (one.total, one.created, one.state, one.created_by) == (60, 0, OPEN, "tester")

    made: list[LiveRun] = []
    while (await dead.now(one)).state == OPEN:
        made += await dead.fed()
        assert len(made) <= 1 + 100 * (boottime() - began)
        await asyncio.sleep(0.02)

    assert boottime() - began >= 0.59
    over = await dead.now(one)
    assert (over.created, over.omitted, over.state, dict(over.runs)) == (
        60,
        0,
        DONE,
        {"PENDING": 60},
    )
    assert over.HasField("finished_at")
    again = await dead.api.world.sql("SELECT redrive_of::text FROM runs WHERE state = 'PENDING'")
    assert sorted(run for (run,) in again) == sorted(chosen)
    assert await dead.letters() == [other]
    assert len(await dead._live()) == 60


async def test_a_redrive_keeps_its_rate_whichever_owner_creates_its_runs(dead: Dead) -> None:
    """P3.20: a new owner counts on the row: what the one before made is used up."""
    await dead.job(overlap=ALLOW)
    await dead.many(50)
    began = boottime()
    one = await dead.redrive(job="j", rate=100)
    second = await dead.api.world.member(take=False)
    made = await dead.fed()
    await dead.me.store.membership.fence_own(dead.me.tenure)
    await second.take()
    while len(made) < 50:
        made += await dead.fed(me=second)
        assert len(made) <= 1 + 100 * (boottime() - began)
        await asyncio.sleep(0.02)
    assert (await dead.now(one)).state == DONE
    assert len({run.key.run_id for run in made}) == 50


async def test_a_fenced_owner_creates_no_redrive_runs(dead: Dead) -> None:
    """P3.20: the claim is of the redrive's own shard."""
    await dead.job(overlap=ALLOW)
    await dead.many(5)
    await dead.redrive(all=True, rate=1000)
    wanted = await dead.me.store.owner.redrives([*dead.me.epochs])
    stale = dead.me.claim(*{one.shard for one in wanted})
    second = await dead.api.world.member(take=False)
    await dead.me.store.membership.fence_own(dead.me.tenure)
    await second.take()
    lines = {job: FREE for one in wanted for job in one.jobs}
    assert await dead.me.store.owner.redrive(stale, wanted, lines) == []


async def test_a_watch_reports_a_redrive_until_all_its_runs_have_ended(dead: Dead) -> None:
    await dead.job()
    await dead.many(2)
    one = await dead.redrive(all=True, rate=1000)
    watch = wire.WatchRedriveRequest(redrive_id=one.redrive_id)
    stop = wire.StopRedriveRequest(redrive_id=one.redrive_id)
    async with asyncio.timeout(WAIT_TIMEOUT):
        stream = dead.api.stream("WatchRedrive", watch)
        assert (await anext(stream)) == one
        await dead.api("StopRedrive", stop)
        assert [each.state async for each in stream] == [STOPPED]
        assert [each.state async for each in dead.api.stream("WatchRedrive", watch)] == [STOPPED]
        await dead.api("ResumeRedrive", wire.ResumeRedriveRequest(redrive_id=one.redrive_id))
        stream = dead.api.stream("WatchRedrive", watch)
        assert (await anext(stream)).state == OPEN
        runs = await dead.fed_all()
        while (stands := await anext(stream)).state == OPEN:
            pass
        assert (stands.state, stands.created, dict(stands.runs)) == (DONE, 2, {"PENDING": 2})
        for run in runs:
            [handed] = await dead.me.assigned(draft(run, overlap=Overlap.ALLOW))
            await dead.me.store.results.accept([report(handed)])
        *_, last = [each async for each in stream]
        assert (last.state, dict(last.runs)) == (DONE, {"SUCCEEDED": 2})
        assert last == await dead.now(one)


async def test_the_states_of_a_redrives_runs_are_counted_however_many_there_are(dead: Dead) -> None:
    """Of tens of thousands the last still runs, and the one before it failed."""
    await dead.job()
    await dead.many(1)
    one = await dead.redrive(job="j")
    for first in range(1, 30_000, 5_000):  # each statement within the limit of a statement
        await dead.api.world.sql(
            "WITH made AS (INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority,"
            " trigger, state, ready_at) SELECT now() + n * interval '1 ms', gen_random_uuid(),"
            " job_id, now(), shard, 1, 'REDRIVE', CASE n WHEN 30000 THEN 'RUNNING' WHEN 29999 THEN"
            " 'FAILED' ELSE 'SUCCEEDED' END, now() FROM jobs, generate_series(%s, %s) n"
            " RETURNING scheduled_at, run_id, job_id)"
            " INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint, redrive,"
            " resolution, became) SELECT gen_random_uuid(), scheduled_at, job_id, 'f', %s,"
            " 'REDRIVEN', run_id FROM made RETURNING 1",
            first,
            first + 4_999,
            one.redrive_id,
        )
    assert (await dead.now(one)).runs == {"SUCCEEDED": 29_998, "FAILED": 1, "RUNNING": 1}


async def test_a_watch_of_an_unknown_redrive_fails_at_once(dead: Dead) -> None:
    with pytest.raises(NotFoundError, match="not found"):
        await anext(
            dead.api.stream("WatchRedrive", wire.WatchRedriveRequest(redrive_id=str(uuid4())))
        )


async def test_a_redrive_is_stopped_and_resumed(dead: Dead) -> None:
    """P3.20: nothing is made after the row says that it is stopped."""
    await dead.job(overlap=ALLOW)
    await dead.many(30)
    one = await dead.redrive(all=True, rate=1000)
    first = await dead.fed()
    assert len(first) == 1
    stop = wire.StopRedriveRequest(redrive_id=one.redrive_id)
    for _ in range(2):
        stopped = await dead.api("StopRedrive", stop)
        assert (stopped.state, stopped.stopped_by) == (STOPPED, "tester")
    await asyncio.sleep(0.05)
    assert await dead.fed() == []
    assert (await dead.now(one)).created == 1

    resume = wire.ResumeRedriveRequest(redrive_id=one.redrive_id)
    assert (await dead.api("ResumeRedrive", resume)).state == OPEN
    await dead.fed_all()
    assert ((await dead.now(one)).created, (await dead.now(one)).state) == (30, DONE)
    with pytest.raises(FailedPreconditionError, match="all its runs are created"):
        await dead.api("StopRedrive", stop)


async def test_letters_that_a_stopped_redrive_did_not_run_are_free_for_another(dead: Dead) -> None:
    """P3.20: and what an open one has to do isn't."""
    await dead.job(overlap=ALLOW)
    await dead.many(10)
    one = await dead.redrive(all=True, rate=1000)
    with pytest.raises(FailedPreconditionError, match="no dead letter can be redriven"):
        await dead.redrive(all=True)
    discard = wire.DiscardDeadLettersRequest(all=True)
    assert (await dead.api("DiscardDeadLetters", discard)).discarded == 0, "it is queued"
    await dead.fed()
    await dead.api("StopRedrive", wire.StopRedriveRequest(redrive_id=one.redrive_id))
    other = await dead.redrive(all=True, rate=1000, payload=NEW)
    assert (other.total, other.payload_edited) == (9, True)
    await dead.fed_all()
    assert (await dead.now(other)).created == 9
    await dead.api("ResumeRedrive", wire.ResumeRedriveRequest(redrive_id=one.redrive_id))
    await dead.fed_all()
    over = await dead.now(one)
    assert (over.state, over.total, over.created, over.omitted) == (DONE, 10, 1, 9)
    payloads = await dead.api.world.sql(
        "SELECT count(*) FROM runs WHERE payload = %s", NEW.SerializeToString()
    )
    assert payloads == [(9,)]


async def test_concurrent_redrives_share_no_letter(dead: Dead) -> None:
    """P3.20: who chooses does so alone."""
    await dead.job()
    await dead.many(10)
    answers = await asyncio.gather(
        *(dead.redrive(all=True) for _ in range(4)), return_exceptions=True
    )
    made = [one for one in answers if isinstance(one, run_pb2.Redrive)]
    assert [one.total for one in made] == [10]
    assert sum(isinstance(one, FailedPreconditionError) for one in answers) == 3


async def test_letters_of_deleted_jobs_are_left_out_and_still_wait(dead: Dead) -> None:
    """P3.20: without the job's timer nothing is made."""
    await dead.job(overlap=ALLOW)
    await dead.job("gone", overlap=ALLOW)
    await dead.many(3)
    orphans = await dead.many(2, "gone")
    one = await dead.redrive(all=True, rate=1000)
    await dead.api("DeleteJob", jobs.DeleteJobRequest(job="gone"))
    await dead.fed_all()
    over = await dead.now(one)
    assert (over.created, over.omitted, over.state) == (3, 2, DONE)
    assert sorted(await dead.letters()) == sorted(orphans)


async def failed_submits(dead: Dead) -> str:
    """Submitted work of a pool that failed for good, when its pool is deleted."""
    await dead.api("SetPool", pools.SetPoolRequest(pool=pools.Pool(name="p", limit=1)))
    spec = job_pb2.Job(shell=SHELL, pool="p")
    made = await dead.api("SubmitRun", wire.SubmitRunRequest(spec=spec))
    [run] = [one for one in await dead._live() if str(one.key.run_id) == made.run_id]
    [handed] = await dead.me.assigned(draft(run, pool="default/p"))
    failed = report(handed, state=State.FAILED, reason=Reason.EXIT_CODE, exit_code=3)
    await dead.me.store.results.accept([_dead(failed, "f")])
    await dead.api("DeletePool", pools.DeletePoolRequest(pool="p"))
    return str(made.run_id)


async def test_a_run_submitted_to_a_deleted_pool_isnt_retried(dead: Dead) -> None:
    """P3.21: its run would wait for ever. Created again, the pool stays while the run waits."""
    run_id = await failed_submits(dead)
    with pytest.raises(FailedPreconditionError, match="was deleted") as refused:
        await dead.retried(run_id)
    assert refused.value.reason == "NO_SUCH_POOL"
    with pytest.raises(FailedPreconditionError, match="pool p was deleted"):
        await dead.api("TriggerJob", jobs.TriggerJobRequest(job=run_id))
    assert await dead._live() == []
    assert await dead.letters() == [run_id]
    await dead.api("SetPool", pools.SetPoolRequest(pool=pools.Pool(name="p", limit=1)))
    made = await dead.retried(run_id)
    with pytest.raises(FailedPreconditionError, match="used by"):
        await dead.api("DeletePool", pools.DeletePoolRequest(pool="p"))
    await dead.api("CancelRun", wire.CancelRunRequest(run_id=made.run_id))
    await dead.api("DeletePool", pools.DeletePoolRequest(pool="p"))
    assert (await dead.retried(run_id)).run_id == made.run_id


async def test_letters_of_a_deleted_pool_are_left_out_and_still_wait(dead: Dead) -> None:
    """P3.21: as those of deleted jobs."""
    orphan = await failed_submits(dead)
    await dead.job(overlap=ALLOW)
    await dead.many(3)
    one = await dead.redrive(all=True, rate=1000)
    await dead.fed_all()
    over = await dead.now(one)
    assert (over.created, over.omitted, over.state) == (3, 1, DONE)
    assert await dead.letters() == [orphan]


async def test_a_pool_that_is_being_deleted_holds_up_no_redrive(dead: Dead) -> None:
    """P3.21: its letters come next time, and are left out then; or not, if it stays."""
    orphan = await failed_submits(dead)
    await dead.api("SetPool", pools.SetPoolRequest(pool=pools.Pool(name="p", limit=1)))
    await dead.redrive(all=True, rate=1000)
    deleting, done = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def delete(connection: Any) -> None:
        connection.exec_driver_sql("SELECT 1 FROM pools FOR UPDATE")
        loop.call_soon_threadsafe(deleting.set)
        done.wait(WAIT_TIMEOUT)

    held = asyncio.create_task(dead.me.store.database.call(delete), name="deleting")
    await deleting.wait()
    try:
        assert await dead.fed() == []
    finally:
        done.set()
        await held
    assert await dead.letters() == [orphan]
    assert len(await dead.fed_all()) == 1


async def test_a_letter_that_a_person_retries_meanwhile_isnt_redriven_twice(dead: Dead) -> None:
    """P3.20: whichever call makes it first, there is one run."""
    await dead.job(overlap=ALLOW)
    one, *_ = await dead.many(3)
    redrive = await dead.redrive(all=True, rate=1000)
    await dead.retried(one)
    await dead.fed_all()
    assert len(await dead.api.world.sql("SELECT 1 FROM runs WHERE redrive_of IS NOT NULL")) == 3
    assert (await dead.now(redrive)).state == DONE


async def test_a_redrive_of_a_serial_job_buffers_a_bounded_number_of_runs(dead: Dead) -> None:
    """A line of waiting runs is bounded: past it they'd be skipped."""
    await dead.job()
    await dead.many(MOST_IN_LINE + 50)
    await dead.redrive(all=True, rate=1000)
    wanted = await dead.me.store.owner.redrives([*dead.me.epochs])
    lines = {job: BUFFERS for one in wanted for job in one.jobs}
    for _ in range(20):
        await dead.fed(lines)
        await asyncio.sleep(0.02)
    assert len(await dead._live()) == MOST_IN_LINE
    [(waiting,)] = await dead.api.world.sql(
        "SELECT count(*) FROM dead_letters WHERE resolution IS NULL"
    )
    assert waiting == 50


async def test_a_full_buffer_of_one_job_does_not_delay_letters_of_other_jobs(dead: Dead) -> None:
    """Nor does a job whose definition can't be read."""
    await dead.job("full")
    await dead.job("unread")
    await dead.job("free", overlap=ALLOW)
    await dead.many(MOST_IN_LINE + 20, "full")
    await dead.many(20, "unread")
    one = await dead.redrive(all=True, rate=1000)
    await dead.many(5, "free")
    await dead.api.world.sql("UPDATE dead_letters SET redrive = %s RETURNING 1", one.redrive_id)
    ids = dict(await dead.api.world.sql("SELECT name, job_id FROM jobs"))
    lines = {ids["full"]: BUFFERS, ids["free"]: FREE}

    made: list[LiveRun] = []
    for _ in range(20):
        made += await dead.fed(lines)
        await asyncio.sleep(0.02)

    of_job = Counter(run.job_id for run in made)
    assert of_job == {ids["full"]: MOST_IN_LINE, ids["free"]: 5}
    assert (await dead.now(one)).state == OPEN


async def test_redrives_create_no_runs_while_the_cluster_is_paused(dead: Dead) -> None:
    await dead.job(overlap=ALLOW)
    await dead.many(2)
    await dead.redrive(all=True, rate=1000)
    await dead.api("PauseCluster", PauseClusterRequest())
    assert await dead.me.store.owner.redrives([*dead.me.epochs]) == []


async def test_the_same_key_and_body_give_the_same_redrive(dead: Dead) -> None:
    await dead.job()
    await dead.many(2)
    first = await dead.redrive(all=True, idempotency_key="k")
    assert (await dead.redrive(all=True, idempotency_key="k")).redrive_id == first.redrive_id
    with pytest.raises(AlreadyExistsError):
        await dead.redrive(job="j", idempotency_key="k")
    found = await dead.api("ListRedrives", wire.ListRedrivesRequest())
    assert [one.redrive_id for one in found.redrives] == [first.redrive_id]


async def test_an_idempotency_key_of_a_rejected_redrive_can_be_reused(dead: Dead) -> None:
    await dead.job()
    with pytest.raises(FailedPreconditionError, match="no dead letter can be redriven"):
        await dead.redrive(all=True, idempotency_key="k")
    await dead.many(2)
    assert (await dead.redrive(all=True, idempotency_key="k")).total == 2


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({}, "all: no dead letters are selected"),
        ({"fingerprint": "a", "all": True}, "all: can't be combined with"),
        ({"group": {"job": "j"}, "fingerprint": "a"}, "group: can't be combined with"),
        ({"all": True, "rate": -1.0}, "rate: -1/s is out of range"),
        ({"all": True, "rate": float("nan")}, "rate: nan is"),
        ({"all": True, "rate": 1001.0}, "rate"),
    ],
)
async def test_a_wrong_redrive_is_refused(dead: Dead, asked: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        await dead.redrive(**asked)
    with pytest.raises(NotFoundError):
        await dead.now(run_pb2.Redrive(redrive_id=str(uuid4())))


# -- What a reviewer found --


async def test_a_definition_that_was_edited_meanwhile_makes_no_run(dead: Dead) -> None:
    """Else runs of a job that allowed overlap, and skips now, would be skipped for good."""
    await dead.job(overlap=ALLOW)
    await dead.many(3)
    await dead.redrive(all=True, rate=1000)
    edit = jobs.UpdateJobRequest(job=job_pb2.Job(name="j", overlap=job_pb2.OVERLAP_SKIP))
    edit.update_mask.paths.append("overlap")
    await dead.api("UpdateJob", edit)
    assert await dead.fed() == [], "of generation 1"
    [one] = await dead.me.store.owner.redrives([*dead.me.epochs])
    assert len(await dead.fed({one.jobs[0]: RedriveLine(2, Overlap.BUFFER_ALL, 1)})) == 1


async def test_a_redrive_of_a_serial_job_creates_the_next_run_after_the_last_ends(
    dead: Dead,
) -> None:
    """The schedule's own runs have their turns between."""
    await dead.job()
    await dead.many(3)
    await dead.redrive(all=True, rate=1000)
    wanted = await dead.me.store.owner.redrives([*dead.me.epochs])
    lines = {job: RedriveLine(1, Overlap.BUFFER_ALL, 1) for one in wanted for job in one.jobs}
    [first] = await dead.fed(lines)
    await asyncio.sleep(0.05)
    assert await dead.fed(lines) == []
    [handed] = await dead.me.assigned(draft(first, overlap=Overlap.ALLOW))
    await dead.me.store.results.accept([report(handed)])
    assert len(await dead.fed(lines)) == 1


async def test_no_redrive_waits_behind_twenty_that_create_nothing(dead: Dead) -> None:
    for number in range(25):
        await dead.job(f"j{number}", overlap=ALLOW)
        await dead.many(3, f"j{number}")
        await dead.redrive(job=f"j{number}", rate=0.01 if number < 22 else 100)
    seen: set[JobId] = set()
    for _ in range(4):
        wanted = await dead.me.store.owner.redrives([*dead.me.epochs])
        seen |= {job for one in wanted for job in one.jobs}
        await dead.fed()
        await asyncio.sleep(0.02)
    assert len(seen) == 25


async def test_letters_queued_for_redrive_while_a_discard_waited_stay(dead: Dead) -> None:
    await dead.job(overlap=ALLOW)
    await dead.many(5)
    redrive, discarded = await asyncio.gather(
        dead.redrive(all=True),
        dead.api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(all=True)),
        return_exceptions=True,
    )
    if isinstance(redrive, run_pb2.Redrive):
        assert discarded.discarded == 0
        assert (await dead.now(redrive)).omitted == 0
    else:
        assert discarded.discarded == 5


async def test_a_stopped_redrive_promises_nothing(dead: Dead) -> None:
    await dead.job()
    await dead.many(4)
    one = await dead.redrive(all=True)
    groups = wire.ListDeadLetterGroupsRequest()
    assert [g.queued for g in (await dead.api("ListDeadLetterGroups", groups)).groups] == [4]
    await dead.api("StopRedrive", wire.StopRedriveRequest(redrive_id=one.redrive_id))
    assert [g.queued for g in (await dead.api("ListDeadLetterGroups", groups)).groups] == [0]


async def test_a_retry_is_rejected_when_the_jobs_buffer_is_full(dead: Dead) -> None:
    """Past a thousand it would be skipped, and its letter resolved."""
    await dead.job(overlap=job_pb2.OVERLAP_BUFFER_ALL)
    old = await dead.died()
    await dead.api.world.sql(
        "WITH made AS (INSERT INTO runs (scheduled_at, run_id, job_id, due_at, shard, priority,"
        " trigger, state, ready_at, generation) SELECT now(), gen_random_uuid(), job_id, now(),"
        " shard, 1, 'MANUAL', 'PENDING', now(), 1 FROM jobs, generate_series(1, 900)"
        " RETURNING shard, job_id, run_id, scheduled_at)"
        " INSERT INTO live (shard, job_id, run_id, scheduled_at) SELECT * FROM made RETURNING 1"
    )
    with pytest.raises(FailedPreconditionError, match="are waiting already"):
        await dead.retried(old)
    assert await dead.letters() == [old]
