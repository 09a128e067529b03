"""The audit log has each change: the state before, the state after, and the namespace."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from schedd.api.audit_diff import MOST
from schedproto.v1 import (
    auth_service_pb2,
    calendar_service_pb2,
    cluster_service_pb2,
    common_pb2,
    job_pb2,
    job_service_pb2,
    pool_service_pb2,
)
from schedproto.v1 import run_service_pb2 as wire

SHELL = job_pb2.ShellAction(argv=["true"])
BURY = """
INSERT INTO dead_letters (run_id, scheduled_at, job_id, fingerprint)
SELECT run_id, scheduled_at, job_id, 'f' FROM runs RETURNING run_id
"""
FAIL = """
UPDATE runs SET state = 'FAILED', reason = 'EXIT_CODE', finished_at = now() RETURNING run_id
"""


async def entries(api: Any, **which: Any) -> list[cluster_service_pb2.AuditEntry]:
    """Newest first."""
    asked = cluster_service_pb2.ListAuditRequest(**which)
    return list((await api("ListAudit", asked)).entries)


async def states(api: Any, action: str) -> tuple[Any, Any]:
    """Before and after of the last such line; None: nothing is said."""
    last = (await entries(api, action=action))[0]
    return tuple(json.loads(text) if text else None for text in (last.before, last.after))


async def create_dead_letters(api: Any, count: int, namespace: str = "billing") -> list[str]:
    """So many runs of the job `etl` that failed for good."""
    job = job_pb2.Job(name="etl", namespace=namespace, shell=SHELL, on_demand=True)
    await api("CreateJob", job_service_pb2.CreateJobRequest(job=job))
    asked = job_service_pb2.TriggerJobRequest(job="etl", namespace=namespace)
    for _ in range(count):
        await api("TriggerJob", asked)
    await api.world.sql(FAIL)
    return [str(run_id) for [run_id] in await api.world.sql(BURY)]


# -- Dead letters --


async def test_a_discard_is_audited_with_its_selection_and_count(api):
    await create_dead_letters(api, 3)
    await api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(namespace="billing", all=True))
    _, after = await states(api, "discard")
    assert after == {"namespace": "billing", "all": True, "discarded": 3}


async def test_a_discard_says_which_letters_were_chosen(api):
    first, *_ = await create_dead_letters(api, 3)
    chosen = wire.DiscardDeadLettersRequest(namespace="billing", run_ids=[first], note="by hand")
    await api("DiscardDeadLetters", chosen)
    _, after = await states(api, "discard")
    named = {"namespace": "billing", "runs": [first], "note": "by hand", "discarded": 1}
    assert after == named
    chosen = wire.DiscardDeadLettersRequest(namespace="billing", job="etl", fingerprint="f")
    await api("DiscardDeadLetters", chosen)
    _, after = await states(api, "discard")
    assert after == {"namespace": "billing", "job": "etl", "fingerprint": "f", "discarded": 2}


async def test_a_discard_of_one_group_says_which(api):
    await create_dead_letters(api, 2)
    group = wire.ChosenGroup(job="etl", fingerprint="f")
    await api(
        "DiscardDeadLetters", wire.DiscardDeadLettersRequest(namespace="billing", group=group)
    )
    _, after = await states(api, "discard")
    which = {"job": "etl", "fingerprint": "f", "submitted": False}
    assert after == {"namespace": "billing", "group": which, "discarded": 2}


async def test_a_discard_and_a_redrive_say_until_when_the_letters_had_died(api):
    await create_dead_letters(api, 2)
    asked = {"namespace": "billing", "all": True, "until": Timestamp(seconds=4_000_000_000)}
    said = {"namespace": "billing", "all": True, "until": "2096-10-02T07:06:40.000999+00:00"}
    made = await api("RedriveDeadLetters", wire.RedriveDeadLettersRequest(**asked))
    assert (await states(api, "redrive"))[1] == said | {"rate": 10, "total": 2}
    await api("StopRedrive", wire.StopRedriveRequest(redrive_id=made.redrive.redrive_id))
    await api("DiscardDeadLetters", wire.DiscardDeadLettersRequest(**asked))
    assert (await states(api, "discard"))[1] == said | {"discarded": 2}


async def test_a_redrive_is_audited_with_its_selection_and_count(api):
    await create_dead_letters(api, 2)
    asked = wire.RedriveDeadLettersRequest(namespace="billing", job="etl", rate=7, note="fixed")
    await api("RedriveDeadLetters", asked)
    before, after = await states(api, "redrive")
    said = {"namespace": "billing", "job": "etl", "rate": 7, "note": "fixed", "total": 2}
    assert (before, after) == (None, said)


async def test_a_redrive_is_audited_when_it_is_stopped_and_continued(api):
    await create_dead_letters(api, 2)
    asked = wire.RedriveDeadLettersRequest(namespace="billing", all=True)
    made = (await api("RedriveDeadLetters", asked)).redrive
    await api("StopRedrive", wire.StopRedriveRequest(redrive_id=made.redrive_id))
    stopped = {"namespace": "billing", "stopped": True, "by": "tester"}
    runs = {"namespace": "billing", "stopped": False}
    assert await states(api, "stop") == (runs, stopped)
    await api("ResumeRedrive", wire.ResumeRedriveRequest(redrive_id=made.redrive_id))
    assert await states(api, "resume") == (stopped, runs)


# -- Calendars --


async def apply(api: Any, **says: Any) -> None:
    calendar = calendar_service_pb2.Calendar(name="off", namespace="billing", **says)
    await api("ApplyCalendar", calendar_service_pb2.ApplyCalendarRequest(calendar=calendar))


async def test_a_calendar_is_audited_with_its_dates_its_changes_and_its_deletion(api):
    await apply(api, dates=["2030-01-01"], weekdays=["sun"])
    assert await states(api, "apply") == (None, {"dates": ["2030-01-01"], "weekdays": ["sun"]})
    await apply(api, dates=["2030-01-02"], weekdays=["sun"])
    assert await states(api, "apply") == ({"dates": ["2030-01-01"]}, {"dates": ["2030-01-02"]})
    gone = calendar_service_pb2.DeleteCalendarRequest(calendar="off", namespace="billing")
    await api("DeleteCalendar", gone)
    assert await states(api, "delete") == ({"dates": ["2030-01-02"], "weekdays": ["sun"]}, None)
    await apply(api, dates=["2030-01-03"])
    assert await states(api, "apply") == (None, {"dates": ["2030-01-03"]})


# -- Pools --


async def test_a_pool_is_audited_with_its_limits_and_its_pause(api):
    pool = pool_service_pb2.Pool(name="p", namespace="billing", limit=3)
    await api("SetPool", pool_service_pb2.SetPoolRequest(pool=pool))
    named = {"pool": "p", "namespace": "billing"}
    await api("PausePool", pool_service_pb2.PausePoolRequest(note="disks", **named))
    paused = {"paused": True, "by": "tester", "note": "disks"}
    assert await states(api, "pause") == ({"paused": False}, paused)
    await api("PausePool", pool_service_pb2.PausePoolRequest(note="more disks", **named))
    renoted = paused | {"note": "more disks"}
    assert await states(api, "pause") == (paused, renoted)
    await api("ResumePool", pool_service_pb2.ResumePoolRequest(**named))
    assert await states(api, "resume") == (renoted, {"paused": False})
    await api("PausePool", pool_service_pb2.PausePoolRequest(note="disks", **named))
    await api("DeletePool", pool_service_pb2.DeletePoolRequest(**named))
    assert await states(api, "delete") == ({"limit": 3, "rate": None} | paused, None)


# -- Jobs --


async def test_a_resume_of_a_job_is_audited_with_the_author_and_note_of_its_pause(api):
    job = job_pb2.Job(name="j", shell=SHELL, on_demand=True)
    await api("CreateJob", job_service_pb2.CreateJobRequest(job=job))
    await api("PauseJob", job_service_pb2.PauseJobRequest(job="j", note="disks"))
    _, paused = await states(api, "pause")
    await api("ResumeJob", job_service_pb2.ResumeJobRequest(job="j"))
    assert paused == {"paused": True, "by": "tester", "note": "disks"}
    assert await states(api, "resume") == (paused, {"paused": False})


async def test_a_pause_without_a_change_isnt_audited_and_keeps_the_etag(api):
    """Else the `If-Match` of another caller breaks, and the audit has a line without content."""
    job = job_pb2.Job(name="j", shell=SHELL, on_demand=True)
    await api("CreateJob", job_service_pb2.CreateJobRequest(job=job))
    until = Timestamp()
    until.FromDatetime(api.clock.now() + timedelta(days=1))
    for asked in ({"note": "disks"}, {"note": "disks", "until": until}, {"note": "ssd"}):
        first = await api("PauseJob", job_service_pb2.PauseJobRequest(job="j", **asked))
        lines = len(await entries(api, action="pause"))
        again = await api("PauseJob", job_service_pb2.PauseJobRequest(job="j", **asked))
        assert again == first
        assert len(await entries(api, action="pause")) == lines
    assert lines == 3
    silent = await api("PauseJob", job_service_pb2.PauseJobRequest(job="j"))
    assert silent == first
    resumed = await api("ResumeJob", job_service_pb2.ResumeJobRequest(job="j"))
    assert await api("ResumeJob", job_service_pb2.ResumeJobRequest(job="j")) == resumed
    assert len(await entries(api, action="resume")) == 1


async def test_a_concurrent_pause_without_a_note_clears_no_note(api):
    for number in range(8):
        name = f"j{number}"
        job = job_pb2.Job(name=name, shell=SHELL, on_demand=True)
        await api("CreateJob", job_service_pb2.CreateJobRequest(job=job))
        asked = [job_service_pb2.PauseJobRequest(job=name, note=note) for note in ("disks", "")]
        await asyncio.gather(*(api("PauseJob", one) for one in asked))
        stands = await api("GetJob", job_service_pb2.GetJobRequest(job=name))
        assert stands.pause_note == "disks"
        lines = await entries(api, object=f"job/default/{name}", action="pause")
        for line in lines:
            assert json.loads(line.before) != json.loads(line.after)


# -- Tokens --


async def test_a_token_that_is_revoked_had_a_name_a_role_and_an_end(api):
    asked = auth_service_pb2.CreateTokenRequest(
        name="ci", role=auth_service_pb2.ROLE_OPERATOR, namespaces=["billing"]
    )
    made = await api("CreateToken", asked)
    _, created = await states(api, "create")
    await api("RevokeToken", auth_service_pb2.RevokeTokenRequest(token_id=made.token.token_id))
    before, after = await states(api, "revoke")
    assert (before, after) == (created, None)
    assert before == {
        "name": "ci",
        "role": "operator",
        "namespaces": ["billing"],
        "expires_at": ANY,
    }


# -- Runs --


def work(**changes: Any) -> wire.SubmitRunRequest:
    spec = job_pb2.Job(shell=SHELL, timeout=Duration(seconds=9), **changes)
    return wire.SubmitRunRequest(spec=spec, name="once", namespace="billing")


async def test_one_time_work_has_what_was_run_and_where(api):
    run = await api("SubmitRun", work())
    said = {"namespace": "billing", "name": "once", "timeout": "9s", "retry": ANY, "shell": ANY}
    before, after = await states(api, "submit")
    assert (before, after) == (None, said)
    assert after["shell"]["argv"] == ["true"]
    await api("BatchSubmitRuns", wire.BatchSubmitRunsRequest(requests=[work(), work()]))
    [one, other, alone] = await entries(api, action="submit")
    assert one.after == other.after == alone.after
    assert alone.run_id == run.run_id


async def test_the_audit_of_a_submit_omits_the_payload(api):
    await api("SubmitRun", work(payload=common_pb2.Payload(json='"to user@example.com"')))
    _, after = await states(api, "submit")
    assert "payload" not in after
    assert after["timeout"] == "9s"


async def test_long_output_of_one_time_work_is_cut(api):
    env = {"LARGE": "x" * 100_000}
    job = job_pb2.Job(
        shell=job_pb2.ShellAction(argv=["true"], env=env), timeout=Duration(seconds=9)
    )
    await api("SubmitRun", wire.SubmitRunRequest(spec=job))
    _, after = await states(api, "submit")
    assert after["shell"] == {"$cut": ANY}
    assert after["timeout"] == "9s"
    assert len((await entries(api, action="submit"))[0].after) < MOST


async def test_a_cancel_is_audited_with_the_run_and_its_state_before(api):
    run = await api("SubmitRun", work())
    cancel = wire.CancelRunRequest(run_id=run.run_id, reason="no longer wanted")
    await api("CancelRun", cancel)
    was = {"namespace": "billing", "job": "once", "state": "PENDING"}
    now = {"state": "CANCELLED", "reason": "no longer wanted"}
    assert await states(api, "cancel") == (was, now)
    assert [one.action for one in await entries(api, run_id=run.run_id)] == ["cancel", "submit"]


async def test_a_cancel_of_a_run_under_way_only_asks_for_its_end(api):
    run = await api("SubmitRun", work())
    await api.world.sql("UPDATE runs SET state = 'RUNNING' RETURNING 1")
    await api("CancelRun", wire.CancelRunRequest(run_id=run.run_id))
    before, after = await states(api, "cancel")
    assert (before["state"], after) == ("RUNNING", {"state": "RUNNING", "cancelling": True})


async def test_a_retry_names_the_run_that_it_made(api):
    run = await api("SubmitRun", work())
    await api.world.sql(FAIL)
    await api.world.sql(BURY)
    made = await api("RetryRun", wire.RetryRunRequest(run_id=run.run_id))
    was = {"namespace": "billing", "job": "once", "state": "FAILED"}
    assert await states(api, "retry") == (was, {"runId": made.run_id})
    [retry, _] = await entries(api, run_id=run.run_id)
    assert (retry.action, retry.object) == ("retry", f"run/{run.run_id}")


async def test_a_retry_with_another_payload_says_so(api):
    run = await api("SubmitRun", work())
    await api.world.sql(FAIL)
    payload = common_pb2.Payload(json="{}")
    made = await api("RetryRun", wire.RetryRunRequest(run_id=run.run_id, payload=payload))
    _, after = await states(api, "retry")
    assert after == {"runId": made.run_id, "payload": True}
